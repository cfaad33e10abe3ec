"""The columns of a topic: the fields of its JSON values with types, given as Spark's DDL or inferred from a sample.

The rules of inference are those of Spark's JSON source, so that both engines have the same columns. A whole number is
a BIGINT, or a DECIMAL if it has more digits; another number is a DOUBLE. Types of different records are joined: BIGINT
and DOUBLE become DOUBLE, structs get the fields of both, null and the empty string agree with every type, and types
that have nothing in common become STRING. Fields are sorted by name. A field that is null in the whole sample is a
STRING; an object that is always empty is left out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from skep.cli.failures import UsageError

RECORD_COLUMNS = ("_key", "_value", "_partition", "_offset", "_timestamp")
MAX_PRECISION = 38
MAX_DEPTH = 50
"""What is nested deeper is a STRING. Values come from anybody, and types of a thousand levels end in a crash."""
_CORRUPT = "_corrupt_record"
_LONG = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class Simple:
    name: str

    def ddl(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decimal:
    precision: int
    scale: int = 0

    def ddl(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True)
class Array:
    element: "Kind"

    def ddl(self) -> str:
        return f"ARRAY<{self.element.ddl()}>"


@dataclass(frozen=True)
class Map:
    key: "Kind"
    value: "Kind"

    def ddl(self) -> str:
        return f"MAP<{self.key.ddl()}, {self.value.ddl()}>"


@dataclass(frozen=True)
class Struct:
    fields: tuple[tuple[str, "Kind"], ...]

    def ddl(self) -> str:
        return f"STRUCT<{', '.join(f'{shown_name(name)}: {kind.ddl()}' for name, kind in self.fields)}>"

    def columns(self) -> str:
        """Returns the DDL of a table with these columns."""
        return ", ".join(f"{shown_name(name)} {kind.ddl()}" for name, kind in self.fields)

    def names(self) -> list[str]:
        return [name for name, _ in self.fields]


Kind = Simple | Decimal | Array | Map | Struct
STRING, BIGINT, DOUBLE, BOOLEAN = (Simple(name) for name in ("STRING", "BIGINT", "DOUBLE", "BOOLEAN"))
VOID = Simple("VOID")
"""The type of null, which agrees with every other."""
RECORD_KINDS = dict(zip(RECORD_COLUMNS, (STRING, STRING, Simple("INT"), BIGINT, Simple("TIMESTAMP")), strict=True))


def shown_name(name: str) -> str:
    """Returns a name as a query has to write it: in backticks unless it is a plain word."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "`" + name.replace("`", "``") + "`"


def columns_of(fields: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the fields that become columns, and those that do not because they differ from a column only in case."""
    columns: dict[str, str] = {}
    duplicates: list[str] = []
    # Of "product" and "Product" the lower-case one is kept: lower-case letters sort after upper-case ones.
    for field in sorted(fields, reverse=True):
        if field.lower() in (*RECORD_COLUMNS, _CORRUPT):
            continue
        if columns.setdefault(field.lower(), field) != field:
            duplicates.append(field)
    kept = set(columns.values())
    return [field for field in fields if field in kept], sorted(duplicates)


def inferred(values: Iterable[Any]) -> Struct:
    """Returns the fields of decoded JSON values. Values that are not objects, or arrays of objects, do not count."""
    found = Struct(())
    for value in values:
        kind = _kind_of(value)
        if isinstance(kind, Array):
            kind = kind.element
        if isinstance(kind, Struct):
            found = _joined_structs(found, kind)
    return _tidy(found, nested=False) or Struct(())


def _kind_of(value: Any, depth: int = 0) -> Kind:
    match value:
        case None | "":
            return VOID
        case bool():
            return BOOLEAN
        case str():
            return STRING
        case float():
            return DOUBLE
        case int():
            digits = len(str(abs(value)))
            return BIGINT if value in _LONG else Decimal(digits) if digits <= MAX_PRECISION else DOUBLE
        case _ if depth == MAX_DEPTH:
            return STRING
        case list():
            nothing: Kind = VOID
            return Array(reduce(_joined, (_kind_of(item, depth + 1) for item in value), nothing))
        case _:
            return Struct(tuple(sorted((name, _kind_of(item, depth + 1)) for name, item in value.items() if name)))


def _joined(one: Kind, other: Kind) -> Kind:
    """Returns the type for values of both types."""
    if one == other or other == VOID:
        return one
    if one == VOID:
        return other
    match one, other:
        case Struct(), Struct():
            return _joined_structs(one, other)
        case Array(), Array():
            return Array(_joined(one.element, other.element))
        case Decimal(), Decimal():
            return Decimal(max(one.precision, other.precision))
    numbers = {type(kind) if isinstance(kind, Decimal) else kind for kind in (one, other)}
    if numbers == {BIGINT, Decimal}:
        # Spark's type for every BIGINT is DECIMAL(20,0).
        return Decimal(max(20, *(kind.precision for kind in (one, other) if isinstance(kind, Decimal))))
    return DOUBLE if numbers <= {BIGINT, DOUBLE, Decimal} else STRING


def _joined_structs(one: Struct, other: Struct) -> Struct:
    if one == other:
        return one
    fields = dict(one.fields)
    for name, kind in other.fields:
        fields[name] = _joined(fields[name], kind) if name in fields else kind
    return Struct(tuple(sorted(fields.items(), key=lambda field: field[0])))


def _tidy(kind: Kind, *, nested: bool = True) -> Any:
    """Returns the type of a column; None for an object without fields."""
    match kind:
        case Struct():
            # Neither engine tells fields of a struct apart that differ only in case. (At the top a message says so.)
            one_each = {name.lower(): name for name, _ in kind.fields} if nested else {}
            tidied = ((name, _tidy(item)) for name, item in kind.fields if one_each.get(name.lower(), name) == name)
            fields = tuple((name, item) for name, item in tidied if item is not None)
            return Struct(fields) if fields else None
        case Array():
            element = _tidy(kind.element)
            return None if element is None else Array(element)
    return STRING if kind == VOID else kind


# The DDL of --schema.

_SIMPLE = {
    "STRING": "STRING", "BIGINT": "BIGINT", "LONG": "BIGINT", "INT": "INT", "INTEGER": "INT", "SMALLINT": "SMALLINT",
    "SHORT": "SMALLINT", "TINYINT": "TINYINT", "BYTE": "TINYINT", "DOUBLE": "DOUBLE", "FLOAT": "FLOAT",
    "REAL": "FLOAT", "BOOLEAN": "BOOLEAN", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP", "TIMESTAMP_LTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ", "BINARY": "BINARY",
}  # fmt: skip
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_TOKENS = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([^\W]+|[<>(),:]))")


class UnknownType(UsageError):
    """A type that is not known here. Spark may know it."""


def parse_ddl(text: str) -> Struct:
    """Parses ``id INT, tags ARRAY<STRING>``. Raises UsageError if the text is not like that."""
    parser = _DdlParser(text)
    fields = parser.fields("")
    return Struct(fields)


class _DdlParser:
    """Tokens of the text, from the left to the right. A quoted name is a tuple, everything else a string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str | tuple[str]] = []
        place = 0
        while place < len(text.rstrip()):
            found = _TOKENS.match(text, place)
            if found is None:
                raise self._refused(f"unexpected '{text[place:].strip()[0]}'")
            quoted, comment, word = found.groups()
            self._tokens.append((quoted.replace("``", "`"),) if quoted else comment or word)
            place = found.end()

    def fields(self, closed_by: str) -> tuple[tuple[str, Kind], ...]:
        found: dict[str, Kind] = {}
        while True:
            name = self._take("a name")
            if isinstance(name, str) and not re.fullmatch(r"\w+", name):
                raise self._refused(f"expected a name, not {name}")
            plain = name[0] if isinstance(name, tuple) else name
            if self._next() == ":":
                self._take(":")
            if plain in found:
                raise self._refused(f"the field {plain} is given twice")
            found[plain] = self._kind(plain)
            if self._word() == "NOT":
                self._take("NOT")
                self._expect("NULL")
            if self._word() == "COMMENT":
                self._take("COMMENT")
                self._take("a comment")
            separator = self._take("the end") if self._tokens or closed_by else ""
            if separator == closed_by:
                return tuple(found.items())
            if separator != ",":
                shown = separator if isinstance(separator, str) else separator[0]
                raise self._refused(f"expected {closed_by or 'a comma'} after the field {plain}, not {shown}")

    def _kind(self, field: str) -> Kind:
        name = self._take(f"a type for the field {field}")
        word = name.upper() if isinstance(name, str) else ""
        if word in _SIMPLE:
            return Simple(_SIMPLE[word])
        if word in _DECIMALS:
            return self._decimal()
        if word in ("ARRAY", "MAP", "STRUCT"):
            self._expect("<")
            if word == "STRUCT":
                return Struct(self.fields(">"))
            first = self._kind(field)
            if word == "ARRAY":
                self._expect(">")
                return Array(first)
            self._expect(",")
            second = self._kind(field)
            self._expect(">")
            return Map(first, second)
        raise UnknownType(f"the field {field} has the unknown type {name if isinstance(name, str) else name[0]}")

    def _decimal(self) -> Decimal:
        if self._next() != "(":
            return Decimal(10)
        self._take("(")
        numbers = [self._number()]
        if self._next() == ",":
            self._take(",")
            numbers.append(self._number())
        self._expect(")")
        decimal = Decimal(*numbers)
        if not decimal.scale <= decimal.precision <= MAX_PRECISION or not decimal.precision:
            raise self._refused(f"{decimal.ddl()} has more than {MAX_PRECISION} digits, or more after the point")
        return decimal

    def _number(self) -> int:
        word = self._take("a number")
        if not isinstance(word, str) or not word.isdecimal():
            raise self._refused(f"expected a number, not {word}")
        return int(word)

    def _next(self) -> str | tuple[str] | None:
        return self._tokens[0] if self._tokens else None

    def _word(self) -> str | None:
        word = self._next()
        return word.upper() if isinstance(word, str) else None

    def _take(self, what: str) -> str | tuple[str]:
        if not self._tokens:
            raise self._refused(f"{what} is missing at the end")
        return self._tokens.pop(0)

    def _expect(self, wanted: str) -> None:
        found = self._take(wanted)
        if not isinstance(found, str) or found.upper() != wanted:
            raise self._refused(f"expected {wanted}, not {found if isinstance(found, str) else found[0]}")

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"'{self._text}' is not a list of fields like id INT, tags ARRAY<STRING>: {why}")
