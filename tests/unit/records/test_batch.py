"""What check_produced refuses, with which code; the header view; stamping with append time."""

import struct

import pytest
from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    check_produced,
    crc_of,
    is_intact,
    prefix_for,
    read_header,
    with_append_time,
    write_header,
)
from skep.records.builder import NewRecord, build_batch
from skep.records.record import iterate_records

LIMIT = 1_048_588
RECORDS = [NewRecord(b"k%d" % n, b"v%d" % n, 1000 + n) for n in range(3)]
BATCH = build_batch(RECORDS)


def changed(**fields: int) -> bytes:
    """BATCH with other header fields and a CRC that fits them, so that only the fields can be at fault."""
    header = read_header(BATCH)._replace(**fields)  # type: ignore[arg-type]
    unsigned = write_header(header._replace(crc=0)) + BATCH[HEADER_SIZE:]
    return write_header(header._replace(crc=crc_of(unsigned))) + BATCH[HEADER_SIZE:]


def refusal(batch: bytes | None, max_message_bytes: int = LIMIT) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        check_produced(batch, max_message_bytes=max_message_bytes)
    assert refused.value.detail
    return refused.value


def message_of_magic(magic: int) -> bytes:
    """A message as clients before 0.11 wrote it: its length and magic lie where those of a batch do."""
    timestamp = struct.pack(">q", 1000) if magic == 1 else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i1si1s", 1, b"k", 1, b"v")
    return struct.pack(">qiI", 0, len(body) + 4, crc32c(body)) + body


def test_a_good_batch_passes_and_its_header_is_given_back() -> None:
    header = check_produced(BATCH, max_message_bytes=LIMIT)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 2, 3)
    assert (header.base_timestamp, header.max_timestamp, header.records_count) == (1000, 1002, 3)
    assert header.size == len(BATCH)
    assert not header.has_producer_id


def test_a_good_idempotent_batch_passes() -> None:
    batch = build_batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=0)
    assert check_produced(batch, max_message_bytes=LIMIT).last_sequence == 2


def test_changed_leaves_the_crc_right_so_the_refusals_below_are_for_the_field() -> None:
    assert changed() == BATCH
    assert check_produced(changed(partition_leader_epoch=9), max_message_bytes=LIMIT).partition_leader_epoch == 9


@pytest.mark.parametrize("nothing", [None, b""])
def test_no_batch_at_all_is_an_invalid_record(nothing: bytes | None) -> None:
    assert refusal(nothing).code is ErrorCode.invalid_record


@pytest.mark.parametrize("length", range(1, len(BATCH)))
def test_a_torn_batch_is_corrupt_wherever_it_was_torn(length: int) -> None:
    assert refusal(BATCH[:length]).code is ErrorCode.corrupt_message


@pytest.mark.parametrize("batch_length", [-(1 << 31), -12, 0, HEADER_SIZE - 12 - 1, len(BATCH) - 12 + 1, (1 << 31) - 1])
def test_a_length_that_does_not_fit_the_bytes_is_corrupt(batch_length: int) -> None:
    assert refusal(changed(batch_length=batch_length)).code is ErrorCode.corrupt_message


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_magic_0_and_1_are_invalid_records(magic: int) -> None:
    refused = refusal(message_of_magic(magic))
    assert refused.code is ErrorCode.invalid_record
    assert f"this one has {magic}" in refused.detail


def test_two_batches_are_an_invalid_record() -> None:
    refused = refusal(BATCH + BATCH)
    assert refused.code is ErrorCode.invalid_record
    assert "exactly one batch" in refused.detail


def test_a_batch_of_exactly_the_limit_passes_and_a_larger_one_is_too_large() -> None:
    check_produced(BATCH, max_message_bytes=len(BATCH))
    assert refusal(BATCH, len(BATCH) - 1).code is ErrorCode.message_too_large


