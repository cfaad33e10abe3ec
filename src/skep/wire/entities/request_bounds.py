"""Checks that the lengths in a request are possible, before kio reads it.

kio reserves memory for all elements that an array announces before it reads the first: forty bytes that announce two
thousand million elements end the process. It also accepts null for an array that must not be null, and treats an
unknown tagged field as an error, although KIP-482 wants it skipped: newer clients send such fields to older brokers. So
a walk over the bytes, generated from the same classes, looks only at lengths. It refuses null arrays, cuts out unknown
tagged fields, and counts the elements of all arrays against one limit: an element may be a single byte on the wire but
is an object in memory.

Every request pays for this, so the walk over a class is compiled, as dataclasses compile their ``__init__``: plain
statements without a call per field, the fields of fixed size added up, an array of them one multiplication. kio refuses
null strings where they are not allowed, numbers out of range and invalid UTF-8.
"""

import dataclasses
import functools
import struct
import types
import typing
from collections.abc import Callable
from typing import Any

from skep.base.errors import DecodeError
from skep.wire.primitives import INT32, MAX_TAGGED_FIELDS, read_uvarint, uvarint

MAX_ELEMENTS = 200_000
"""Five times the elements of a fetch of 20,000 partitions, each of another topic; about 50 MB as objects."""

_INT16 = struct.Struct(">h")

_FIXED_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}

Cuts = list[tuple[int, int, bytes]]
"""Replacements in the frame as (start, end, new bytes), in the order of the frame."""

Walk = Callable[[memoryview, int, int, Cuts], tuple[int, int]]
"""Takes a frame, a position, the elements left of the limit, and cuts. Returns position and elements after the walk.

The position may end up past the end of the frame. A read there raises IndexError or struct.error.
"""


class TooManyElements(DecodeError):
    """The arrays and tagged fields of a request have too many elements. ``count`` is the size of the last one."""

    def __init__(self, count: int) -> None:
        super().__init__(f"an array of {count} elements exceeds the limit of a request (skep.max.request.elements)")


class RequestBounds:
    """Checks the requests of one class."""

    __slots__ = ("_walk",)

    def __init__(self, entity: Any) -> None:
        self._walk = walk_of(entity)

    def checked(self, frame: memoryview, position: int, max_elements: int = MAX_ELEMENTS) -> tuple[memoryview, int]:
        """Returns bytes and a position for kio: the frame itself, or a copy without unknown tagged fields.

        Raises TooManyElements beyond ``max_elements``, another DecodeError for impossible lengths.
        """
        cuts: Cuts = []
        try:
            end, _ = self._walk(frame, position, max_elements, cuts)
        except (IndexError, struct.error):
            raise DecodeError("the frame ends inside the request") from None
        if end > len(frame):
            raise DecodeError("the frame ends inside the request")
        return (memoryview(cut(frame, position, cuts)), 0) if cuts else (frame, position)


def cut(frame: memoryview, position: int, cuts: Cuts) -> bytes:
    parts: list[bytes | memoryview] = []
    for start, end, instead in cuts:
        parts += (frame[position:start], instead)
        position = end
    return b"".join((*parts, frame[position:]))


