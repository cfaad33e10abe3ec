"""The fields of a schema that is written as DDL: ``id BIGINT NOT NULL, at STRUCT<x: INT, y: INT NOT NULL>``.

Spark can parse such text, but through Spark Connect that is a request to the server, and requests are refused inside a
pipeline's query function. Only the names, the type names and NOT NULL are needed here. Types are not checked; Spark
does that when it gets the same text.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql.types import StructType

_OPEN, _CLOSE = "<(", ">)"
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s*(.*)", re.DOTALL)
_COMMENT = re.compile(r"\s+COMMENT\s+(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\s*$", re.IGNORECASE)
_NOT_NULL = re.compile(r"\s+NOT\s+NULL\s*$", re.IGNORECASE)
_STRUCT = re.compile(r"STRUCT\s*<(.*)>\s*$", re.IGNORECASE | re.DOTALL)


class Field(NamedTuple):
    name: str
    type_name: str
    required: bool
    fields: tuple["Field", ...]


def fields_of(schema: str | StructType) -> tuple[Field, ...]:
    """Returns the fields of a schema. Raises ValueError if a field has no name or no type."""
    return tuple(_field(text) for text in _split(schema)) if isinstance(schema, str) else _of_struct(schema)


def _of_struct(schema: StructType) -> tuple[Field, ...]:
    return tuple(
        Field(
            field.name,
            field.dataType.simpleString().partition("<")[0].upper(),
            not field.nullable,
            _of_struct(field.dataType) if isinstance(field.dataType, StructType) else (),
        )
        for field in schema.fields
    )


def _field(text: str) -> Field:
    found = _NAME.match(text)
    if found is None or not found[3].strip():
        raise ValueError(f"invalid schema field '{text.strip()}': expected NAME TYPE")
    name = found[1].replace("``", "`") if found[1] else found[2]
    kind = _COMMENT.sub("", found[3])
    bare = _NOT_NULL.sub("", kind)
    inner = _STRUCT.match(bare)
    fields = tuple(_field(part) for part in _split(inner[1])) if inner and inner[1].strip() else ()
    return Field(name, bare.partition("<")[0].strip().upper(), bare != kind, fields)


def _split(text: str) -> Iterator[str]:
    """Yields the parts between commas outside of brackets and quotes."""
    depth, start, quote = 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
