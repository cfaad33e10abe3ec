"""Avro's binary encoding, read by a schema: Spark's ``from_avro`` needs a jar that is not in its wheel.

``reader_of`` turns a schema into a function once; it reads one value and says where the next begins. ``type_of`` is the
type that Spark gives the same schema. Logical types are date, timestamp-millis, timestamp-micros and, over bytes,
decimal; others are read as what is beneath them. Left out: schema resolution; the bytes are read by the schema they
were written with. Unions are those with null.
"""

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as T

Reader = Callable[[bytes, int], tuple[Any, int]]
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PLAIN: dict[str, T.DataType] = {
    "null": T.NullType(),
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
}
_LOGICAL: dict[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
}
MAX_DEPTH = 64


class NotAvro(ValueError):
    """The bytes are not what the schema says."""


def type_of(schema: Any, depth: int = 0) -> T.DataType:
    """ValueError for a schema that is not supported: recursive, or a union of more than a type and null."""
    if depth > MAX_DEPTH:
        raise ValueError("an Avro schema that contains itself has no columns")
    if isinstance(schema, list):
        return type_of(_not_null(schema)[0], depth + 1)
    if isinstance(schema, str):
        if schema not in _PLAIN:
            raise ValueError(f"'{schema}' is no type of Avro, or a name that is used a second time")
        return _PLAIN[schema]
    kind = schema["type"]
    if schema.get("logicalType") == "decimal" and kind == "bytes":
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL and kind in ("int", "long"):
        return _LOGICAL[schema["logicalType"]]
    if kind == "record":
        fields = [T.StructField(field["name"], type_of(field["type"], depth + 1)) for field in schema["fields"]]
        return T.StructType(fields)
    if kind == "array":
        return T.ArrayType(type_of(schema["items"], depth + 1))
    if kind == "map":
        return T.MapType(T.StringType(), type_of(schema["values"], depth + 1))
    if kind == "enum":
        return T.StringType()
    return T.BinaryType() if kind == "fixed" else type_of(kind, depth + 1)


def reader_of(schema: Any) -> Reader:
    """Call ``type_of`` first: it refuses what cannot be read."""
    if isinstance(schema, list):
        return _union(schema)
    if isinstance(schema, str):
        return _PLAIN_READERS[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "record":
        return _record([(field["name"], reader_of(field["type"])) for field in schema["fields"]])
    if kind == "array":
        return _blocks(reader_of(schema["items"]), keyed=False)
    if kind == "map":
        return _blocks(reader_of(schema["values"]), keyed=True)
    if kind == "enum":
        return _mapped(_long, lambda place: _symbol(schema["symbols"], place))
    if kind == "fixed":
        return lambda data, at: _take(data, at, schema["size"])
    if logical == "decimal" and kind == "bytes":
        context = decimal.Context(prec=schema["precision"])
        scale = -schema.get("scale", 0)
        return _mapped(
            _bytes, lambda raw: decimal.Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(scale, context)
        )
    if logical == "date" and kind == "int":
        return _mapped(_long, lambda days: (_EPOCH + datetime.timedelta(days=days)).date())
    if logical in ("timestamp-millis", "timestamp-micros") and kind == "long":
        unit = 1000 if logical == "timestamp-millis" else 1
        return _mapped(_long, lambda count: _EPOCH + datetime.timedelta(microseconds=count * unit))
    return reader_of(kind)


def read_whole(reader: Reader, data: bytes, start: int = 0) -> Any:
    """The one value in ``data``. NotAvro when it ends too early, goes on too long, or is impossible."""
    try:
        value, end = reader(data, start)
    except (IndexError, UnicodeDecodeError, OverflowError, struct.error, decimal.InvalidOperation) as error:
        raise NotAvro from error
    if end != len(data):
        raise NotAvro
    return value


def _not_null(union: list[Any]) -> list[Any]:
    others = [branch for branch in union if branch != "null"]
    if len(others) != 1:
        raise ValueError("a union in an Avro schema may be of one type, or of null and one type")
    return others


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise NotAvro
    return data[at : at + size], at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Zig-zag, seven bits a byte, the lowest first; at most ten bytes."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise NotAvro


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _take(data, at, size)


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise NotAvro
    return data[at] == 1, at + 1


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise NotAvro
    return number, at


def _mapped(reader: Reader, change: Callable[[Any], Any]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = reader(data, at)
        return change(value), at

    return read


def _symbol(symbols: list[str], place: int) -> str:
    if not 0 <= place < len(symbols):
        raise NotAvro
    return symbols[place]


def _union(branches: list[Any]) -> Reader:
    readers = [reader_of(branch) for branch in branches]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        place, at = _long(data, at)
        if not 0 <= place < len(readers):
            raise NotAvro
        return readers[place](data, at)

    return read


def _record(fields: list[tuple[str, Reader]]) -> Reader:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        record = {}
        for name, reader in fields:
            record[name], at = reader(data, at)
        return record, at

    return read


def _blocks(item: Reader, *, keyed: bool) -> Reader:
    """Arrays and maps come in blocks; a negative count has the size in bytes after it."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        items: list[Any] = []
        while True:
            count, at = _long(data, at)
            if count == 0:
                return (dict(items) if keyed else items), at
            if count < 0:
                _, at = _long(data, at)
                count = -count
            for _ in range(count):
                before = at
                if keyed:
                    key, at = _PLAIN_READERS["string"](data, at)
                value, at = item(data, at)
                # Items of no bytes: a count of billions would fill the memory with them.
                if at == before:
                    raise NotAvro
                items.append((key, value) if keyed else value)

    return read


_PLAIN_READERS: dict[str, Reader] = {
    "null": lambda data, at: (None, at),
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda data, at: (struct.unpack_from("<f", data, at)[0], at + 4),
    "double": lambda data, at: (struct.unpack_from("<d", data, at)[0], at + 8),
    "bytes": _bytes,
    "string": _mapped(_bytes, lambda raw: raw.decode()),
}