class _Statements:
    """Generates the statements of one walk. ``_skipped`` counts bytes of fixed size that are not added to ``p`` yet."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"i16": _INT16.unpack_from, "i32": INT32.unpack_from, **_CALLED}
        self._indent = 1
        self._skipped = 0

    def entity(self, entity: Any) -> "_Statements":
        for field in dataclasses.fields(entity):
            if "tag" not in field.metadata:
                self.field(entity, field)
        if entity.__flexible__:
            self.flush()
            known = f"known{len(self.names)}"
            self.names[known] = _tagged_fields(entity)
            self._add(
                "if frame[p]:", f"    p, left = walk_tagged(frame, p, left, cuts, {known})", "else:", "    p += 1"
            )
        return self

    def field(self, entity: Any, field: "dataclasses.Field[Any]") -> "_Statements":
        hint, is_nullable = _without_none(field.type)
        kafka_type = field.metadata.get("kafka_type", "")
        if typing.get_origin(hint) is tuple:
            element, _ = _without_none(typing.get_args(hint)[0])
            self._array(entity, element, kafka_type, is_nullable)
        elif dataclasses.is_dataclass(hint):
            self._nested(hint, is_nullable)
        else:
            self._primitive(entity, kafka_type)
        return self

    def _add(self, *lines: str) -> None:
        self.lines += ["    " * self._indent + line for line in lines]

    def flush(self) -> None:
        if self._skipped:
            self._add(f"p += {self._skipped}")
            self._skipped = 0

    def _primitive(self, entity: Any, kafka_type: str) -> None:
        if kafka_type in _FIXED_SIZES:
            self._skipped += _FIXED_SIZES[kafka_type]
            return
        assert kafka_type in ("string", "bytes", "records"), f"kio has a new type, {kafka_type}"
        self.flush()
        if entity.__flexible__:
            self._add(
                "n = frame[p]",
                "if n < 128:",
                "    p += n or 1",
                "elif (m := frame[p + 1]) < 128:",
                "    p += 1 + (n & 127 | m << 7 or 1)",
                "else:",
                "    p = end_of_bytes(frame, p)",
            )
            return
        read, size = ("i16", 2) if kafka_type == "string" else ("i32", 4)
        self._add(f"n, = {read}(frame, p)", f"p += n + {size} if n > 0 else {size}")

    def _nested(self, entity: Any, is_nullable: bool) -> None:
        if not is_nullable:
            self.entity(entity)
            return
        self.flush()
        self._add("p += 1", "if frame[p - 1] != 255:")
        self._indent += 1
        self.entity(entity)
        self.flush()
        self._add("pass")
        self._indent -= 1

    def _array(self, entity: Any, element: Any, kafka_type: str, is_nullable: bool) -> None:
        self.flush()
        count = f"c{self._indent}"
        if entity.__flexible__:
            self._add(f"{count} = frame[p]", f"if {count} < 128: p += 1", f"else: {count}, p = uvarint(frame, p)")
            self._add(f"{count} -= 1")
        else:
            self._add(f"{count}, = i32(frame, p)", "p += 4")
        self._add(f"if {count} < {-1 if is_nullable else 0}: refuse_null()")
        # A null array has the count -1, which must not increase ``left``.
        self._add(f"if {count} > 0: left -= {count}")
        self._add(f"if left < 0: refuse_count({count})", f"for _ in range({count}):")
        before = len(self.lines)
        self._indent += 1
        if dataclasses.is_dataclass(element):
            self.entity(element)
        else:
            self._primitive(entity, kafka_type)
        if len(self.lines) == before:
            # Elements of fixed size need no loop.
            self.lines.pop()
            self._indent -= 1
            self._add(f"if {count} > 0: p += {count} * {self._skipped}")
            self._skipped = 0
        else:
            self.flush()
            self._indent -= 1


def walk_of(entity: Any) -> Walk:
    """Returns the walk over a whole structure."""
    return _compiled(_Statements().entity(entity))


def field_walk(entity: Any, name: str) -> Walk:
    """Returns the walk over one field without a tag."""
    [field] = [field for field in dataclasses.fields(entity) if field.name == name]
    return _compiled(_Statements().field(entity, field))


def tagged_walk(entity: Any) -> Walk | None:
    """Returns the walk over the tagged fields at the end of a structure; None if the version has none."""
    if not entity.__flexible__:
        return None
    return functools.partial(_walk_tagged, known=_tagged_fields(entity))


def _tagged_fields(entity: Any) -> dict[int, Walk]:
    return {
        int(field.metadata["tag"]): _compiled(_Statements().field(entity, field))
        for field in dataclasses.fields(entity)
        if "tag" in field.metadata
    }


def _compiled(statements: _Statements) -> Walk:
    statements.flush()
    source = "\n".join(("def walk(frame, p, left, cuts):", *statements.lines, "    return p, left"))
    exec(source, statements.names)
    walk: Walk = statements.names["walk"]
    return walk


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    [other] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return other, True


# Called by the compiled statements in the rare cases.


def _end_of_bytes(frame: memoryview, position: int) -> int:
    length, position = read_uvarint(frame, position)
    return position + max(length - 1, 0)


def _refuse_null() -> None:
    raise DecodeError("an array is null but must not be")


def _refuse_count(count: int) -> None:
    raise TooManyElements(count)


def _walk_tagged(frame: memoryview, start: int, left: int, cuts: Cuts, known: dict[int, Walk]) -> tuple[int, int]:
    count, position = read_uvarint(frame, start)
    if count > MAX_TAGGED_FIELDS:
        raise DecodeError(f"a structure has {count} tagged fields; at most {MAX_TAGGED_FIELDS} are allowed")
    left -= count
    if left < 0:
        _refuse_count(count)
    kept: list[bytes] = []
    is_cut = False
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        length, position = read_uvarint(frame, position)
        if position + length > len(frame):
            raise DecodeError("the frame ends inside a tagged field")
        if tag in known:
            cuts_within: Cuts = []
            end, left = known[tag](frame, position, left, cuts_within)
            if end != position + length:
                raise DecodeError(f"tagged field {tag} announces {length} bytes but has {end - position}")
            is_cut |= bool(cuts_within)
            content = cut(frame[:end], position, cuts_within)
            kept.append(uvarint(tag) + uvarint(len(content)) + content)
        position += length
    if is_cut or len(kept) < count:
        cuts.append((start, position, uvarint(len(kept)) + b"".join(kept)))
    return position, left


_CALLED: dict[str, Any] = {
    "uvarint": read_uvarint,
    "end_of_bytes": _end_of_bytes,
    "refuse_null": _refuse_null,
    "refuse_count": _refuse_count,
    "walk_tagged": _walk_tagged,
}
