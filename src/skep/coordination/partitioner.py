"""Maps a group id or a transactional id to a partition of the coordinator's topic, by Java's string hash as in
Kafka."""

import functools


@functools.lru_cache(maxsize=10_000)
def partition_for(key: str, count: int) -> int:
    """Returns the partition of ``key``. The mapping must never change: the records of the key are in that partition."""
    number = 0
    # Java's strings are UTF-16: a character beyond the basic plane counts as two.
    encoded = key.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(encoded), 2):
        number = (31 * number + (encoded[place] << 8 | encoded[place + 1])) & 0xFFFF_FFFF
    if number == 0x8000_0000:
        # Kafka's Utils.abs returns 0 for the one number that has no positive counterpart.
        return 0
    return (number if number < 0x8000_0000 else 0x1_0000_0000 - number) % count
