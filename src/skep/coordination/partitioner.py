"""Which partition of its topic a group or a transactional id belongs to: by Java's string hash, as in Kafka."""


def partition_for(key: str, count: int) -> int:
    """Stays the same for ever: the records of the key lie there."""
    number = 0
    # Java's strings are UTF-16: a character beyond the first plane counts as two.
    encoded = key.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(encoded), 2):
        number = (31 * number + (encoded[place] << 8 | encoded[place + 1])) & 0xFFFF_FFFF
    if number == 0x8000_0000:
        # Kafka's Utils.abs gives 0 for the one number that has no positive counterpart.
        return 0
    return (number if number < 0x8000_0000 else 0x1_0000_0000 - number) % count
