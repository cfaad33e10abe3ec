import pyarrow as pa
import pytest

from skep.client.errors import ClientError
from skep.client.produce.record_layout import ColumnNames, RecordLayout

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_the_columns_of_sparks_connector_are_found_by_their_names() -> None:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            ("headers", HEADERS),
        ]
    )
    assert RecordLayout.of(schema) == ("value", "key", "topic", "partition", "headers", "timestamp")


def test_only_the_value_must_be_there() -> None:
    assert RecordLayout.of(pa.schema([("value", pa.string())])) == ("value", None, None, None, None, None)


def test_columns_can_be_named() -> None:
    schema = pa.schema([("id", pa.string()), ("body", pa.large_string())])
    layout = RecordLayout.of(schema, ColumnNames(value="body", key="id"))
    batch = pa.record_batch({"id": ["a"], "body": ["b"]}, schema)
    records = layout.records(batch)
    assert (records.key.to_pylist(), records.value.to_pylist()) == (["a"], ["b"])


def test_a_column_can_be_left_out() -> None:
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    assert RecordLayout.of(schema, ColumnNames(partition=None)).partition is None


@pytest.mark.parametrize(
    ("columns", "names", "complaint"),
    [
        ([("a", pa.string()), ("b", pa.int8())], ColumnNames(), "no column 'value', only a, b; .*json.dumps"),
        ([], ColumnNames(), "only none at all"),
        ([("value", pa.string())], ColumnNames(key="id"), "no column 'id' for the key"),
        ([("value", pa.string()), ("x", pa.int8()), ("y", pa.int8())], ColumnNames(), "no place for x, y"),
        ([("value", pa.string()), ("id", pa.string()), ("key", pa.string())], ColumnNames(key="id"), "place for key"),
        ([("value", pa.float64()), ("json", pa.string())], ColumnNames(value="json"), "no place for value"),
        ([("value", pa.string()), ("value", pa.string())], ColumnNames(), "several columns 'value'"),
        ([("value", pa.int64())], ColumnNames(), "'value' is of type int64; a record's value must be bytes or text"),
        ([("value", pa.struct([("a", pa.int8())]))], ColumnNames(), "json.dumps"),
        ([("value", pa.binary()), ("key", pa.float64())], ColumnNames(), "'key' is of type double"),
        ([("value", pa.binary()), ("topic", pa.binary())], ColumnNames(), "'topic' is of type binary.* must be text"),
        ([("value", pa.binary()), ("partition", pa.string())], ColumnNames(), "partition must be whole numbers"),
        ([("value", pa.binary()), ("timestamp", pa.string())], ColumnNames(), "timestamp must be timestamps"),
        ([("value", pa.binary()), ("headers", pa.map_(pa.string(), pa.string()))], ColumnNames(), "list<struct<"),
    ],
)
def test_a_table_that_is_no_records_is_refused_in_words(
    columns: list[tuple[str, pa.DataType]], names: ColumnNames, complaint: str
) -> None:
    with pytest.raises(ClientError, match=complaint):
        RecordLayout.of(pa.schema(columns), names)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(1),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_every_kind_of_bytes_and_text_is_a_value(kind: pa.DataType) -> None:
    array = pa.array([b"x", None, b"y"]).cast(pa.binary(1)) if kind == pa.binary(1) else None
    if array is None:
        array = pa.array(["x", None, "y"]).cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode()
    batch = pa.record_batch({"value": array})
    layout = RecordLayout.of(batch.schema)
    [plain] = layout.plain(batch)
    values = layout.records(plain).value
    assert values.cast(pa.large_binary()).to_pylist() == [b"x", None, b"y"]


def test_json_as_arrow_knows_it_is_a_value() -> None:
    batch = pa.record_batch({"value": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"]))})
    layout = RecordLayout.of(batch.schema)
    [plain] = layout.plain(batch)
    assert layout.records(plain).value.to_pylist() == ["{}"]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_the_size_of_a_slice_is_that_of_its_rows(kind: pa.DataType) -> None:
    array = pa.array([f"{number:0>100}" for number in range(100_000)])
    headers = pa.array([[("k" * 50, b"v" * 50)]] * 100_000, HEADERS)
    views = pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    array = array.dictionary_encode() if pa.types.is_dictionary(kind) else array.cast(kind)
    batch = pa.record_batch({"value": array, "headers": headers.cast(views)})
    pieces = list(RecordLayout.of(batch.schema).plain(batch))
    assert sum(piece.num_rows for piece in pieces) == 100_000
    assert pieces[0].slice(0, 10).nbytes < 5_000
    assert pa.Table.from_batches(pieces)["headers"].to_pylist()[-1] == [{"key": "k" * 50, "value": b"v" * 50}]
