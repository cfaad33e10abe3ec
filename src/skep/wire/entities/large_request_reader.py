"""Reads a request with very many elements, as work for a ``Slicer``.

kio reads a request in one call. With a hundred thousand elements that call takes up to half a second, and nothing else
runs meanwhile. Here the arrays are taken apart: each element is checked (``request_bounds.py``) and read by kio on its
own. kio also reads the structure around them, from a copy in which the arrays are empty. The result is the same object.

The frame must not change until the work has ended. That holds for large frames, which have a buffer of their own
(``frame_reader.py``).
"""

import dataclasses
import functools
import struct
from collections.abc import Generator
from typing import Any, NamedTuple

from kio.serial import entity_reader

from skep.base.errors import DecodeError
from skep.wire.entities.entity_fields import EntityField, Kind, fields_of
from skep.wire.entities.request_bounds import Cuts, TooManyElements, Walk, cut, field_walk, tagged_walk, walk_of
from skep.wire.primitives import INT32, read_uvarint

ELEMENTS_AT_ONCE = 64
BYTES_AT_ONCE = 256 * 1024
"""How much is read between two yields; more if one element is longer. kio copies what an element holds."""

_INT16 = struct.Struct(">h")
_Read = Generator[None, None, tuple[Any, int, int]]
"""Returns the object, the position behind it, and the elements left of the limit."""


class _Step(NamedTuple):
    """One field: an array that is taken apart, or the walk over a field of another kind."""

    name: str
    array: EntityField | None
    walk: Walk | None


class LargeRequestReader:
    """Reads the structures of one class."""

    def __init__(self, entity: Any) -> None:
        self._entity = entity
        self._walk = walk_of(entity)
        self._by_kio = entity_reader(entity)
        self._tags = tagged_walk(entity)
        self._empty_array = b"\1" if entity.__flexible__ else INT32.pack(0)
        fields = [field for field in fields_of(entity) if field.tag is None]
        self._steps = [_step(entity, field) for field in fields]
        self._is_leaf = not any(step.array for step in self._steps)

    def read(self, frame: memoryview, position: int, max_elements: int) -> Generator[None, None, Any]:
        """Returns the request at ``position``. Raises DecodeError or kio's errors if the bytes are not a request."""
        try:
            request, end, _ = yield from self._read(frame.toreadonly(), position, max_elements)
        except (IndexError, struct.error):
            raise DecodeError("the frame ends inside the request") from None
        if end > len(frame):
            raise DecodeError("the frame ends inside the request")
        return request

    def _read(self, frame: memoryview, position: int, left: int) -> _Read:
        start, cuts = position, Cuts()
        arrays: dict[str, tuple[Any, ...]] = {}
        for name, array, walk in self._steps:
            if array is None:
                assert walk is not None
                position, left = walk(frame, position, left, cuts)
                continue
            begin = position
            count, position = self._count(frame, position, array)
            if count < 0:
                continue
            left -= count
            if left < 0:
                raise TooManyElements(count)
            arrays[name], position, left = yield from self._elements(frame, position, left, array, count)
            cuts.append((begin, position, self._empty_array))
        if self._tags is not None:
            position, left = self._tags(frame, position, left, cuts)
        if position > len(frame):
            raise IndexError
        surrounding, _ = self._by_kio(memoryview(cut(frame[:position], start, cuts)), 0)
        return dataclasses.replace(surrounding, **arrays), position, left

    def _count(self, frame: memoryview, position: int, array: EntityField) -> tuple[int, int]:
        if self._entity.__flexible__:
            count, position = read_uvarint(frame, position)
            count -= 1
        else:
            (count,) = INT32.unpack_from(frame, position)
            position += INT32.size
        if count < (-1 if array.is_nullable else 0):
            raise DecodeError("an array is null but must not be")
        return count, position

    def _elements(self, frame: memoryview, position: int, left: int, array: EntityField, count: int) -> _Read:
        elements = []
        if array.kind is Kind.STRING:
            for number in range(count):
                text, position = self._string(frame, position)
                elements.append(text)
                if not number % ELEMENTS_AT_ONCE:
                    yield
            return tuple(elements), position, left
        reader = large_request_reader(array.nested)
        paused = position
        for number in range(count):
            if reader._is_leaf:
                element, position, left = reader._read_leaf(frame, position, left)
            else:
                element, position, left = yield from reader._read(frame, position, left)
            elements.append(element)
            if not number % ELEMENTS_AT_ONCE or position - paused >= BYTES_AT_ONCE:
                paused = position
                yield
        return tuple(elements), position, left

    def _read_leaf(self, frame: memoryview, position: int, left: int) -> tuple[Any, int, int]:
        cuts = Cuts()
        end, left = self._walk(frame, position, left, cuts)
        if end > len(frame):
            raise IndexError
        if cuts:
            element, _ = self._by_kio(memoryview(cut(frame[:end], position, cuts)), 0)
        else:
            element, _ = self._by_kio(frame, position)
        return element, end, left

    def _string(self, frame: memoryview, position: int) -> tuple[str, int]:
        if self._entity.__flexible__:
            length, position = read_uvarint(frame, position)
            length -= 1
        else:
            (length,) = _INT16.unpack_from(frame, position)
            position += _INT16.size
        end = position + length
        if length < 0 or end > len(frame):
            raise DecodeError("a string is null but must not be, or the frame ends inside it")
        return str(frame[position:end], "utf-8"), end


@functools.cache
def large_request_reader(entity: Any) -> LargeRequestReader:
    return LargeRequestReader(entity)


def _step(entity: Any, field: EntityField) -> _Step:
    if field.is_array and field.kind in (Kind.ENTITY, Kind.STRING):
        return _Step(field.name, field, None)
    return _Step(field.name, None, field_walk(entity, field.name))
