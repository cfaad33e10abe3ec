"""Decodes requests into objects and encodes responses. The only place where an API's version selects a class of kio.

A handler is written once for all versions. It reads a request object, in which fields may be absent in the version at
hand (``getattr(request, "rack_id", "")``; ``entities/request_types.py`` says which), and returns its response as nested
mappings with the fields of all versions. ``encode_response`` writes it as the class of the version says
(``entities/encoders.py``): fields that the version does not have are left out, fields that the mapping does not have
get the class's default, or zero.

kio's module of a version is imported, and its encoder made, when the version is first used. Importing all of them would
cost two seconds.
"""

import functools
from collections.abc import Callable, Generator, Mapping
from typing import Any

from kio.index import load_payload_module
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.base.loop.slicer import freed
from skep.wire.apis import SERVED, SKEP_COMMAND
from skep.wire.entities import skep_command
from skep.wire.entities.encoders import ResponseEncoder, response_encoder
from skep.wire.entities.large_request_reader import large_request_reader
from skep.wire.entities.private_fields import with_private_fields
from skep.wire.entities.request_bounds import MAX_ELEMENTS, RequestBounds, TooManyElements
from skep.wire.frame_reader import SCRATCH_SIZE
from skep.wire.headers import response_header
from skep.wire.primitives import INT32

Body = Mapping[str, Any]

SHORT_FRAME_BYTES = SCRATCH_SIZE
LONG_FRAME_BYTES = 4 * 1024 * 1024
SHORT_ELEMENTS = 500
"""The limit for a frame between these two sizes: an element takes 20 us if it is a batch to append."""

_NOT_A_REQUEST = (DecodeError, SerialError, ValueError, OverflowError)

JOINED_PARTS = 4096
"""How many parts of a response are joined in one step: some 100 KB."""


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
    if api_key == SKEP_COMMAND.key:
        return getattr(skep_command, SKEP_COMMAND.name + suffix)
    entity = getattr(load_payload_module(api_key, version, kind), SERVED[api_key].name + suffix)
    return with_private_fields(entity)


def decode_request(
    api_key: int, version: int, frame: memoryview, position: int, max_elements: int = MAX_ELEMENTS
) -> Any:
    """Returns the request behind the header. Its values are copies: the frame's buffer may be reused at once."""
    bounds, read = _request_reader(api_key, version)
    try:
        # kio trusts the lengths that it reads, so they are checked first.
        frame, position = bounds.checked(frame, position, max_elements)
        request, _ = read(frame.toreadonly(), position)
    except _NOT_A_REQUEST as error:
        raise DecodeError(f"{SERVED[api_key].name} v{version}: {error}") from None
    # Bytes behind the request are ignored, as in Kafka: librdkafka sends three too many in Metadata v13.
    return request


def is_short(api_key: int, version: int, frame: memoryview, position: int) -> bool:
    """Whether ``decode_request``, and a handler that does not work in slices, take a few milliseconds at most.

    If not, the frame has a buffer of its own, and ``decode_in_slices`` reads it.
    """
    if len(frame) <= SHORT_FRAME_BYTES:
        return True
    if len(frame) > LONG_FRAME_BYTES:
        return False
    try:
        _request_reader(api_key, version)[0].checked(frame, position, SHORT_ELEMENTS)
    except TooManyElements:
        return False
    except DecodeError:
        pass  # decode_request raises it too
    return True


def decode_in_slices(
    api_key: int, version: int, frame: memoryview, position: int, max_elements: int
) -> Generator[None, None, Any]:
    """``decode_request`` as work for a ``Slicer``. The frame must not change until the work has ended."""
    try:
        request = yield from large_request_reader(request_class(api_key, version)).read(frame, position, max_elements)
    except _NOT_A_REQUEST as error:
        raise DecodeError(f"{SERVED[api_key].name} v{version}: {error}") from None
    return request


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> bytes:
    """Returns the whole response, header included, without the frame length."""
    out: list[bytes] = []
    for _ in _response_encoder(api_key, version)(correlation_id, body, out):
        pass
    return b"".join(out)


def encode_in_slices(
    api_key: int, version: int, correlation_id: int, body: Body, max_bytes: int
) -> Generator[None, None, tuple[bytes, ...]]:
    """``encode_response`` as work for a ``Slicer``. Returns parts, because joining a hundred megabytes takes long too.

    Frees a large ``body`` in slices if there is no other reference to it.

    Raises KafkaError INVALID_REQUEST if the response is larger than ``max_bytes``.
    """
    encoded: list[bytes] = []
    out: list[bytes] = []
    size = 0
    for _ in _response_encoder(api_key, version)(correlation_id, body, out):
        if len(out) >= JOINED_PARTS:
            encoded.append(b"".join(out))
            out.clear()
            size += len(encoded[-1])
            if size > max_bytes:
                break
        yield
    encoded.append(b"".join(out))
    is_too_large = size + len(encoded[-1]) > max_bytes
    if len(encoded) > 1:
        large = [body]
        del body
        yield from freed(large)
    if is_too_large:
        raise response_too_large(api_key, max_bytes)
    return tuple(encoded)


def response_too_large(api_key: int, max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_request,
        f"the response to this {SERVED[api_key].name} is larger than {max_bytes} bytes "
        "(skep.max.response.bytes); ask for less at a time",
    )


@functools.cache
def _response_encoder(api_key: int, version: int) -> ResponseEncoder:
    has_header_tags = len(response_header(api_key, version, 0)) > INT32.size
    return response_encoder(response_class(api_key, version), has_header_tags=has_header_tags)
