"""The client's side of ``codec``: requests into bytes and responses into objects.

As for a handler, the body of a request is one mapping for all versions: fields that the chosen version lacks are left
out, fields that the mapping lacks get their default.
"""

import functools
import struct
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, get_args

from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.primitive import TZAware

from skep.base.errors import DecodeError
from skep.wire.apis import API_VERSIONS, DESCRIBE_TRANSACTIONS, Api
from skep.wire.codec import Body, request_class, response_class
from skep.wire.entities.encoders import entity_encoder
from skep.wire.entities.request_bounds import RequestBounds
from skep.wire.primitives import INT32, skip_tagged_fields, string

_HEADER = struct.Struct(">hhi")


def encode_request(api: Api, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    """Returns the whole request, header included, without the length in front."""
    header = request_header(api, version, correlation_id, client_id)
    return header + entity_encoder(request_class(api.key, version))(body)


def request_header(api: Api, version: int, correlation_id: int, client_id: str) -> bytes:
    # The client id is a legacy string in flexible versions too: see ``headers``.
    tags = b"\0" if api.is_flexible(version) else b""
    return _HEADER.pack(api.key, version, correlation_id) + string(client_id) + tags


def decode_response(api: Api, version: int, frame: bytes | memoryview) -> tuple[int, Any]:
    """Returns the correlation id and the response. Raises DecodeError for a frame of another API or version."""
    bounds, read = _response_reader(api, version)
    view = memoryview(frame).toreadonly()
    try:
        (correlation_id,) = INT32.unpack_from(view)
        position = INT32.size
        if api != API_VERSIONS and api.is_flexible(version):
            position = skip_tagged_fields(view, position)
        # kio trusts the lengths that it reads. A response may have as many elements as bytes: it is long because much
        # was asked for.
        view, position = bounds.checked(view, position, max_elements=len(view))
        response, _ = read(view, position)
    except struct.error:
        raise DecodeError(f"{api.name} v{version}: {len(view)} bytes are too few") from None
    except (DecodeError, SerialError, ValueError, OverflowError) as error:
        raise DecodeError(f"{api.name} v{version}: {error}") from None
    return correlation_id, response


@functools.cache
def _response_reader(api: Api, version: int) -> tuple[RequestBounds, Callable[[memoryview, int], tuple[Any, int]]]:
    entity = _response_class(api, version)
    return RequestBounds(entity), entity_reader(entity)


def _response_class(api: Api, version: int) -> Any:
    """Returns kio's class, except where kio cannot read what brokers send.

    A transactional id has the start time -1 before its first transaction, which the description of the message does
    not mention: it is read as None here.
    """
    entity = response_class(api.key, version)
    if api != DESCRIBE_TRANSACTIONS:
        return entity
    [state, _] = get_args(next(part.type for part in fields(entity) if part.name == "transaction_states"))
    start_time: Any = field(metadata={"kafka_type": "datetime_i64"})
    state = make_dataclass(
        state.__name__,
        [("transaction_start_time", TZAware | None, start_time)],
        bases=(state,),
        frozen=True,
        kw_only=True,
    )
    states: Any = tuple[state, ...]  # type: ignore[valid-type]
    return make_dataclass(entity.__name__, [("transaction_states", states)], bases=(entity,), frozen=True, kw_only=True)


def common_version(api: Api, oldest: int, newest: int) -> int | None:
    """Returns the newest version of ours in a broker's range; None when there is none."""
    version = min(api.newest, newest)
    return version if version >= max(api.oldest, oldest) else None
