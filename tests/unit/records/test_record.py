"""Reading records from bytes that anyone may have written: read exactly, or refused as corrupt; nothing else."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import HEADER_SIZE, crc_of, read_header, write_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec, compress
from skep.records.record import batches_in, iterate_records, records_in

RECORDS = [
    NewRecord(b"key", b"value", 1000),
    NewRecord(None, b"", 1500, (("trace", b"\x01\x02"), ("empty", None))),
    NewRecord(b"", None, 900),
]
BATCH = build_batch(RECORDS, base_offset=40)


def varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def record(*fields: int | bytes, length: int | None = None) -> bytes:
    """A record of attributes 0 and these fields, numbers as varints, behind its true length or the one given."""
    body = b"\x00" + b"".join(field if isinstance(field, bytes) else varint(field) for field in fields)
    return varint(len(body) if length is None else length) + body


def batch_of(body: bytes, count: int = 1, *, codec: int = 0, **fields: int) -> bytes:
    """A batch with a right length and CRC around any bytes at all."""
    packed = compress(codec, body) if codec in list(Codec) else body
    header = read_header(BATCH)._replace(
        base_offset=0,  # type: ignore[arg-type]
        batch_length=HEADER_SIZE - 12 + len(packed),
        records_count=count,
        last_offset_delta=max(count - 1, 0),
        attributes=codec,
        crc=0,
    )
    header = header._replace(**fields)  # type: ignore[arg-type]
    return write_header(header._replace(crc=crc_of(write_header(header) + packed))) + packed


def refusal(batch: bytes) -> str:
    with pytest.raises(KafkaError) as refused:
        list(iterate_records(batch))
    assert refused.value.code is ErrorCode.corrupt_message
    return refused.value.detail


GOOD = record(0, 0, 1, b"k", 1, b"v", 0)


@pytest.mark.parametrize("codec", Codec)
def test_the_smallest_record_is_read(codec: int) -> None:
    [read] = iterate_records(batch_of(GOOD, codec=codec))
    assert read == (0, 1000, b"k", b"v", ())


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("body", "count", "says"),
    [
        (b"", 1, "ends inside a record"),
        (GOOD, 2, "ends inside a record"),
        (GOOD, (1 << 31) - 1, "ends inside a record"),
        (GOOD + b"\x00", 1, "1 bytes follow"),
        (GOOD + GOOD, 1, "follow the last of 1 records"),
        (GOOD, 0, "follow the last of 0 records"),
        (GOOD, -1, "-1 records"),
        (GOOD[:-1], 1, "are left"),
        (varint(-1) + GOOD, 1, "claims -1 bytes"),
        (varint((1 << 31) - 1) + GOOD[1:], 1, "claims 2147483647 bytes"),
        (record(0, 0, 1, b"k", 1, b"v", 0, length=7), 1, "bytes after the record"),
        (record(0, 0, 1, b"k", 1, b"v", 0, b"\x00"), 1, "-1 bytes after the record"),
        (varint(0), 1, "ends inside a record"),
        (record(0, 0, 1, b"k"), 1, "ends inside a record"),
        (record(0, 0, -2, 1, b"v", 0), 1, "claims -2 bytes"),
        (record(0, 0, 100, b"k", 1, b"v", 0), 1, "claims 100 bytes"),
        (record(0, 0, (1 << 31) - 1, b"k", 1, b"v", 0), 1, "claims 2147483647 bytes"),
        (record(0, 0, -1, -(1 << 31), 0), 1, "claims -2147483648 bytes"),
        (record(0, 0, -1, -1, -1), 1, "claims -1 headers"),
        (record(0, 0, -1, -1, (1 << 31) - 1), 1, "claims 2147483647 headers"),
        (record(0, 0, -1, -1, 1, -1, -1), 1, "no name"),
        (record(0, 0, -1, -1, 1, 5, b"ab", 0), 1, "claims 5 bytes"),
        (record(0, 0, 1 << 31, 0, 0), 1, "more than 32 bits"),
        (record(b"\xff" * 10 + b"\x01", 0, 0, 0, 0), 1, "does not end"),
        (record(b"\xff" * 9 + b"\x02", 0, 0, 0, 0), 1, "a varint has more than 64 bits"),
        (record((1 << 63) - 1, 0, 0, 0, 0), 1, "timestamp 9223372036854776807"),
        (record(0, 1, 0, 0, 0), 1, "offset delta 1 after -1"),
        (record(0, -1, 0, 0, 0), 1, "offset delta -1 after -1"),
        (GOOD + GOOD, 2, "offset delta 0 after 0"),
    ],
)
def test_damage_is_named_under_every_codec(codec: int, body: bytes, count: int, says: str) -> None:
    assert says in refusal(batch_of(body, count, codec=codec))


def test_a_field_never_reaches_into_the_next_record() -> None:
    reaching = record(0, 0, -1, 12, b"v", 0)
    assert "12 bytes, 2 are left in its record" in refusal(batch_of(reaching + record(0, 1, 1, b"k", 1, b"v", 0), 2))


def test_a_varint_never_reaches_into_the_next_record() -> None:
    assert "after the record" in refusal(batch_of(record(0, 0, -1, -1, b"\x80") + b"\x00" + GOOD, 2))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_corrupt(codec: int) -> None:
    assert f"codec {codec}" in refusal(batch_of(GOOD, codec=codec))


def test_gaps_that_compaction_left_are_no_damage() -> None:
    body = record(0, 2, -1, -1, 0) + record(0, 7, -1, -1, 0)
    batch = batch_of(body, 2, last_offset_delta=9, base_offset=100)
    assert [read.offset for read in iterate_records(batch)] == [102, 107]


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    assert list(iterate_records(batch_of(b"", 0, last_offset_delta=4))) == []


def test_a_header_name_that_is_not_utf_8_is_shown_with_replacement_characters() -> None:
    [read] = iterate_records(batch_of(record(0, 0, -1, -1, 1, 2, b"\xffa", -1)))
    assert read.headers == (("�a", None),)


@pytest.mark.parametrize("length", range(len(BATCH)))
def test_a_torn_batch_is_corrupt(length: int) -> None:
    refusal(BATCH[:length])


def test_a_batch_with_bytes_behind_it_is_corrupt() -> None:
    assert "there are" in refusal(BATCH + b"\x00")


def test_other_magics_are_corrupt() -> None:
    for magic in (0, 1, 3, -1):
        assert f"has {magic}" in refusal(write_header(read_header(BATCH)._replace(magic=magic)) + BATCH[HEADER_SIZE:])


@given(
    codec=st.sampled_from(Codec),
    body=st.binary(max_size=100) | st.binary(max_size=30).map(lambda noise: GOOD + noise),
    count=st.integers(-2, 5) | st.just((1 << 31) - 1),
)
def test_noise_is_read_or_refused_but_nothing_else(codec: Codec, body: bytes, count: int) -> None:
    reads_or_refuses(batch_of(body, count, codec=codec))


@given(
    codec=st.sampled_from(Codec),
    changes=st.lists(st.tuples(st.integers(12, 1000), st.integers(0, 255)), min_size=1, max_size=5),
)
def test_flipped_bytes_are_read_or_refused_but_nothing_else(codec: Codec, changes: list[tuple[int, int]]) -> None:
    batch = bytearray(build_batch(RECORDS, codec=codec))
    for position, byte in changes:
        batch[position % len(batch)] = byte
    reads_or_refuses(bytes(batch))


def reads_or_refuses(batch: bytes) -> None:
    try:
        for read in iterate_records(batch, max_size=10_000):
            assert len(read.key or b"") + len(read.value or b"") <= 10_000
    except KafkaError as error:
        assert error.code is ErrorCode.corrupt_message


def test_claims_do_not_take_memory() -> None:
    batch = batch_of(record(0, 0, -1, -1, (1 << 31) - 1), (1 << 31) - 1)
    tracemalloc.start()
    refusal(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_bomb_in_a_batch_is_refused() -> None:
    bomb = build_batch([NewRecord(None, bytes(5_000_000))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError, match="more than 1000000 bytes"):
        list(iterate_records(bomb, max_size=1_000_000))


def test_records_of_many_batches_come_in_order_and_a_cut_off_batch_is_left_out() -> None:
    run = b"".join(build_batch(RECORDS, base_offset=offset, codec=offset % 5) for offset in range(0, 30, 3))
    for cut in (0, 1, HEADER_SIZE - 1, HEADER_SIZE + 1):
        assert [read.offset for read in records_in(run + BATCH[:cut])] == list(range(30))
    assert [header.base_offset for header, _ in batches_in(memoryview(run))] == list(range(0, 30, 3))
    assert b"".join(batch for _, batch in batches_in(run)) == run


def test_control_batches_are_batches_but_hold_no_records_for_a_consumer() -> None:
    control = build_batch(
        [NewRecord(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")], base_offset=43, is_control=True
    )
    assert [read.offset for read in records_in(BATCH + control)] == [40, 41, 42]
    assert [header.is_control for header, _ in batches_in(BATCH + control)] == [False, True]


@pytest.mark.parametrize("fields", [{"magic": 1}, {"batch_length": 0}, {"batch_length": -1}, {"batch_length": 48}])
def test_a_run_that_cannot_go_on_is_corrupt_after_the_good_batches(fields: dict[str, int]) -> None:
    bad = write_header(read_header(BATCH)._replace(**fields))  # type: ignore[arg-type]
    reading = records_in(BATCH + bad)
    assert len(list(itertools.islice(reading, 3))) == 3
    with pytest.raises(KafkaError, match=f"at byte {len(BATCH)}"):
        next(reading)