@pytest.mark.parametrize("position", range(17, len(BATCH)))
def test_a_flipped_bit_under_or_in_the_crc_is_corrupt(position: int) -> None:
    flipped = bytearray(BATCH)
    flipped[position] ^= 0x10
    assert refusal(bytes(flipped)).code is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"base_offset": 5}, "base offset"),
        ({"base_offset": -1}, "base offset"),
        ({"records_count": 0, "last_offset_delta": -1}, "0 records"),
        ({"records_count": -1, "last_offset_delta": -2}, "-1 records"),
        ({"records_count": 4}, "4 records"),
        ({"last_offset_delta": 5}, "last offset delta of 5"),
        ({"last_offset_delta": -1}, "last offset delta of -1"),
        ({"records_count": 1000, "last_offset_delta": 999}, "1000 records do not fit"),
        ({"attributes": 4, "records_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, "do not fit"),
        ({"attributes": 5}, "codec 5"),
        ({"attributes": 6}, "codec 6"),
        ({"attributes": 7}, "codec 7"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x30}, "control"),
        ({"attributes": 0x40}, "0x40"),
        ({"attributes": 0x60}, "control"),
        ({"attributes": 0x80}, "0x80"),
        ({"attributes": -0x8000}, "0x8000"),
        ({"producer_id": 1, "producer_epoch": 0}, "sequence"),
        ({"producer_id": 1, "base_sequence": 0}, "epoch"),
    ],
)
def test_a_header_that_contradicts_itself_is_an_invalid_record(fields: dict[str, int], says: str) -> None:
    refused = refusal(changed(**fields))
    assert refused.code is ErrorCode.invalid_record
    assert says in refused.detail


def test_the_smallest_records_fill_a_batch_to_its_last_byte() -> None:
    batch = build_batch([(None, None, 0, ())] * 100)
    assert len(batch) > HEADER_SIZE + 7 * 100  # of deltas over 63, which take a second byte
    assert check_produced(batch, max_message_bytes=LIMIT).records_count == 100
    one = build_batch([(None, None, 0, ())])
    assert len(one) == HEADER_SIZE + 7
    assert check_produced(one, max_message_bytes=LIMIT).records_count == 1


def test_a_batch_is_intact_only_as_a_whole() -> None:
    assert is_intact(BATCH)
    assert not is_intact(BATCH[:-1])
    assert not is_intact(BATCH + b"\x00")
    assert not is_intact(BATCH[:-1] + b"\xff")
    assert not is_intact(BATCH[:HEADER_SIZE])
    assert not is_intact(changed(magic=1))


@pytest.mark.parametrize("codec", range(5))
def test_append_time_reaches_every_record_under_a_valid_crc(codec: int) -> None:
    batch = build_batch(RECORDS, codec=codec)
    stamped = with_append_time(batch, read_header(batch), 5_000_000)
    header = check_produced(stamped, max_message_bytes=LIMIT)
    assert header.is_append_time
    assert (header.base_timestamp, header.max_timestamp, header.codec) == (1000, 5_000_000, codec)
    assert [record.timestamp for record in iterate_records(stamped)] == [5_000_000] * 3
    assert stamped == build_batch(RECORDS, codec=codec, append_time=5_000_000)


def test_the_leaders_prefix_replaces_offset_and_epoch_outside_the_crc() -> None:
    placed = prefix_for(1 << 40, read_header(BATCH).batch_length, 12) + BATCH[16:]
    assert is_intact(placed)
    header = read_header(placed)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (1 << 40, (1 << 40) + 2, 12)


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "last_sequence"),
    [
        (0, 0, 0),
        (10, 4, 14),
        ((1 << 31) - 1, 0, (1 << 31) - 1),
        ((1 << 31) - 1, 1, 0),
        ((1 << 31) - 2, 3, 1),
        (-1, 4, -1),
    ],
)
def test_sequences_begin_again_after_the_largest_int(
    base_sequence: int, last_offset_delta: int, last_sequence: int
) -> None:
    header = read_header(BATCH)._replace(base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == last_sequence


def test_a_header_is_written_as_it_was_read() -> None:
    assert write_header(read_header(BATCH)) == BATCH[:HEADER_SIZE]
    assert len(BatchHeader._fields) == 13
