"""The layout of coordinator records: classes that kio reads and writes, preceded by a version or a kind.

A key begins with an int16 that says what kind of record it is, a value with the int16 of its version. The rest is
Kafka's encoding, so Kafka's own tools can read these topics. kio generates classes for requests only; the classes
declared here have the same shape, so that kio's reader and writer accept them.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType
from kio.static.primitive import i16

from skep.base.errors import DecodeError
from skep.wire.entities.encoders import entity_encoder
from skep.wire.entities.request_bounds import RequestBounds

_L = TypeVar("_L", bound="Layout")
_INT16 = struct.Struct(">h")


class Layout:
    """The base of the classes that ``layout`` makes. ``kind`` is the number that precedes a key, and -1 for a value."""

    __slots__ = ()
    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16]
    __flexible__: ClassVar[bool]
    kind: ClassVar[int]

    def encode(self) -> bytes:
        """Encodes a key after its kind, or a value after its version."""
        cls: Any = type(self)
        return _INT16.pack(self.__version__ if self.kind < 0 else self.kind) + entity_encoder(cls)(_mapping(self))


def _mapping(entity: Layout) -> dict[str, Any]:
    """Returns the input of an encoder: the fields by name, nested ones as mappings too."""
    mapping: dict[str, Any] = {}
    for name, is_nested in _names(cast(Any, type(entity))):
        value = getattr(entity, name)
        if is_nested and value is not None:
            value = [_mapping(part) for part in value] if isinstance(value, tuple) else _mapping(value)
        mapping[name] = value
    return mapping


@functools.cache
def _names(cls: Any) -> list[tuple[str, bool]]:
    return [(field.name, "kafka_type" not in field.metadata) for field in dataclasses.fields(cls)]


def _field(kafka_type: str, default: Any, tag: int | None) -> Any:
    metadata: dict[str, Any] = {"kafka_type": kafka_type} if kafka_type else {}
    if tag is not None:
        metadata["tag"] = tag
    return dataclasses.field(default=default, metadata=metadata)


def int8(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("int8", default, tag)


def int16(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("int16", default, tag)


def int32(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("int32", default, tag)


def int64(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("int64", default, tag)


def string(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("string", default, tag)


def bytes_(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("bytes", default, tag)


def uuid_(*, default: Any = MISSING, tag: int | None = None) -> Any:
    return _field("uuid", default, tag)


def nested(*, default: Any = MISSING, tag: int | None = None) -> Any:
    """A field that holds other layout classes.

    kio writes a nullable structure in a tagged field without the byte that says that it is present (KIP-893), and
    expects none when it reads. Declare such a field without ``None``, with an ``int8`` of 1 as the first field of what
    it holds.
    """
    return _field("", default, tag)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(int8, int16, int32, int64, string, bytes_, uuid_, nested),
)
def layout(*, version: int = 0, flexible: bool = False, kind: int = -1) -> Callable[[type[_L]], type[_L]]:
    """Makes a class a layout of that version, or of a key of that kind."""

    def declare(cls: type[_L]) -> type[_L]:
        cls.__version__ = i16(version)
        cls.__flexible__ = flexible
        cls.kind = kind
        return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)

    return declare


def decode(cls: type[_L], data: bytes) -> _L:
    """Decodes what ``Layout.encode`` wrote. Raises ValueError for damaged bytes, or for a value of another version."""
    if cls.kind < 0 and (version := leading_number(data)) != cls.__version__:
        raise ValueError(f"{cls.__name__}: version {version}, expected {cls.__version__}")
    try:
        # kio trusts the lengths that it reads: a damaged one would make it allocate that many bytes.
        frame, position = _bounds(cast(Any, cls)).checked(memoryview(data), _INT16.size)
        entity, _ = entity_reader(cast(Any, cls))(frame, position)
    except (DecodeError, SerialError, ValueError, OverflowError, IndexError) as error:
        raise ValueError(f"{cls.__name__}: {error!r}") from None
    return cast(_L, entity)


@functools.cache
def _bounds(cls: Any) -> RequestBounds:
    return RequestBounds(cls)


def leading_number(data: bytes) -> int:
    """Returns the kind of a key, or the version of a value. Raises ValueError when the bytes are too few."""
    if len(data) < _INT16.size:
        raise ValueError(f"a coordinator record of {len(data)} bytes is too short for its leading int16")
    return int(_INT16.unpack_from(data)[0])
