"""A decoder of Avro's binary encoding. Spark's ``from_avro`` needs a jar that is not in its wheel.

``reader_of`` compiles a schema into a function that reads one value and returns it with the position after it.
``type_of`` returns the type that Spark has for the same schema. The supported logical types are date,
timestamp-millis, timestamp-micros and, over bytes, decimal; others are read as their underlying type. Unions may be of
one type and null.

Left out: schema resolution. The bytes are read with the schema that they were written with.
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
    """Returns Spark's type. Raises ValueError for a recursive schema, or a union of more than one type and null."""
    if depth > MAX_DEPTH:
        raise ValueError("recursive Avro schemas are not supported")
    if isinstance(schema, list):
        return type_of(_not_null(schema)[0], depth + 1)
    if isinstance(schema, str):
        if schema not in _PLAIN:
            raise ValueError(f"'{schema}' is not an Avro type; references to named types are not supported")
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
    """Returns the reader of a schema. Call ``type_of`` first: it refuses what is not supported."""
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
    """Returns the single value in ``data``. Raises NotAvro if the data is too short, too long or invalid."""
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
        raise ValueError("a union in an Avro schema must have one type, or null and one type")
    return others


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise NotAvro
    return data[at : at + size], at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Reads a zig-zag varint: seven bits per byte, the lowest first, at most ten bytes."""
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
    """Reads an array or a map, which is a sequence of blocks. A negative count is followed by the size in bytes."""

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
                # Items of zero bytes are refused: a count of billions would fill the memory.
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
