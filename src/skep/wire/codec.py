"""Requests into objects and answers into bytes: the one place where an API's version chooses a class of kio.

A handler is written once for all versions. It reads a request object whose fields may be absent in the version at
hand (``getattr(request, "rack_id", "")``), and returns its answer as nested mappings with every field that any version
has. ``encode_response`` lays the mapping over the class of the version: fields that the version does not have are left
out, fields that the mapping does not have get the class's default, or zero.

kio's module of a version is imported when the version is first asked for; all of them would cost two seconds.
"""

import dataclasses
import datetime
import functools
import io
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from skep.base.errors import DecodeError, ErrorCode
from skep.wire.apis import SERVED
from skep.wire.bounds import MAX_ELEMENTS, RequestBounds
from skep.wire.headers import response_header

Body = Mapping[str, Any]


@functools.cache
def _request_reader(api_key: int, version: int) -> tuple[RequestBounds, Callable[[memoryview, int], tuple[Any, int]]]:
    entity = request_class(api_key, version)
    return RequestBounds(entity), entity_reader(entity)


@functools.cache
def request_class(api_key: int, version: int) -> Any:
    return _payload_class(api_key, version, EntityType.request, "Request")


@functools.cache
def response_class(api_key: int, version: int) -> Any:
    return _payload_class(api_key, version, EntityType.response, "Response")


def _payload_class(api_key: int, version: int, kind: Any, suffix: str) -> Any:
    return getattr(load_payload_module(api_key, version, kind), SERVED[api_key].name + suffix)


def decode_request(
    api_key: int, version: int, frame: memoryview, position: int, max_elements: int = MAX_ELEMENTS
) -> Any:
    """The request behind the header. What it holds is copied: the frame's buffer may be used again at once."""
    bounds, read = _request_reader(api_key, version)
    try:
        # kio believes the lengths that it reads: first see that they can be.
        frame, position = bounds.checked(frame, position, max_elements)
        request, _ = read(frame.toreadonly(), position)
    except (DecodeError, SerialError, ValueError, OverflowError) as error:
        raise DecodeError(f"{SERVED[api_key].name} v{version}: {error}") from None
    # Bytes behind the request are left alone, as Kafka leaves them: librdkafka sends three too many in Metadata v13.
    return request


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> bytes:
    """The whole answer, header included, without the length that frames it."""
    buffer = io.BytesIO()
    buffer.write(response_header(api_key, version, correlation_id))
    entity = response_class(api_key, version)
    entity_writer(entity)(buffer, assemble(entity, body))
    return buffer.getvalue()


def assemble(entity: Any, body: Body) -> Any:
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
    """Of each field: its name, the class of what it nests or None, and what stands when the answer does not say."""
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
    (str, ""),
    (bytes, b""),
    (datetime.timedelta, datetime.timedelta(0)),
)
