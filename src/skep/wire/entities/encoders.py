"""Encoders for the classes of kio, each compiled from the fields of its class when it is first needed.

A response is nested mappings. kio would need nested objects, and decide for every field of each how it is written. What
an encoder does for a class never changes, so it is generated once, as dataclasses generate their ``__init__``: one
function without a call per field. Neighbouring fields of fixed size are one ``pack``, nested arrays are loops. The
partitions of an OffsetCommit response, version 9, become

    for each_10 in partitions_8:
        if each_10.__class__ is not dict: check_mapping(each_10)
        add(pack_11(
            each_10['partition_index'] if 'partition_index' in each_10 else 0,
            each_10['error_code'] if 'error_code' in each_10 else 0,
        ))

with ``pack_11`` for ">ihx"; the last byte is the count of tagged fields, 0. Subscripts are used because ``get`` is a
call.

A value that does not fit its field is a bug of ours. It raises struct.error, TypeError or AttributeError, and the
traceback shows the generated line with the name of the field.
"""

import functools
import linecache
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from skep.wire.entities.encoder_parts import CALLED, ONE_BYTE_LENGTHS, NumberArrays, TaggedField, number_arrays
from skep.wire.entities.entity_fields import EntityField, Kind, fields_of
from skep.wire.primitives import compact_string, string, uvarint

ResponseEncoder = Callable[[int, Mapping[str, Any], list[bytes]], Iterator[None]]
"""Takes correlation id, body and a list, and appends the whole response, header included, to the list.

Yields at least after every ``PIECE_ELEMENTS`` elements of an array: a response may have a hundred thousand.
"""


def response_encoder(entity: Any, *, has_header_tags: bool) -> ResponseEncoder:
    source = _Source(yields=True)
    source.fixed("i", "correlation_id")
    if has_header_tags:
        source.fixed("x")
    source.entity(entity, "body")
    encode: ResponseEncoder = source.compiled(entity, "correlation_id, body, out")
    return encode


@functools.cache
def entity_encoder(entity: Any) -> Callable[[Mapping[str, Any]], bytes]:
    source = _Source()
    source.entity(entity, "body")
    encode: Callable[[Mapping[str, Any]], bytes] = source.compiled(entity, "body")
    return encode


