"""Arrow columns as record batches: the records are those of the rows, whatever the arrays look like in memory."""

import contextlib
import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.records.batch import check_produced, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.columnar import (
    BadRow,
    Decoder,
    EncodedBatch,
    RecordColumns,
    RecordTooLarge,
    encode_batches,
    partitions_of_keys,
)
from skep.records.compression import Codec
from skep.records.producer_identity import ProducerIdentity
from skep.records.record import iterate_records
from tests.unit.records.columnar.uncompiled import uncompiled_kernels

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIELDS = st.one_of(st.none(), st.text(max_size=20).map(str.encode), st.just(b"x" * 200))
HEADERS = st.one_of(
    st.none(),
    st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3),
)
ROWS = st.lists(st.tuples(FIELDS, FIELDS, st.integers(-1, 1 << 42), HEADERS), min_size=1, max_size=40)
KINDS = st.sampled_from([pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view()])


def sliced(values: list, kind: pa.DataType, before: int, after: int) -> pa.Array:
    """An array that begins in the middle of its buffers."""
    padding = values[:1] or [None]
    array = pa.array(padding * before + values + padding * after, pa.binary() if kind == pa.binary_view() else kind)
    return array.cast(kind).slice(before, len(values))


def header_array(lists: list, before: int, *, wide: bool = False) -> pa.Array:
    dicts = [None if pairs is None else [{"key": k, "value": v} for k, v in pairs] for pairs in lists]
    array = pa.array(dicts[:1] * before + dicts, HEADERS_TYPE)
    return (array.cast(pa.large_list(HEADERS_TYPE.value_type)) if wide else array).slice(before)


def encode(columns: RecordColumns, rows: np.ndarray | None = None, **options: object) -> list[EncodedBatch]:
    given: dict = {"codec": Codec.NONE, "max_batch_bytes": 1 << 20} | options
    return list(encode_batches(columns, rows, **given))


@given(ROWS, KINDS, KINDS, st.integers(0, 9), st.sampled_from(Codec), st.booleans(), st.data())
@settings(max_examples=200)
def test_records_are_those_of_the_rows(
    rows: list,
    key_kind: pa.DataType,
    value_kind: pa.DataType,
    before: int,
    codec: Codec,
    wide: bool,
    data: st.DataObject,
) -> None:
    keys, values, times, headers = map(list, zip(*rows, strict=True))
    columns = RecordColumns(
        sliced(keys, key_kind, before, 2),
        sliced(values, value_kind, before + 3, 1),
        header_array(headers, before, wide=wide),
        pa.array(times, pa.int64()) if before % 2 else np.array(times),
    )
    chosen = data.draw(st.one_of(st.none(), st.lists(st.integers(0, len(rows) - 1), max_size=60)))
    numbers = None if chosen is None else np.array(chosen, np.int32)
    with uncompiled_kernels() if data.draw(st.booleans()) else contextlib.nullcontext():
        batches = encode(
            columns, numbers, codec=codec, max_batch_bytes=data.draw(st.sampled_from([600, 5000, 1 << 20]))
        )
    expected = [rows[number] for number in (range(len(rows)) if chosen is None else chosen)]
    found = []
    for batch in batches:
        header = check_produced(batch.data, max_message_bytes=1 << 20)
        records = list(iterate_records(batch.data))
        assert batch.rows == (len(found), len(found) + len(records) - 1)
        assert batch.count == len(records) == header.records_count
        assert header.max_timestamp == max(record.timestamp for record in records)
        found += [(record.key, record.value, record.timestamp, list(record.headers)) for record in records]
    assert found == [(key, value, time, pairs or []) for key, value, time, pairs in expected]


