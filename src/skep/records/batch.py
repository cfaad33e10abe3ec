"""The header of a record batch (magic 2) and the checks that need nothing but the header and one CRC.

Layout, big endian, 61 bytes before the records::

     0  base_offset             int64   the broker's; everything up to and including crc is outside the CRC
     8  batch_length            int32   bytes that follow this field
    12  partition_leader_epoch  int32   the broker's
    16  magic                   int8    2
    17  crc                     uint32  CRC32C of everything that follows
    21  attributes              int16   bits 0-2 codec, 3 append time, 4 transactional, 5 control, 6 delete horizon
    23  last_offset_delta       int32
    27  base_timestamp          int64
    35  max_timestamp           int64
    43  producer_id             int64
    51  producer_epoch          int16
    53  base_sequence           int32
    57  records_count           int32

The broker does not read past the header: the counts in it are compared with each other, and only readers decode the
records. So the cost is per batch, and a decompression bomb stays compressed.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, Offset

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = _HEADER.size
LENGTH_END = 12
"""The position from which ``batch_length`` counts."""
CRC_END = 21
"""The first position that the CRC covers."""
MAGIC_POSITION = 16
_PREFIX = struct.Struct(">qii")
PREFIX_SIZE = _PREFIX.size
_CRC = struct.Struct(">I")

CODEC_MASK = 0x07
APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
"""Tombstones and markers may be removed from ``base_timestamp`` on, which then holds that time (KIP-534)."""
_CLIENT_ATTRIBUTES = CODEC_MASK | APPEND_TIME_FLAG | TRANSACTIONAL_FLAG
HIGHEST_CODEC = 4
NO_TIMESTAMP = -1
SMALLEST_RECORD = 7
"""Length, attributes, two deltas, null key, null value, no headers: a byte each."""
LARGEST_UNPACKED = 128 << 20
"""The size that a compressed batch may decompress to: Skep's own, the smallest limit among the known readers."""


class BatchHeader(NamedTuple):
    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence numbers count 0 .. 2**31-1 and start again at 0; -1 stands for none, as in a control batch."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the header at ``position``. Raises struct.error when fewer than HEADER_SIZE bytes are there."""
    # As ``_make`` does, without its check of the length: this is called for every batch.
    return tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))