class _Source:
    """Generates the statements of one encoder.

    Lines that only look values up are added at once. Expressions that make bytes are collected: ``_format`` and
    ``_values`` are the fields of fixed size since the last other field, ``_parts`` the expressions before them.
    ``flush`` adds them in the order of the fields. It is called before every other line that appends to ``out``.

    With ``yields`` the encoder is a generator that appends to a given list; otherwise it returns bytes.
    """

    def __init__(self, *, yields: bool = False) -> None:
        self._yields = yields
        self._lines: list[str] = []
        self._names: dict[str, Any] = dict(CALLED)
        self._indent = 1
        self._format = ""
        self._values: list[str] = []
        self._parts: list[str] = []
        self._last_number = 0

    def compiled(self, entity: Any, parameters: str, of: str = "") -> Any:
        self.flush()
        head, end = [f"def encode({parameters}):", "    add = out.append"], ["    yield", ""]
        if not self._yields:
            head.insert(1, "    out = []")
            end = ["    return b''.join(out)", ""]
        source = "\n".join((*head, *self._lines, *end))
        name = f"<encoder of {entity.__name__} v{entity.__version__}{of}>"
        exec(compile(source, name, "exec"), self._names)
        # For tracebacks, because there is no source file.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        return self._names["encode"]

    def fixed(self, format: str, *values: str) -> None:
        self._format += format
        self._values += values

    def entity(self, entity: Any, mapping: str) -> None:
        self._line(f"if {mapping}.__class__ is not dict: check_mapping({mapping})")
        tagged: dict[int, EntityField] = {}
        for field in fields_of(entity):
            if field.tag is None:
                self.field(field, mapping, entity.__flexible__)
            else:
                tagged[field.tag] = field
        if tagged:
            names = self._bind("names", frozenset(field.name for field in tagged.values()))
            fields = self._bind("tagged", [_tagged_field(entity, tag, tagged[tag]) for tag in sorted(tagged)])
            self._part(rf"b'\0' if {names}.isdisjoint({mapping}) else tagged_fields({mapping}, {fields})")
        elif entity.__flexible__:
            self.fixed("x")

    def field(self, field: EntityField, mapping: str, is_flexible: bool) -> None:
        if field.is_array:
            self._array(field, mapping, is_flexible)
        elif field.kind is Kind.ENTITY:
            self._nested(field, mapping)
        elif field.kind is Kind.FIXED_SIZE:
            self.fixed(field.layout.format, self._fixed_value(field, mapping))
        else:
            self._bytes(field, mapping, is_flexible)

    def flush(self) -> None:
        self._flush_fixed()
        if len(self._parts) == 1:
            self._line(f"add({self._parts[0]})")
        elif self._parts:
            self._line(f"out += ({', '.join(self._parts)})")
        self._parts = []

    def _flush_fixed(self) -> None:
        if not self._format:
            return
        packer = struct.Struct(">" + self._format)
        if self._values:
            self._parts.append(f"{self._bind('pack', packer.pack)}({', '.join(self._values)})")
        else:
            self._parts.append(repr(packer.pack()))
        self._format, self._values = "", []

    def _part(self, expression: str) -> None:
        self._flush_fixed()
        self._parts.append(expression)

    def _line(self, *lines: str) -> None:
        self._lines += ["    " * self._indent + line for line in lines]

    def _new(self, prefix: str) -> str:
        self._last_number += 1
        return f"{prefix}_{self._last_number}"

    def _bind(self, prefix: str, value: Any) -> str:
        """Returns a name for ``value`` in the generated function."""
        name = self._new(prefix)
        self._names[name] = value
        return name

    def _value(self, field: EntityField, mapping: str) -> str:
        default = self._bind("default", field.default) if isinstance(field.default, dict) else repr(field.default)
        return f"{mapping}[{field.name!r}] if {field.name!r} in {mapping} else {default}"

    def _fixed_value(self, field: EntityField, mapping: str) -> str:
        convert = field.layout.convert
        if convert is None:
            # Floats and 64-bit integers are exact in decimal. An enumeration is written as its number.
            plain = field.default if isinstance(field.default, float | bool) else int(field.default)
            return self._value(field._replace(default=plain), mapping)
        value = f"{self._bind(convert.__name__, convert)}({mapping}[{field.name!r}])"
        return f"{value} if {field.name!r} in {mapping} else {convert(field.default)!r}"

    def _bytes(self, field: EntityField, mapping: str, is_flexible: bool) -> None:
        value, length = self._new(field.name), self._new("length")
        encode = [f"{value} = {value}.encode()"] if field.kind is Kind.STRING else []
        self._line(f"{value} = {self._value(field, mapping)}")
        self._null_or(field, value, f"{length}, {value} = -1, b''", *encode, f"{length} = len({value})")
        self._length(length, is_flexible, "h" if field.kind is Kind.STRING else "i")
        self._part(value)

    def _null_or(self, field: EntityField, value: str, null: str, *lines: str) -> None:
        """Adds ``null`` for a value that is None, if it may be, and the lines for all others."""
        if field.is_nullable:
            self._line(f"if {value} is None: {null}", "else:")
        self._indent += field.is_nullable
        self._line(*lines)
        self._indent -= field.is_nullable

    def _length(self, length: str, is_flexible: bool, legacy_format: str) -> None:
        if is_flexible:
            self._part(f"compact_lengths[{length}] if {length} < {ONE_BYTE_LENGTHS} else uvarint({length} + 1)")
        else:
            self.fixed(legacy_format, length)

    def _nested(self, field: EntityField, mapping: str) -> None:
        nested = self._new(field.name)
        self._line(f"{nested} = {self._value(field, mapping)}")
        if not field.is_nullable:
            self.entity(field.nested, nested)
            return
        # KIP-893: a byte says whether the structure follows.
        self.flush()
        self._line(rf"if {nested} is None: add(b'\xff')", "else:")
        self._indent += 1
        self.fixed("b", "1")
        self.entity(field.nested, nested)
        self.flush()
        self._indent -= 1

    def _array(self, field: EntityField, mapping: str, is_flexible: bool) -> None:
        values, length = self._new(field.name), self._new("length")
        self._line(f"{values} = {self._value(field, mapping)}")
        sized = f"if {values}.__class__ is not tuple and {values}.__class__ is not list: {values} = elements({values})"
        if field.kind is Kind.FIXED_SIZE and field.layout.convert is None:
            self._numbers(field, values, sized, number_arrays(field.layout.format, is_flexible))
            return
        assert field.kind is not Kind.BYTES, "kio has a new kind of array"
        self._null_or(field, values, f"{length}, {values} = -1, ()", sized, f"{length} = len({values})")
        self._length(length, is_flexible, "i")
        if field.kind is Kind.ENTITY:
            self._loop(field, values)
            return
        encode = field.layout.convert or (compact_string if is_flexible else string)
        self._part(f"b''.join([{self._bind(encode.__name__, encode)}(x) for x in {values}])")

    def _numbers(self, field: EntityField, values: str, sized: str, arrays: NumberArrays) -> None:
        packed, only = self._new("packed"), self._new("only")
        one, several = self._bind("one", arrays.one), self._bind("several", arrays.several)
        # Most arrays are the replicas of a partition with one. A call with a known number of arguments is cheaper.
        self._null_or(
            field,
            values,
            f"{packed} = {arrays.null!r}",
            sized,
            f"if len({values}) == 1:",
            f"    {only}, = {values}",
            f"    {packed} = {one}({arrays.count_of_one}, {only})",
            f"else: {packed} = {several}({values})",
        )
        self._part(packed)

    def _loop(self, field: EntityField, values: str) -> None:
        self.flush()
        element = self._new("each")
        if self._yields:
            piece = self._new("piece")
            self._line(f"for {piece} in pieces({values}):")
            self._indent += 1
            values = piece
        self._line(f"for {element} in {values}:")
        self._indent += 1
        self.entity(field.nested, element)
        self.flush()
        self._indent -= 1
        if self._yields:
            self._line("yield")
            self._indent -= 1


def _tagged_field(entity: Any, tag: int, field: EntityField) -> TaggedField:
    assert field.kind is not Kind.ENTITY or field.is_array or not field.is_nullable, "kio has a new kind of field"
    source = _Source()
    source.field(field, "body", entity.__flexible__)
    encode: Callable[[Mapping[str, Any]], bytes] = source.compiled(entity, "body", of=f", {field.name}")
    return TaggedField(field.name, uvarint(tag), encode, encode({}))
