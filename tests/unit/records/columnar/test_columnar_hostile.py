"""Batches that anyone may have written: refused as corrupt or read right, and never a byte outside of them."""

import contextlib
import struct

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import HEADER_SIZE, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.columnar import Decoder
from skep.records.compression import Codec, compress
from skep.records.record import Record, iterate_records
from tests.unit.records.columnar.test_decoder import rows_of
from tests.unit.records.columnar.uncompiled import Walled, uncompiled_kernels

RECORDS = [NewRecord(b"key-%d" % n, b"v" * (30 * n), 1000 + n, [("name", b"x"), ("n", None)]) for n in range(5)]
GOOD = build_batch(RECORDS, base_offset=7) + build_batch([NewRecord(None, None)], base_offset=12)
TELLING = st.sampled_from([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
"""Bytes that as varints are small, negative or go on."""


def decoded(data: bytes, *, headers: bool = True) -> list[Record] | None:
    """None when it was refused."""
    try:
        batches = list(Decoder(data, start=0, headers=headers))
    except KafkaError as error:
        assert error.code is ErrorCode.corrupt_message
        return None
    return rows_of(batches)


def resealed(body: bytes, codec: Codec, header: bytes) -> bytes:
    """One batch of these records under a right length and CRC: the damage is inside."""
    packed = compress(codec, body)
    batch = bytearray(header[:HEADER_SIZE] + packed)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, struct.unpack_from(">h", batch, 21)[0] & ~7 | codec)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


@st.composite
def damaged_inside(draw: st.DrawFn) -> bytes:
    whole = bytearray(GOOD[: read_header(GOOD).size])
    first = draw(st.sampled_from([21, HEADER_SIZE, HEADER_SIZE, HEADER_SIZE]))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(first, len(whole) - 1))
        whole[at] = draw(st.one_of(TELLING, st.integers(0, 255)))
    body = bytes(whole[HEADER_SIZE:])
    cut = draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))
    return resealed(body[:cut] + draw(st.sampled_from([b"", b"\0", b"\xff" * 12])), draw(st.sampled_from(Codec)), whole)


def one_by_one(data: bytes) -> list[Record] | None:
    try:
        return [] if read_header(data).is_control else list(iterate_records(data))
    except KafkaError:
        return None


def check_against_the_other_reader(data: bytes) -> None:
    found, expected = decoded(data), one_by_one(data)
    header = read_header(data)
    if header.last_offset_delta < 0 and not header.records_count:
        return  # the other reader has no opinion about the offsets of a batch without records
    if expected is not None and any(abs(record.timestamp) > (1 << 63) // 1000 for record in expected):
        assert found is not None  # their times have become the nearest there are
        assert [record.offset for record in found] == [record.offset for record in expected]
        return
    assert found == expected


@given(damaged_inside())
@example(build_batch([NewRecord(None, b"x", 1 << 62), NewRecord(None, b"y", -(1 << 62))]))
@settings(max_examples=500)
def test_what_one_reader_refuses_the_other_refuses_and_what_it_reads_it_reads(data: bytes) -> None:
    check_against_the_other_reader(data)


@given(damaged_inside())
@settings(max_examples=300)
def test_no_kernel_reaches_outside_its_arrays(data: bytes) -> None:
    with uncompiled_kernels():
        check_against_the_other_reader(data)


@given(st.data())
@settings(max_examples=300)
def test_any_change_to_a_chunk_is_refused_or_left_or_harmless(data: st.DataObject) -> None:
    changed = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.one_of(st.just(len(GOOD)), st.integers(0, len(GOOD))))]
    right = {record.value: record for record in decoded(GOOD) or []}
    with uncompiled_kernels() if data.draw(st.booleans()) else contextlib.nullcontext():
        found = decoded(bytes(changed))
    # The offset and the leader epoch are outside the CRC, so offsets may be others; nothing else may.
    for record in found or []:
        assert record._replace(offset=0) == right[record.value]._replace(offset=0)  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_bytes_that_are_no_batch_are_refused_or_left(data: bytes) -> None:
    with uncompiled_kernels():
        found = decoded(data)
    assert found in (None, [])
    assert decoded(data) == found


@pytest.mark.parametrize("count", [-1, 6, 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_count_of_records_that_are_not_there_is_refused(count: int, codec: Codec) -> None:
    header = bytearray(GOOD[:HEADER_SIZE])
    struct.pack_into(">i", header, 57, count)
    assert decoded(resealed(GOOD[HEADER_SIZE : read_header(GOOD).size], codec, bytes(header))) is None


def test_a_batch_at_the_last_offset_there_is_does_not_wrap() -> None:
    batch = build_batch([NewRecord(b"k", b"v")] * 2, base_offset=0)
    assert decoded(struct.pack(">q", (1 << 63) - 2) + batch[8:]) is None
    assert decoded(struct.pack(">q", (1 << 63) - 4) + batch[8:]) is not None


def test_the_walls_of_these_tests_hold() -> None:
    array = np.zeros(4, np.uint8).view(Walled)
    for index in (-1, 4):
        with pytest.raises(IndexError):
            array[index]
        with pytest.raises(IndexError):
            array[index] = 1


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    before = pa.total_allocated_bytes()
    assert decoded(resealed(bytes(200 << 20), Codec.ZSTD, GOOD)) is None
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(("flags", "committed"), [(0x20, False), (0x20, True), (0x10, True)])
def test_a_flipped_bit_does_not_make_records_disappear(flags: int, committed: bool) -> None:
    """As a control batch, or as one of an aborted transaction, it would be left out."""
    batch = bytearray(build_batch(RECORDS, producer_id=5, producer_epoch=0, base_sequence=0))
    batch[22] |= flags
    with pytest.raises(KafkaError, match="CRC32C"):
        list(Decoder(batch, start=0, committed=committed, aborted=[(5, 0)]))


def test_a_damaged_last_offset_does_not_put_a_batch_below_the_start() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[26] = 2
    with pytest.raises(KafkaError, match="CRC32C"):
        list(Decoder(batch, start=4))
