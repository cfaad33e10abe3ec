"""Functions and tables for the generated encoders: lengths, arrays of numbers, tagged fields, type checks."""

import functools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from skep.wire.lazy_array import LazyArray
from skep.wire.primitives import INT32, uvarint

ONE_BYTE_LENGTHS = 127
"""The compact length of a shorter string or array, which is one more, fits into one byte."""

COMPACT_LENGTHS = (*(uvarint(length + 1) for length in range(ONE_BYTE_LENGTHS)), uvarint(0))
"""Indexed by length. Index -1, the last, is null."""

PIECE_ELEMENTS = 64
"""How many elements of an array are encoded between two yields: some 0.1 ms."""

_PREPARED = 16


class NumberArrays(NamedTuple):
    """Encodes arrays of one type of number with their lengths. ``one`` packs ``count_of_one`` and a single number."""

    one: Callable[..., bytes]
    count_of_one: int
    several: Callable[[Sequence[Any]], bytes]
    null: bytes


@functools.cache
def number_arrays(format: str, is_flexible: bool) -> NumberArrays:
    length_format, length_of_empty = ("B", 1) if is_flexible else ("i", 0)
    prepared = [struct.Struct(f">{length_format}{length}{format}").pack for length in range(_PREPARED)]

    def several(values: Sequence[Any]) -> bytes:
        length = len(values)
        if length < _PREPARED:
            return prepared[length](length + length_of_empty, *values)
        packed_length = uvarint(length + 1) if is_flexible else INT32.pack(length)
        return packed_length + struct.pack(f">{length}{format}", *values)

    return NumberArrays(prepared[1], 1 + length_of_empty, several, b"\0" if is_flexible else INT32.pack(-1))


class TaggedField(NamedTuple):
    """A tagged field. ``encode`` takes the mapping that has the field; ``default`` is the encoded default."""

    name: str
    tag: bytes
    encode: Callable[[Mapping[str, Any]], bytes]
    default: bytes


def tagged_fields(body: Mapping[str, Any], fields: Iterable[TaggedField]) -> bytes:
    """Encodes the count, and tag, size and content of each field (KIP-482). A field with its default is left out."""
    count, parts = 0, [b""]
    for field in fields:
        if field.name in body and (content := field.encode(body)) != field.default:
            count += 1
            parts += (field.tag, uvarint(len(content)), content)
    parts[0] = uvarint(count)
    return b"".join(parts)


def check_mapping(value: Any) -> None:
    # Otherwise a list or a string in place of a structure would be encoded as a structure of defaults.
    if not isinstance(value, Mapping):
        raise TypeError(f"a structure must be a mapping, not {value!r:.100}")


def elements(values: Any) -> Sequence[Any]:
    if isinstance(values, LazyArray):
        return values
    if isinstance(values, Mapping | str | bytes | bytearray):
        raise TypeError(f"an array must be a sequence of elements, not {values!r:.100}")
    return tuple(values)


def pieces(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Returns an array in pieces of at most ``PIECE_ELEMENTS``; an empty array has none."""
    if len(values) > PIECE_ELEMENTS:
        return (values[start : start + PIECE_ELEMENTS] for start in range(0, len(values), PIECE_ELEMENTS))
    return (values,) if values else ()


CALLED: dict[str, Any] = {
    "pieces": pieces,
    "compact_lengths": COMPACT_LENGTHS,
    "uvarint": uvarint,
    "tagged_fields": tagged_fields,
    "check_mapping": check_mapping,
    "elements": elements,
}
"""By the names that generated encoders use."""