def headers_in(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the position and the header of each whole batch in ``data``.

    A batch that is cut off at the end is left out: a Fetch response may end inside a batch. CRCs are not checked.
    Raises CORRUPT_MESSAGE where there is no batch.
    """
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = read_header(data, position)
        size = header.batch_length + LENGTH_END
        if header.magic != 2 or size < HEADER_SIZE:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"no record batch at byte {position}: magic {header.magic}, length {header.batch_length}",
            )
        if size > end - position:
            return
        yield position, header
        position += size


def write_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(*header)


def crc_of(batch: Buffer) -> int:
    """Returns the CRC32C that the header of this whole batch should have."""
    return int(crc32c(memoryview(batch)[CRC_END:]))


def set_crc(batch: bytearray) -> None:
    """Writes the CRC of this whole batch into its header."""
    _CRC.pack_into(batch, 17, crc_of(batch))


def is_intact(batch: Buffer) -> bool:
    """Returns whether ``batch`` is one whole batch whose length and CRC match its header."""
    if len(batch) < HEADER_SIZE:
        return False
    header = read_header(batch)
    return header.magic == 2 and header.size == len(batch) and header.crc == crc_of(batch)


def check_produced(records: Buffer | None, *, max_message_bytes: int) -> BatchHeader:
    """Returns the header of the one batch that a client may send for a partition. Raises KafkaError to refuse it.

    Refusals, in order: no batch, torn, magic, more than one batch, too large, CRC, then contradictions in the header.
    The magic comes before the length, because a v0 or v1 message has another field at that position.
    """
    if not records:
        raise KafkaError(ErrorCode.invalid_record, "there is no record batch")
    if len(records) <= MAGIC_POSITION:
        raise KafkaError(ErrorCode.corrupt_message, f"{len(records)} bytes are too few for a record batch")
    if (magic := records[MAGIC_POSITION]) != 2:
        raise KafkaError(ErrorCode.invalid_record, f"record batches have magic 2, this one has {magic}")
    if len(records) < HEADER_SIZE:
        raise KafkaError(ErrorCode.corrupt_message, f"{len(records)} bytes are too few for a record batch")
    header = read_header(records)
    # All fields at once: reading one field of a named tuple costs as much as these thirteen together.
    base_offset, length, _, _, crc, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    size = length + LENGTH_END
    if size < HEADER_SIZE or size > len(records):
        raise KafkaError(ErrorCode.corrupt_message, f"the batch claims {size} bytes, there are {len(records)} of them")
    if size < len(records):
        raise KafkaError(ErrorCode.invalid_record, "a produce request carries exactly one batch per partition")
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large, f"the batch has {size} bytes, max.message.bytes is {max_message_bytes}"
        )
    if crc != crc32c(memoryview(records)[CRC_END:]):
        raise KafkaError(ErrorCode.corrupt_message, "the CRC32C of the batch does not match its bytes")
    if (
        base_offset
        or attributes
        or last_delta != count - 1
        or not 0 < count * SMALLEST_RECORD <= size - HEADER_SIZE
        or (producer_id >= 0 and (sequence < 0 or epoch < 0))
    ):
        _check_fields(header)
    return header


def _check_fields(header: BatchHeader) -> None:
    """Raises INVALID_RECORD when fields of the header contradict each other or are not allowed for clients."""
    problem = None
    if header.base_offset != 0:
        problem = f"the base offset of a produced batch is 0, this one has {header.base_offset}"
    elif header.records_count <= 0 or header.last_offset_delta != header.records_count - 1:
        problem = f"{header.records_count} records do not fit a last offset delta of {header.last_offset_delta}"
    # The count assigns offsets: a client that could claim any count would use them up and roll a segment each time.
    elif header.records_count * SMALLEST_RECORD > (
        LARGEST_UNPACKED if header.attributes & CODEC_MASK else header.batch_length + LENGTH_END - HEADER_SIZE
    ):
        problem = f"{header.records_count} records do not fit into {header.size} bytes"
    elif header.codec > HIGHEST_CODEC:
        problem = f"there is no compression codec {header.codec}"
    elif header.attributes & ~_CLIENT_ATTRIBUTES:
        problem = _not_for_clients(header.attributes)
    elif header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        problem = f"an idempotent batch has a sequence and an epoch, this one {header.base_sequence} and " + str(
            header.producer_epoch
        )
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_record, problem)


def _not_for_clients(attributes: int) -> str:
    if attributes & CONTROL_FLAG:
        return "clients do not write control batches"
    # Kafka accepts these. But with a delete horizon set by the client the next compaction would remove tombstones that
    # no reader has seen, and a client of today cannot mean what an unused bit will mean later.
    return f"clients set no attributes but 0x{_CLIENT_ATTRIBUTES:02x}, this batch has 0x{attributes & 0xFFFF:x}"


def prefix_for(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """Returns the first 16 bytes of a batch, as the leader writes them; the rest of the batch stays as received."""
    return _PREFIX.pack(base_offset, batch_length, leader_epoch)


def with_append_time(batch: Buffer, header: BatchHeader, now_ms: int) -> bytes:
    """Returns the batch with the time of its append, and with a new CRC, which covers that field.

    Readers give every record of such a batch ``max_timestamp``; the base timestamp stays for their arithmetic.
    """
    stamped = bytearray(batch)
    struct.pack_into(">h", stamped, CRC_END, header.attributes | APPEND_TIME_FLAG)
    struct.pack_into(">q", stamped, 35, now_ms)
    set_crc(stamped)
    return bytes(stamped)
