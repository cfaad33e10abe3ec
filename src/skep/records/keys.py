"""Keys inside batches: the check that compacted topics require, and hashes of keys for share groups ordered by key.

The check is that every record of a produced batch has a key. It runs only for compacted topics, in Python, at about a
microsecond a record; so a batch for such a topic has a limit of its own. ``check_keys_at_once`` checks small batches on
the event loop, and ``check_keys`` checks the others in a thread: decompressing up to 32 MiB and reading a hundred
thousand records take a tenth of a second.

Besides the keys it checks what compaction relies on later: a batch that cannot be decoded would keep the whole log from
being compacted.
"""

from collections.abc import Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import HEADER_SIZE, BatchHeader, Buffer, read_header
from skep.records.compression import Codec, decompress

LARGEST_CHECKED = 32 << 20
"""The size that a compressed batch for a compacted topic may decompress to."""

FEW_RECORDS = 1000
LITTLE_UNPACKED = 256 << 10
"""The most that is checked on the event loop: both take less than a millisecond."""


FEW_LISTED, MOST_LISTED = 100, 10_000
BYTES_PER_LISTED = 4
"""How many records a response lists: no more than 10,000 of a batch, and beyond 100 one for every four bytes of it.

A batch of a kilobyte may decompress to thousands of records. The last rule keeps the response no longer than the
request.
"""


class InvalidRecord(KafkaError):
    """A batch is refused because of some records. The response lists them, so that the client can tell which of the
    others to send again (KIP-467)."""

    def __init__(self, indexes: Sequence[int], detail: str) -> None:
        super().__init__(ErrorCode.invalid_record, detail)
        self.indexes = indexes


def check_keys_at_once(batch: Buffer, header: BatchHeader, *, max_records: int) -> bool:
    """``check_keys`` for a small batch; returns False when the batch is too large and was not checked.

    The size of a compressed batch is known when it is decompressed, which is tried up to LITTLE_UNPACKED bytes.
    """
    _check_count(header, max_records)
    if header.records_count > FEW_RECORDS:
        return False
    if header.codec == Codec.NONE:
        _check_all(bytes(batch), HEADER_SIZE, header)
        return True
    try:
        data = decompress(header.codec, memoryview(batch)[HEADER_SIZE:], max_size=LITTLE_UNPACKED)
    except KafkaError:
        return False  # too large, or damaged: ``check_keys`` says which
    _check_all(data, 0, header)
    return True


def check_keys(batch: Buffer, header: BatchHeader, *, max_records: int) -> None:
    """Raises InvalidRecord for records without a key, and KafkaError when the batch is too large or damaged."""
    _check_count(header, max_records)
    if header.codec == Codec.NONE:
        _check_all(bytes(batch), HEADER_SIZE, header)
    else:
        data = decompress(header.codec, memoryview(batch)[HEADER_SIZE:], max_size=LARGEST_CHECKED)
        _check_all(data, 0, header)


def key_hashes(batch: Buffer, *, max_size: int = LARGEST_CHECKED) -> list[tuple[int, int]]:
    """Returns the offset of each record with a key, and a hash of the key that is not 0 and only means something in
    this process. Raises KafkaError when the batch is damaged, or decompresses to more than ``max_size`` bytes."""
    header = read_header(batch)
    if header.is_control:
        return []
    if header.codec == Codec.NONE:
        data, position = bytes(batch), HEADER_SIZE
    else:
        data, position = decompress(header.codec, memoryview(batch)[HEADER_SIZE:], max_size=max_size), 0
    base, found = header.base_offset, []
    try:
        for _ in range(header.records_count):
            length, position = _varint(data, position)
            end = position + length
            position += 1
            while data[position] > 0x7F:
                position += 1
            # Most of these numbers have one byte, and a call takes as long as all the rest.
            byte = data[position + 1]
            delta, position = (byte >> 1, position + 2) if byte < 0x80 else _varint(data, position + 1)
            byte = data[position]
            key_length, position = ((byte >> 1) ^ -(byte & 1), position + 1) if byte < 0x80 else _varint(data, position)
            if length < 0 or end > len(data) or position + key_length > end or delta < 0:
                raise IndexError
            if key_length >= 0:
                found.append((base + delta, hash(data[position : position + key_length]) or 1))
            position = end
    except IndexError:
        raise KafkaError(ErrorCode.corrupt_message, "the records of a batch do not fit into it") from None
    return found


def _check_count(header: BatchHeader, max_records: int) -> None:
    if header.records_count > max_records:
        raise KafkaError(
            ErrorCode.record_list_too_large,
            f"the batch has {header.records_count} records, a compacted topic allows {max_records}",
        )


def _check_all(data: bytes, position: int, header: BatchHeader) -> None:
    keyless: list[int] = []
    for index in range(header.records_count):
        try:
            position = _check_record(data, position, index, keyless)
        except IndexError:
            raise InvalidRecord([index], f"record {index} is cut off") from None
    if position != len(data):
        raise KafkaError(ErrorCode.corrupt_message, f"{len(data) - position} bytes follow the last record")
    if keyless:
        raise _without_keys(keyless[: max(FEW_LISTED, header.size // BYTES_PER_LISTED)])


def _without_keys(indexes: Sequence[int]) -> InvalidRecord:
    detail = "a compacted topic takes no records without a key, "
    if len(indexes) == 1:
        return InvalidRecord(indexes, f"{detail}record {indexes[0]} has none")
    first = ", ".join(map(str, indexes[:3]))
    return InvalidRecord(indexes, f"{detail}records {first}{' and others' if len(indexes) > 3 else ''} have none")


def _check_record(data: bytes, position: int, index: int, keyless: list[int]) -> int:
    """Returns where the record ends. Adds it to ``keyless`` if it has no key. Raises IndexError when the bytes end
    first."""
    length, position = _varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise IndexError
    _, position = _varint(data, position + 1)
    delta, position = _varint(data, position)
    if delta != index:
        raise InvalidRecord([index], f"record {index} has offset delta {delta}")
    key_length, position = _varint(data, position)
    if key_length < 0:
        if len(keyless) < MOST_LISTED:
            keyless.append(index)
        key_length = 0
    value_length, position = _varint(data, position + key_length)
    # After the value the number of headers takes a byte. So no record is shorter than SMALLEST_RECORD, as the kernels
    # require; headers are copied without a check.
    if value_length < -1 or position + max(value_length, 0) >= end:
        raise InvalidRecord([index], f"the fields of record {index} do not fit into it")
    return end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    zigzag, shift = byte & 0x7F, 7
    while True:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), position
        shift += 7
        if shift > 63:
            raise IndexError
