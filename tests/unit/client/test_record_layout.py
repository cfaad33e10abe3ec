import pyarrow as pa
import pytest

from skep.client.errors import ClientError
from skep.client.record_layout import ColumnNames, RecordLayout

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
        ([("value", pa.string())], ColumnNames(key="id"), "no column 'id', which is to be the key"),
        ([("value", pa.string()), ("x", pa.int8()), ("y", pa.int8())], ColumnNames(), "no place for x, y"),
        ([("value", pa.int64())], ColumnNames(), "'value' is of type int64; a record's value is bytes or text"),
        ([("value", pa.struct([("a", pa.int8())]))], ColumnNames(), "json.dumps"),
        ([("value", pa.binary()), ("key", pa.float64())], ColumnNames(), "'key' is of type double"),
        ([("value", pa.binary()), ("topic", pa.binary())], ColumnNames(), "'topic' is of type binary.* is text"),
        ([("value", pa.binary()), ("partition", pa.string())], ColumnNames(), "partition is whole numbers"),
        ([("value", pa.binary()), ("timestamp", pa.string())], ColumnNames(), "timestamp is timestamps"),
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
    values = RecordLayout.of(batch.schema).records(batch).value
    assert values.cast(pa.large_binary()).to_pylist() == [b"x", None, b"y"]


def test_json_as_arrow_knows_it_is_a_value() -> None:
    batch = pa.record_batch({"value": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"]))})
    assert RecordLayout.of(batch.schema).records(batch).value.to_pylist() == ["{}"]
