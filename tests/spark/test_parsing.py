"""JSON and Avro by a schema: what is good becomes columns, what is not says why and where it came from."""

import datetime
import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from pyspark_skep.parsing import dead_letters, good_rows, parse_avro, parse_json

pytestmark = pytest.mark.xdist_group("spark")

RECORD = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
AT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
    }
)


def _records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [(b"k", value, "orders", 3, offset, AT) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORD)


def _json_errors(spark: SparkSession, schema: str, *values: bytes | None) -> list[str | None]:
    rows = parse_json(_records(spark, *values), schema).orderBy("offset").collect()
    assert all((row["data"] is None) == (row["error"] is not None) for row in rows)
    return [row["error"] for row in rows]


def test_fields_become_columns(spark: SparkSession) -> None:
    parsed = parse_json(
        _records(spark, b'{"id": 1, "tags": ["a"], "extra": true}', b'{"id": 2}'), "id INT, tags ARRAY<STRING>"
    )
    assert sorted(good_rows(parsed, "offset").collect()) == [
        Row(offset=0, id=1, tags=["a"]),
        Row(offset=1, id=2, tags=None),
    ]


def test_what_is_no_json_object_says_so(spark: SparkSession) -> None:
    assert _json_errors(
        spark,
        "id INT",
        None,
        b"",
        b"hello",
        b'{"id": 1',
        b'{"id": 1} rest',
        b"[1]",
        b"7",
        b"null",
        b'[{"id": 1}]',
        b"\xff{}",
    ) == [
        "the value is null",
        "not JSON: ",
        "not JSON: hello",
        'not JSON: {"id": 1',
        'not JSON: {"id": 1} rest',
        "not a JSON object: [1]",
        "not a JSON object: 7",
        "not a JSON object: null",
        'not a JSON object: [{"id": 1}]',
        "the value is not UTF-8",
    ]


def test_a_field_of_another_type_is_named_with_its_value(spark: SparkSession) -> None:
    schema = "id INT, price DOUBLE, at TIMESTAMP, inner STRUCT<a: INT>"
    assert _json_errors(
        spark,
        schema,
        b'{"id": "x"}',
        b'{"id": 1, "price": "much", "at": "yesterday"}',
        b'{"id": 99999999999}',
        b'{"id": 1, "inner": 5}',
        b'{"id": null}',
        b"{}",
    ) == [
        "field 'id' is not INT: x",
        "field 'price' is not DOUBLE: much; field 'at' is not TIMESTAMP: yesterday",
        "field 'id' is not INT: 99999999999",
        "field 'inner' is not STRUCT: 5",
        None,
        None,
    ]


def test_a_field_that_must_be_there_is_named_when_it_is_not(spark: SparkSession) -> None:
    schema = "id INT NOT NULL, inner STRUCT<a: INT NOT NULL, b: INT>"
    assert _json_errors(spark, schema, b"{}", b'{"id": null}', b'{"id": 1, "inner": {"b": 2}}', b'{"id": 1}') == [
        "field 'id' is missing",
        "field 'id' is missing",
        "field 'inner.a' is missing",
        None,
    ]


def test_a_long_value_is_cut_in_the_reason_and_kept_in_the_dead_letter(spark: SparkSession) -> None:
    long = b"x" * 1000
    [letter] = dead_letters(parse_json(_records(spark, long), "id INT")).collect()
    assert letter["value"] == long
    assert bytes(letter["headers"][0]["value"]) == b"not JSON: " + b"x" * 80 + b"..."


def test_a_dead_letter_carries_reason_and_origin(spark: SparkSession) -> None:
    [letter] = dead_letters(parse_json(_records(spark, b'{"id": 1}', b"bad"), "id INT")).collect()
    assert (letter["key"], letter["value"]) == (b"k", b"bad")
    assert {header["key"]: bytes(header["value"]).decode() for header in letter["headers"]} == {
        "dlq.reason": "not JSON: bad",
        "dlq.topic": "orders",
        "dlq.partition": "3",
        "dlq.offset": "1",
        "dlq.timestamp": "1714564800000",
    }


def test_the_headers_of_a_record_stay_before_ours(spark: SparkSession) -> None:
    records = _records(spark, b"bad", b"worse").selectExpr(
        "*", "IF(offset = 0, array(named_struct('key', 'trace', 'value', CAST('7' AS BINARY))), NULL) AS headers"
    )
    letters = dead_letters(parse_json(records, "id INT"), headers=True).orderBy("value").collect()
    assert [header["key"] for header in letters[0]["headers"]][:2] == ["trace", "dlq.reason"]
    assert letters[1]["headers"][0]["key"] == "dlq.reason"


def _avro(number: int, note: str | None) -> bytes:
    """As Avro encodes it: a zig-zag number, which of the union, a length, the text."""
    return bytes([number * 2]) + (b"\x00" if note is None else b"\x02" + bytes([len(note) * 2]) + note.encode())


def test_avro_fields_become_columns(spark: SparkSession) -> None:
    parsed = parse_avro(_records(spark, _avro(1, "hello"), _avro(2, None)), AVRO)
    assert sorted(good_rows(parsed).collect()) == [Row(id=1, note="hello"), Row(id=2, note=None)]


@pytest.mark.parametrize("value", [b"", b"\x02", b"\x02\x02\x7fshort", b"\x02\x09"])
def test_what_is_not_avro_of_the_schema_says_so(spark: SparkSession, value: bytes) -> None:
    [row] = parse_avro(_records(spark, value), AVRO).collect()
    assert (row["data"], row["error"]) == (None, "not Avro of the schema 'Order'")


def test_a_record_of_nulls_only_is_good_avro(spark: SparkSession) -> None:
    schema = json.dumps({"type": "record", "name": "N", "fields": [{"name": "a", "type": ["null", "int"]}]})
    [row] = parse_avro(_records(spark, b"\x00"), schema).collect()
    assert (row["data"], row["error"]) == (Row(a=None), None)


def test_the_schema_id_of_a_registry_is_cut_off(spark: SparkSession) -> None:
    framed = b"\x00\x00\x00\x00\x2a" + _avro(1, "hello")
    rows = (
        parse_avro(_records(spark, framed, _avro(1, "hello"), None), AVRO, confluent=True).orderBy("offset").collect()
    )
    assert [(row["data"], row["error"]) for row in rows] == [
        (Row(id=1, note="hello"), None),
        (None, "no schema id before the Avro"),
        (None, "the value is null"),
    ]


@pytest.mark.parametrize("schema", ['"string"', '{"type": "array", "items": "int"}'])
def test_a_schema_that_is_no_record_is_refused(spark: SparkSession, schema: Any) -> None:
    with pytest.raises(ValueError, match="must be a record"):
        parse_avro(_records(spark, b""), schema)