def test_an_uncompressed_batch_is_to_the_byte_what_the_builder_makes() -> None:
    records = [NewRecord(b"k%d" % n, b"v" * n * 30, 1000 - n, [("h", None)]) for n in range(50)]
    columns = RecordColumns(
        pa.array([record.key for record in records]),
        pa.array([record.value for record in records]),
        header_array([record.headers for record in records], 0),
        np.array([record.timestamp for record in records]),
    )
    (batch,) = encode(columns, producer=ProducerIdentity(9, 3, True), base_sequence=17)
    assert batch.data == build_batch(
        records, producer_id=9, producer_epoch=3, base_sequence=17, is_transactional=True
    )  # fmt: skip


def test_batches_are_filled_up_to_their_limit() -> None:
    columns = RecordColumns(None, pa.array([b"v" * 100] * 1000))
    batches = encode(columns, max_batch_bytes=1100)
    assert sum(batch.count for batch in batches) == 1000
    assert all(len(batch.data) <= 1100 for batch in batches)
    assert all(len(batch.data) > 1100 - 110 for batch in batches[:-1])
    assert [batch.count for batch in encode(columns, max_batch_records=400)] == [400, 400, 200]


def test_a_batch_that_does_not_shrink_goes_out_unpacked_and_within_the_limit() -> None:
    noise = np.random.default_rng(1).bytes(939)
    columns = RecordColumns(None, pa.array([noise]))
    limit = len(encode(columns)[0].data)
    for codec in Codec:
        (batch,) = encode(columns, codec=codec, max_batch_bytes=limit)
        assert len(batch.data) == limit
        assert read_header(batch.data).codec == Codec.NONE


def test_a_row_that_is_too_large_is_named() -> None:
    columns = RecordColumns(None, pa.array([b"small", b"small", b"v" * 1000, b"small"]))
    size = len(encode(columns, np.array([2]))[0].data)
    batches = encode_batches(columns, np.array([3, 0, 2, 1]), codec=Codec.LZ4, max_batch_bytes=size - 1)
    assert next(batches).count == 2
    with pytest.raises(RecordTooLarge, match=f"row 2 makes a batch of {size} bytes, and {size - 1} is") as refused:
        next(batches)
    assert (refused.value.row, refused.value.size, refused.value.limit) == (2, size, size - 1)
    assert encode(columns, np.array([2]), max_batch_bytes=size)


def test_sequences_count_on_and_begin_again_after_the_last() -> None:
    columns = RecordColumns(None, pa.array([b"v" * 100] * 30))
    batches = encode(
        columns, max_batch_bytes=1100, producer=ProducerIdentity(1, 0, False), base_sequence=(1 << 31) - 10
    )
    headers = [read_header(batch.data) for batch in batches]
    assert len(headers) > 2
    for header, following in itertools.pairwise(headers):
        assert following.base_sequence == (header.last_sequence + 1) % (1 << 31)
    assert [read_header(batch.data).base_sequence for batch in encode(columns)] == [-1]


def test_times_too_far_apart_for_one_batch_are_in_two() -> None:
    times = np.array([-(1 << 63), (1 << 63) - 1, 5])
    batches = encode(RecordColumns(None, pa.array([b"a", b"b", b"c"]), None, times))
    assert [batch.count for batch in batches] == [1, 2]
    assert [record.timestamp for batch in batches for record in iterate_records(batch.data)] == times.tolist()


def test_times_are_taken_of_any_unit_and_are_now_where_there_is_none() -> None:
    times = pa.array([1_500_000, None, -1], pa.timestamp("us", tz="Europe/Berlin"))
    (batch,) = encode(RecordColumns(None, pa.array([b""] * 3), None, times), now_ms=77)
    assert [record.timestamp for record in iterate_records(batch.data)] == [1500, 77, -1]
    (batch,) = encode(RecordColumns(None, pa.array([b""])), now_ms=78)
    assert [record.timestamp for record in iterate_records(batch.data)] == [78]


def test_a_time_before_1970_in_microseconds_is_rounded_down() -> None:
    times = pa.array([-1, -1000, -1001], pa.timestamp("us"))
    (batch,) = encode(RecordColumns(None, pa.array([b""] * 3), None, times))
    assert [record.timestamp for record in iterate_records(batch.data)] == [-1, -1, -2]
    (batch,) = encode(RecordColumns(None, pa.array([b""]), None, pa.array([-2], pa.timestamp("s"))))
    assert [record.timestamp for record in iterate_records(batch.data)] == [-2000]


