"""Objects of kio's classes from the mappings that requests and answers are written as, and kio's own bytes of them.

The broker's encoders go straight from mapping to bytes; this is the slow way that they are held against, and the way
in which tests make requests.
"""

import dataclasses
import datetime
import functools
import io
import types
import typing
from collections.abc import Mapping
from typing import Any

from kio.serial import entity_writer

from skep.base.errors import ErrorCode


def written(entity: Any, body: Mapping[str, Any]) -> bytes:
    """What kio writes for ``body`` as an instance of ``entity``."""
    buffer = io.BytesIO()
    entity_writer(entity)(buffer, assemble(entity, body))
    return buffer.getvalue()


def assemble(entity: Any, body: Mapping[str, Any]) -> Any:
    """An instance of a kio class from a mapping; nested classes from nested mappings."""
    values = {}
    for name, nested, default in _shape(entity):
        value = body.get(name, default)
        if value is default or value is None:
            pass
        elif nested is not None:
            value = assemble(nested, value) if isinstance(value, Mapping) else tuple(assemble(nested, v) for v in value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return entity(**values)


@functools.cache
def _shape(entity: Any) -> tuple[tuple[str, Any, Any], ...]:
    """Of each field: its name, the class of what it nests or None, and what stands when the mapping does not say."""
    hints = typing.get_type_hints(entity)
    return tuple(
        (field.name, _nested_class(hints[field.name]), _default(field, hints[field.name]))
        for field in dataclasses.fields(entity)
    )


def _nested_class(hint: Any) -> Any:
    for candidate in (hint, *typing.get_args(hint)):
        if typing.get_origin(candidate) is tuple:
            candidate = typing.get_args(candidate)[0]
        if dataclasses.is_dataclass(candidate):
            return candidate
    return None


def _default(field: "dataclasses.Field[Any]", hint: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if isinstance(hint, types.UnionType):
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return assemble(hint, {})
    for base, zero in _ZEROS:
        if isinstance(hint, type) and issubclass(hint, base):
            return zero
    raise TypeError(f"no default for {field.name}: {hint}")


_ZEROS: tuple[tuple[type, Any], ...] = (
    (ErrorCode, ErrorCode.none),
    (bool, False),
    (int, 0),
    (float, 0.0),
    (str, ""),
    (bytes, b""),
    (datetime.timedelta, datetime.timedelta(0)),
    (datetime.datetime, datetime.datetime.fromtimestamp(0, datetime.UTC)),
)
