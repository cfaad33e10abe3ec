"""JSON values as columns of Arrow, by the rules of Spark's ``from_json``.

A field that does not match its type is null, the others keep their values: 1.5 is no BIGINT, and "7" neither. A STRING
takes everything: another value becomes its JSON text, with numbers as Java writes them. An array with an element that
does not match is null. Text that is not JSON has no fields, and text after the first JSON value is ignored.

Unlike Spark this reads neither strings in single quotes nor the fields before the place where JSON is broken. Spark
drops all fields of a record because of one BINARY that is not base64, reads time zones by name, and rounds a DECIMAL
from all digits of a number, not from the nearest DOUBLE. A Java before 19 writes some numbers of a STRING with more
digits than are needed.
"""

import base64
import binascii
import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from skep.cli.sql.value_schema import STRING, Array, Decimal, Kind, Map, Simple, Struct

if TYPE_CHECKING:
    import pyarrow as pa

Converter = Callable[[Any], Any]

_decode = json.JSONDecoder().raw_decode
_SPACE = " \t\r\n"
_MOMENT = re.compile(
    r"\s*\+?(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})"
    r"(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?)?)?\s*",
    re.ASCII,
)
_DAYS = re.compile(r"[+-]?\d{1,3}|[+-]?\d{5,7}", re.ASCII)
_AFTER_DAY = re.compile(r"(?<=\d)[ T].*$", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[\d,]+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ESCAPED = re.compile(r'["\\\x00-\x1f\U00010000-\U0010ffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


class Mismatch(Exception):
    """The value does not match its type."""


def decoded(text: str | None) -> Any:
    """Returns the JSON value of a text; None if it is not JSON."""
    if not text:
        return None
    try:
        return _decode(text.lstrip("\ufeff").lstrip(_SPACE))[0]
    except (ValueError, RecursionError):
        return None


def columns(values: Iterable[Any], fields: Struct) -> "list[pa.Array]":
    """Returns a column for each field, from decoded JSON values."""
    import pyarrow as pa

    converters = [(name, _converter(kind)) for name, kind in fields.fields]
    cells: list[list[Any]] = [[] for _ in converters]
    for value in values:
        known = value if isinstance(value, dict) else {}
        for column, (name, convert) in zip(cells, converters, strict=True):
            column.append(_field(known.get(name), convert))
    types = [arrow_type(kind) for _, kind in fields.fields]
    return [pa.array(column, kind) for column, kind in zip(cells, types, strict=True)]


def arrow_type(kind: Kind) -> Any:
    import pyarrow as pa

    match kind:
        case Simple(name):
            return _arrow_types()[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(arrow_type(element))
        case Map(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case Struct(fields):
            return pa.struct([pa.field(name, arrow_type(field)) for name, field in fields])


def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "STRING": pa.string(), "BIGINT": pa.int64(), "INT": pa.int32(), "SMALLINT": pa.int16(), "TINYINT": pa.int8(),
        "DOUBLE": pa.float64(), "FLOAT": pa.float32(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"), "TIMESTAMP_NTZ": pa.timestamp("us"), "BINARY": pa.binary(),
    }  # fmt: skip


def kind_of(arrow: Any) -> Kind:
    """Returns the kind of an Arrow type, the reverse of ``arrow_type``; Arrow's own name for types of others."""
    import pyarrow as pa

    if pa.types.is_decimal(arrow):
        return Decimal(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        return Map(kind_of(arrow.key_type), kind_of(arrow.item_type))
    if pa.types.is_list(arrow):
        return Array(kind_of(arrow.value_type))
    if pa.types.is_struct(arrow):
        return Struct(tuple((field.name, kind_of(field.type)) for field in arrow))
    names = (name for name, known in _arrow_types().items() if known == arrow)
    return Simple(next(names, str(arrow).upper()))


def _field(value: Any, convert: Converter) -> Any:
    try:
        return None if value is None else convert(value)
    except (Mismatch, RecursionError):
        return None


def _converter(kind: Kind) -> Converter:
    """Returns the function that converts a JSON value other than null. It raises Mismatch."""
    match kind:
        case Simple(name) if name in _WHOLE:
            limit = 1 << (_WHOLE[name] - 1)
            return lambda value: _checked(value, type(value) is int and -limit <= value < limit)
        case Simple(name):
            return _SIMPLE[name]
        case Decimal(precision, scale):
            return lambda value: _decimal(value, precision, scale)
        case Array(element):
            convert = _converter(element)
            return lambda value: _array(value, convert)
        case Map(key, item):
            # Keys of JSON objects are strings, and so must be those of the map.
            convert = _converter(item)
            return lambda value: _map(_checked(value, key == STRING and isinstance(value, dict)), convert)
        case Struct(fields):
            converters = [(name, _converter(field)) for name, field in fields]
            return lambda value: _struct(value, converters)


def _checked(value: Any, matches: bool) -> Any:
    if not matches:
        raise Mismatch
    return value


def _array(value: Any, convert: Converter) -> Any:
    return [None if item is None else convert(item) for item in _checked(value, isinstance(value, list))]


def _map(value: dict[str, Any], convert: Converter) -> Any:
    return [(_text(name), None if item is None else convert(item)) for name, item in value.items()]


def _struct(value: Any, converters: list[tuple[str, Converter]]) -> Any:
    known = _checked(value, isinstance(value, dict))
    return {name: _field(known.get(name), convert) for name, convert in converters}


def _text(value: Any) -> str:
    if isinstance(value, str):
        # Half of a surrogate pair is no character; Java writes a question mark, and so does Python.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return _json_text(value)


def _json_text(value: Any) -> str:
    """Returns JSON as Spark's library writes it."""
    match value:
        case float():
            return java_double(value) if math.isfinite(value) else f'"{java_double(value)}"'
        case list():
            return f"[{','.join(map(_json_text, value))}]"
        case dict():
            return "{" + ",".join(f"{_json_text(name)}:{_json_text(item)}" for name, item in value.items()) + "}"
        case str():
            return '"' + _ESCAPED.sub(_escape, value).encode("utf-8", "replace").decode() + '"'
        case _:
            return json.dumps(value)


def _escape(found: re.Match[str]) -> str:
    """Escapes what Spark's library escapes: also characters beyond 16 bits, as two surrogates."""
    letter = found[0]
    if letter in _SHORT:
        return _SHORT[letter]
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02X}{units[place + 1]:02X}" for place in range(0, len(units), 2))


def java_double(value: float) -> str:
    """Returns a number as Java's Double.toString: 1.5, 1.0E7, 1.0E-4, Infinity."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return _plain_double(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"


def _plain_double(value: float) -> str:
    text = repr(value)
    return text if "e" not in text else f"{decimal.Decimal(text):f}"


def _double(value: Any) -> float:
    if isinstance(value, str):
        _checked(value, value in _NOT_FINITE)
        return _NOT_FINITE[value]
    try:
        return float(_checked(value, isinstance(value, int | float) and not isinstance(value, bool)))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _boolean(value: Any) -> Any:
    return _checked(value, isinstance(value, bool))


def _decimal(value: Any, precision: int, scale: int) -> decimal.Decimal:
    # Python's Decimal also takes spaces and underscores.
    _checked(
        value, not isinstance(value, bool | str) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)
    )
    try:
        number = decimal.Decimal(value.replace(",", "") if isinstance(value, str) else repr(value))
        _checked(value, number.is_finite())
        with decimal.localcontext(prec=2 * precision + 2):
            rounded = number.quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP)
    except decimal.InvalidOperation:
        raise Mismatch from None
    digits = len(rounded.as_tuple().digits)
    return _checked(rounded, digits <= precision)  # type: ignore[no-any-return]


def _moment(value: Any, *, zone: bool) -> tuple[datetime.datetime, bool]:
    """Returns the time that a text has, as UTC, and whether it names a time zone."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise Mismatch
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    whole = [int(part or least) for part, least in zip((year, month, day, hour, minute, second), (1, 1, 1, 0, 0, 0))]  # noqa: B905
    try:
        moment = datetime.datetime(*whole, micros, tzinfo=datetime.UTC)  # type: ignore[arg-type, misc]
        return moment - _offset(offset) if zone else moment, offset is not None
    except (ValueError, OverflowError):
        raise Mismatch from None


def _offset(text: str | None) -> datetime.timedelta:
    if text is None or text in ("Z", "UTC"):
        return datetime.timedelta(0)
    digits = text[1:].replace(":", "")
    hours, minutes = (digits, "0") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    return (-1 if text[0] == "-" else 1) * datetime.timedelta(hours=int(hours), minutes=int(minutes))


def _timestamp(value: Any) -> datetime.datetime:
    if type(value) is int:
        try:
            return _EPOCH + datetime.timedelta(seconds=value)
        except OverflowError:
            raise Mismatch from None
    return _moment(value, zone=True)[0]


def _timestamp_ntz(value: Any) -> datetime.datetime:
    moment, has_zone = _moment(value, zone=False)
    return _checked(moment.replace(tzinfo=None), not has_zone)  # type: ignore[no-any-return]


def _date(value: Any) -> datetime.date:
    """Returns the day of a text, whatever follows it; a text of digits counts days since 1970."""
    text = _checked(value, isinstance(value, str))
    if _DAYS.fullmatch(text):
        return _timestamp(int(text) * 86_400).date()
    return _moment(_AFTER_DAY.sub("", text.strip()), zone=False)[0].date()


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(value, isinstance(value, str)), validate=True)
    except (binascii.Error, ValueError):
        raise Mismatch from None


_SIMPLE: dict[str, Converter] = {
    "STRING": _text, "DOUBLE": _double, "FLOAT": _double, "BOOLEAN": _boolean, "DATE": _date,
    "TIMESTAMP": _timestamp, "TIMESTAMP_NTZ": _timestamp_ntz, "BINARY": _binary,
}  # fmt: skip
