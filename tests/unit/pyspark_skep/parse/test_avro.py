"""Avro's binary encoding, against the examples of its specification and against damage."""

import datetime
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_skep.parse.avro import NotAvro, read_whole, reader_of, type_of


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        ("long", b"\x00", 0),
        ("long", b"\x01", -1),
        ("long", b"\x7f", -64),
        ("long", b"\x80\x01", 64),
        ("string", b"\x06foo", "foo"),
        ("boolean", b"\x01", True),
        ("float", b"\x00\x00\x80\x3f", 1.0),
        ("double", b"\x00\x00\x00\x00\x00\x00\xf0\x3f", 1.0),
        (["null", "string"], b"\x00", None),
        (["null", "string"], b"\x02\x02a", "a"),
        ({"type": "array", "items": "long"}, b"\x04\x06\x36\x00", [3, 27]),
        ({"type": "array", "items": "long"}, b"\x03\x04\x06\x36\x00", [3, 27]),
        ({"type": "map", "values": "long"}, b"\x02\x02a\x02\x00", {"a": 1}),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "int", "logicalType": "date"}, b"\x02", datetime.date(1970, 1, 2)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x04\xff\x38",
            decimal.Decimal("-2.00"),
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]},
            b"\x36\x06foo",
            {"a": 27, "b": "foo"},
        ),
    ],
)
def test_a_value_is_read_by_its_schema(schema: Any, data: bytes, value: object) -> None:
    assert read_whole(reader_of(schema), data) == value
    with pytest.raises(NotAvro):
        read_whole(reader_of(schema), data + b"\x00")
    with pytest.raises(NotAvro):
        read_whole(reader_of(schema), data[:-1])


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("boolean", b"\x02"),
        ("long", b"\xff" * 11),
        ("int", b"\xfe\xff\xff\xff\xff\x01"),
        ("string", b"\x01"),
        ("string", b"\x02\xff"),
        (["null", "long"], b"\x04"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00"),
    ],
)
def test_what_is_impossible_is_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(NotAvro):
        read_whole(reader_of(schema), data)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
    ]
    try:
        read_whole(reader_of({"type": "record", "name": "R", "fields": fields}), data)
    except NotAvro:
        pass


def test_types_are_those_of_spark() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", {"type": "array", "items": "int"}]},
            {"name": "b", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "c", "type": {"type": "map", "values": {"type": "fixed", "name": "F", "size": 4}}},
        ],
    }
    kind = type_of(schema)
    assert isinstance(kind, T.StructType)
    assert kind.simpleString() == "struct<a:array<int>,b:decimal(9,2),c:map<string,binary>>"


@pytest.mark.parametrize("schema", [["int", "string"], "Known", ["null"]])
def test_a_schema_that_has_no_column_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match="Avro"):
        type_of(schema)
