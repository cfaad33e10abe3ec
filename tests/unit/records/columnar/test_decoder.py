"""Record batches as Arrow columns: the same records as the reader that goes one by one, whatever the batches are."""

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import CRC_END, read_header, write_header
from skep.records.builder import NewRecord, build_batch
from skep.records.columnar import Decoder, record_schema
from skep.records.compression import Codec
from skep.records.end_txn_marker import EndTxnMarker, build_marker
from skep.records.record import Record, records_in

FIELDS = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 9000))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3)
TIMES = st.integers(-1, 4_102_444_800_000)
LARGEST_TIME = (1 << 63) - 1
"""In microseconds; what a time beyond it becomes."""
RECORDS = st.builds(NewRecord, FIELDS, FIELDS, TIMES, HEADERS)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, int]:
    """Batches one behind the other as a log has them, and the offset after them."""
    offset = draw(st.integers(0, 1 << 40))
    data = b""
    for _ in range(draw(st.integers(1, 6))):
        records = draw(st.lists(RECORDS, min_size=1, max_size=9))
        data += build_batch(
            records,
            base_offset=offset,
            codec=draw(st.sampled_from(Codec)),
            append_time=draw(st.one_of(st.none(), TIMES)),
        )
        offset += len(records) + draw(st.integers(0, 3))
    return data, offset


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Record]:
    """As the other reader gives them; without the type of the time."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        times = batch["timestamp"].cast(pa.int64()).to_pylist()
        columns = [batch[name].to_pylist() for name in ("offset", "key", "value")]
        lists = batch["headers"].to_pylist() if "headers" in batch.schema.names else [None] * len(batch)
        for time, offset, key, value, headers in zip(times, *columns, lists, strict=True):
            assert time % 1000 == 0 or abs(time) == LARGEST_TIME
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            found.append(Record(offset, time // 1000, key, value, pairs))
    return found


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    assert record_schema(headers=True).names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]
    assert record_schema(headers=False).names == ["key", "value", "offset", "timestamp", "timestampType"]
    assert all(field.nullable for field in record_schema(headers=True))
    element = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert record_schema(headers=True).field("headers").type == pa.list_(pa.field("element", element))


@given(chunks(), st.integers(1, 12), st.sampled_from([1, 300, 1 << 20]))
@settings(max_examples=150)
def test_records_are_those_of_the_reader_that_goes_one_by_one(
    chunk: tuple[bytes, int], max_rows: int, max_bytes: int
) -> None:
    data, _ = chunk
    expected = list(records_in(data))
    decoder = Decoder(data, start=0, headers=True, max_rows=max_rows, max_bytes=max_bytes)
    assert rows_of(list(decoder)) == expected
    assert decoder.next_offset == expected[-1].offset + 1
    plain = rows_of(list(Decoder(data, start=0, max_rows=max_rows)))
    assert plain == [record._replace(headers=()) for record in expected]


@given(chunks(), st.data())
def test_only_records_between_start_and_end_are_given(chunk: tuple[bytes, int], data: st.DataObject) -> None:
    raw, after = chunk
    records = list(records_in(raw))
    start = data.draw(st.integers(max(records[0].offset - 2, 0), after + 1))
    end = data.draw(st.integers(start, after + 3))
    decoder = Decoder(raw, start=start, end=end, headers=True, max_rows=data.draw(st.integers(1, 20)))
    assert rows_of(list(decoder)) == [record for record in records if start <= record.offset < end]
    assert decoder.next_offset == max(start, min(records[-1].offset + 1, end))


@given(chunks(), st.data())
def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(chunk: tuple[bytes, int], data: st.DataObject) -> None:
    raw, _ = chunk
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    expected = list(records_in(cut))
    decoder = Decoder(cut, start=0, headers=True)
    assert rows_of(list(decoder)) == expected
    assert decoder.next_offset == (expected[-1].offset + 1 if expected else 0)


def test_the_type_of_the_time_is_that_of_each_batch() -> None:
    created = build_batch([NewRecord(b"a", b"b", 7)] * 2)
    appended = build_batch([NewRecord(b"a", b"b", 7)] * 2, base_offset=2, append_time=99)
    (batch,) = Decoder(created + appended, start=1)
    assert batch["timestampType"].to_pylist() == [0, 1, 1]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [7_000, 99_000, 99_000]


@pytest.mark.parametrize(("time_ms", "time_us"), [((1 << 63) - 1, (1 << 63) - 1), (-(1 << 63), 1 - (1 << 63))])
def test_a_time_beyond_microseconds_becomes_the_nearest_there_is(time_ms: int, time_us: int) -> None:
    (batch,) = Decoder(build_batch([NewRecord(b"a", b"b", time_ms)]), start=0)
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [time_us]


def test_a_record_without_headers_has_null_as_in_spark() -> None:
    (batch,) = Decoder(
        build_batch([NewRecord(b"a", b"b"), NewRecord(b"a", b"b", 0, [("h", b"")])]), start=0, headers=True
    )
    assert batch["headers"].to_pylist() == [None, [{"key": "h", "value": b""}]]


def test_header_names_that_are_not_utf8_are_replaced() -> None:
    data = bytearray(build_batch([NewRecord(b"a", b"b", 0, [("name", b"v"), ("é", None)])]))
    at = data.index(b"name")
    data[at : at + 4] = b"\xff\xc3\x28n"
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    (batch,) = Decoder(data, start=0, headers=True)
    batch.validate(full=True)
    name = b"\xff\xc3\x28n".decode(errors="replace")
    assert batch["headers"].to_pylist() == [[{"key": name, "value": b"v"}, {"key": "é", "value": None}]]


def test_groups_are_as_large_as_asked_and_a_larger_batch_is_given_whole() -> None:
    data = b"".join(build_batch([NewRecord(b"k", b"v" * 100)] * 5, base_offset=5 * n) for n in range(10))
    assert [len(batch) for batch in Decoder(data, start=0, max_rows=10)] == [10] * 5
    assert [len(batch) for batch in Decoder(data, start=0, max_rows=3)] == [5] * 10
    assert [len(batch) for batch in Decoder(data, start=0, max_bytes=1000)] == [10] * 5
    packed = b"".join(
        build_batch([NewRecord(b"k", b"v" * 100)] * 5, base_offset=5 * n, codec=Codec.ZSTD) for n in range(10)
    )
    assert [len(batch) for batch in Decoder(packed, start=0, max_bytes=1000)] == [10] * 5


def test_more_batches_than_are_found_at_once_are_all_read() -> None:
    one = build_batch([NewRecord(b"k", b"v")])
    data = b"".join(struct.pack(">q", offset) + one[8:] for offset in range(40_000))
    decoder = Decoder(data, start=3)
    batches = list(decoder)
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(3, 40_000))
    assert decoder.next_offset == 40_000


def marker(producer_id: int, offset: int, *, committed: bool) -> bytes:
    batch = build_marker(EndTxnMarker(committed, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)
    return struct.pack(">q", offset) + batch[8:]


def written(producer_id: int, offset: int, value: bytes, *, is_transactional: bool = True) -> bytes:
    return build_batch(
        [NewRecord(b"k", value)], base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        is_transactional=is_transactional,
    )  # fmt: skip


TRANSACTIONS = b"".join(
    (
        written(1, 0, b"committed"),
        written(2, 1, b"aborted"),
        written(3, 2, b"plain", is_transactional=False),
        marker(1, 3, committed=True),
        written(1, 4, b"aborted too"),
        marker(2, 5, committed=False),
        written(2, 6, b"committed after an abort"),
        build_batch([NewRecord(None, b"no producer")], base_offset=7),
        marker(1, 8, committed=False),
        marker(2, 9, committed=True),
    )
)
ABORTED = [(1, 4), (2, 1)]


def test_of_transactions_only_committed_ones_are_given_when_asked() -> None:
    decoder = Decoder(TRANSACTIONS, start=0, committed=True, aborted=ABORTED)
    values = [record.value for record in rows_of(list(decoder))]
    assert values == [b"committed", b"plain", b"committed after an abort", b"no producer"]
    assert decoder.next_offset == 10


def test_without_being_asked_for_committed_ones_all_but_control_batches_are_given() -> None:
    decoder = Decoder(TRANSACTIONS, start=0, aborted=ABORTED)
    assert [record.offset for record in rows_of(list(decoder))] == [0, 1, 2, 4, 6, 7]
    assert decoder.next_offset == 10


def test_a_fetch_in_the_middle_of_an_aborted_transaction_gives_none_of_it() -> None:
    data = written(5, 40, b"aborted") + marker(5, 41, committed=False) + written(5, 42, b"next")
    decoder = Decoder(data, start=40, committed=True, aborted=[(5, 3)])
    assert [record.value for record in rows_of(list(decoder))] == [b"next"]


def test_a_marker_before_the_first_offset_ends_its_transaction() -> None:
    data = written(7, 0, b"bad") + marker(7, 1, committed=False)
    data += written(7, 2, b"good") + marker(7, 3, committed=True)
    for start in (0, 1, 2):
        rows = rows_of(list(Decoder(data, start=start, aborted=[(7, 0)], committed=True)))
        assert [row.value for row in rows] == [b"good"]


def test_a_response_of_control_batches_moves_on_without_rows() -> None:
    decoder = Decoder(marker(1, 5, committed=True) + marker(2, 6, committed=False), start=5, committed=True)
    assert list(decoder) == []
    assert decoder.next_offset == 7


def test_a_batch_that_compaction_has_emptied_moves_on_without_rows() -> None:
    batch = bytearray(build_batch([NewRecord(b"k", b"v")] * 4, base_offset=10)[:61])
    struct.pack_into(">i", batch, 8, 49)
    struct.pack_into(">i", batch, 57, 0)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    decoder = Decoder(batch, start=10)
    assert list(decoder) == []
    assert decoder.next_offset == 14


@pytest.mark.parametrize("codec", Codec)
def test_an_emptied_batch_that_kept_its_codec_is_not_damaged(codec: Codec) -> None:
    header = read_header(build_batch([NewRecord(b"k", b"v", 1)]))
    emptied = bytearray(write_header(header._replace(batch_length=49, records_count=0, attributes=int(codec))))
    emptied[17:21] = crc32c(bytes(emptied[CRC_END:])).to_bytes(4, "big")
    decoder = Decoder(bytes(emptied) + build_batch([NewRecord(b"k", b"v", 1)], base_offset=1), start=0)
    assert [row.offset for row in rows_of(list(decoder))] == [1]


def test_damage_is_refused_with_the_offset_of_the_batch_after_what_is_right() -> None:
    data = bytearray(
        build_batch([NewRecord(b"k", b"v")], base_offset=3) + build_batch([NewRecord(b"k", b"v")], base_offset=4)
    )
    data[-1] ^= 1
    decoder = Decoder(data, start=3, max_rows=1)
    batches = iter(decoder)
    assert len(next(batches)) == 1
    with pytest.raises(KafkaError, match="the batch at offset 4 is damaged: its CRC32C") as refused:
        next(batches)
    assert refused.value.code is ErrorCode.corrupt_message
    assert decoder.next_offset == 4


def test_offsets_that_go_back_are_refused() -> None:
    one = build_batch([NewRecord(b"k", b"v")], base_offset=4)
    with pytest.raises(KafkaError, match="no record batch with offset 5 or more"):
        list(Decoder(one + one, start=0))
