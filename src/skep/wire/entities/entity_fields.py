"""The fields of kio's classes, with their layouts and defaults, for encoders.

A response is a mapping that need not have every field of its version. A missing field gets the default of the class. If
the class has none, the field is null if it may be, otherwise zero, empty, or a structure of such values.
"""

import dataclasses
import datetime
import enum
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode


class Layout(NamedTuple):
    """A type of fixed size: its letter in a struct format, and a conversion of the value, if one is needed."""

    format: str
    convert: Callable[[Any], Any] | None = None


def milliseconds(duration: datetime.timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def timestamp_ms(moment: datetime.datetime) -> int:
    return round(moment.timestamp() * 1000)


def nullable_timestamp_ms(moment: datetime.datetime | None) -> int:
    return -1 if moment is None else timestamp_ms(moment)


def uuid_bytes(value: uuid.UUID | None) -> bytes:
    return bytes(16) if value is None else value.bytes


FIXED_SIZE = {
    "bool": Layout("?"),
    "int8": Layout("b"),
    "uint8": Layout("B"),
    "int16": Layout("h"),
    "uint16": Layout("H"),
    "int32": Layout("i"),
    "uint32": Layout("I"),
    "int64": Layout("q"),
    "uint64": Layout("Q"),
    "float64": Layout("d"),
    # An IntEnum, which struct packs as it is.
    "error_code": Layout("h"),
    "timedelta_i32": Layout("i", milliseconds),
    "timedelta_i64": Layout("q", milliseconds),
    "datetime_i64": Layout("q", timestamp_ms),
    # Null is the all-zero id.
    "uuid": Layout("16s", uuid_bytes),
}


class Kind(enum.Enum):
    FIXED_SIZE = enum.auto()
    STRING = enum.auto()
    BYTES = enum.auto()
    ENTITY = enum.auto()


class EntityField(NamedTuple):
    """One field. For an array, ``kind``, ``layout`` and ``nested`` are those of its elements."""

    name: str
    kind: Kind
    is_array: bool
    is_nullable: bool
    default: Any
    tag: int | None = None
    layout: Layout = Layout("")
    nested: Any = None


def fields_of(entity: Any) -> Iterator[EntityField]:
    """Yields the fields of a kio class in the order of the wire. The default of a structure is a mapping."""
    for field in dataclasses.fields(entity):
        hint, is_nullable = _without_none(field.type)
        is_array = typing.get_origin(hint) is tuple
        element = _without_none(typing.get_args(hint)[0])[0] if is_array else hint
        kind, layout = Kind.ENTITY, Layout("")
        if not dataclasses.is_dataclass(element):
            kind, layout = _primitive(field.metadata["kafka_type"], is_nullable)
        yield EntityField(
            name=field.name,
            kind=kind,
            is_array=is_array,
            is_nullable=is_nullable,
            default=_default(field, element, is_array=is_array, is_nullable=is_nullable),
            tag=field.metadata.get("tag"),
            layout=layout,
            nested=element if kind is Kind.ENTITY else None,
        )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    [other] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return other, True


def _primitive(kafka_type: str, is_nullable: bool) -> tuple[Kind, Layout]:
    if kafka_type == "string":
        return Kind.STRING, Layout("")
    if kafka_type in ("bytes", "records"):
        return Kind.BYTES, Layout("")
    if kafka_type == "datetime_i64" and is_nullable:
        return Kind.FIXED_SIZE, Layout("q", nullable_timestamp_ms)
    return Kind.FIXED_SIZE, FIXED_SIZE[kafka_type]


def _default(field: "dataclasses.Field[Any]", element: Any, *, is_array: bool, is_nullable: bool) -> Any:
    if dataclasses.is_dataclass(field.default):
        return dataclasses.asdict(field.default)  # type: ignore[arg-type]
    if field.default is not dataclasses.MISSING:
        return field.default
    if is_nullable:
        return None
    if is_array:
        return ()
    if dataclasses.is_dataclass(element):
        return {}
    return next(zero for base, zero in _ZEROS if issubclass(element, base))


_ZEROS: tuple[tuple[type, Any], ...] = (
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (int, 0),
    (float, 0.0),
    (str, ""),
    (bytes, b""),
    (uuid.UUID, uuid.UUID(int=0)),
    (datetime.timedelta, datetime.timedelta(0)),
    (datetime.datetime, datetime.datetime.fromtimestamp(0, datetime.UTC)),
)