def test_what_is_no_column_of_bytes_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="value is a column of list"):
        encode(RecordColumns(None, pa.array([[1]])))
    with pytest.raises(TypeError, match="headers is a column of string"):
        encode(RecordColumns(None, pa.array([b"v"]), pa.array(["h"])))
    with pytest.raises(ValueError, match="key has 2 rows, value has 1"):
        encode(RecordColumns(pa.array([b"k"] * 2), pa.array([b"v"])))
    with pytest.raises(IndexError):
        encode(RecordColumns(None, pa.array([b"v"])), np.array([1]))


@pytest.mark.parametrize("header", [{"key": None, "value": b"v"}, None])
def test_a_header_without_a_name_is_refused_naming_the_row(header: dict | None) -> None:
    headers = pa.array([[], [{"key": "k", "value": None}, header]], HEADERS_TYPE)
    with pytest.raises(BadRow, match="row 1: it has a header without a name"):
        encode(RecordColumns(None, pa.array([b"a", b"b"]), headers))
    assert encode(RecordColumns(None, pa.array([b"a", b"b"]), headers), np.array([0]))


@pytest.mark.parametrize("count", [0, 1])
def test_columns_of_nulls_and_columns_without_rows_are_taken(count: int) -> None:
    nulls = pa.nulls(count)
    batches = encode(RecordColumns(nulls, nulls, nulls, None))
    assert [next(iter(iterate_records(batch.data)))[2:] for batch in batches] == [(None, None, ())] * count
    empty = pa.array([], pa.string())
    assert encode(RecordColumns(empty, empty, pa.array([], HEADERS_TYPE), pa.array([], pa.int64()))) == []


@given(ROWS, st.sampled_from(Codec))
def test_what_was_written_from_columns_is_read_into_the_same_columns(rows: list, codec: Codec) -> None:
    keys, values, times, headers = map(list, zip(*rows, strict=True))
    headers = [pairs or None for pairs in headers]
    columns = RecordColumns(
        pa.array(keys, pa.binary()), pa.array(values, pa.binary()), header_array(headers, 0), np.array(times)
    )
    (batch,) = encode(columns, codec=codec)
    (read,) = Decoder(batch.data, start=0, headers=True)
    assert read["key"] == columns.key
    assert read["value"] == columns.value
    assert read["headers"].to_pylist() == header_array(headers, 0).to_pylist()
    assert (read["timestamp"].cast(pa.int64()).to_numpy() // 1000).tolist() == times


def test_partitions_are_those_of_the_java_client() -> None:
    # The hashes that Kafka's own tests of Utils.murmur2 expect.
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    keys = sliced([*hashes, None, b""], pa.binary(), 3, 1)
    for count in (1, 7, 1 << 20):
        expected = [(number & 0x7FFF_FFFF) % count for number in hashes.values()]
        found = partitions_of_keys(keys, count)
        assert found.dtype == np.int32
        assert found.tolist() == [*expected, -1, 275646681 % count]
        with uncompiled_kernels():
            assert partitions_of_keys(keys, count).tolist() == found.tolist()


def test_a_refusal_crosses_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(RecordTooLarge(2, 101, 100)))
    assert (again.row, again.size, again.limit) == (2, 101, 100)


def test_a_timestamp_that_no_record_can_have_is_refused_naming_the_row() -> None:
    times = pa.array([0, None, 1 << 60], pa.timestamp("s"))
    with pytest.raises(BadRow, match="row 2: its timestamp, 1152921504606846976 s since 1970, is out of range"):
        list(
            encode_batches(
                RecordColumns(None, pa.array([b"a", b"b", b"c"]), None, times),
                None,
                codec=Codec.NONE,
                max_batch_bytes=1000,
            )
        )
