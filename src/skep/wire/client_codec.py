"""The other direction of ``codec``: requests into bytes and answers into objects, for those who ask a broker.

As for a handler, the body of a request is one mapping for all versions: what the chosen version does not have is left
out, what the mapping does not say gets the default.
"""

import struct
from typing import Any

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from skep.base.errors import DecodeError
from skep.wire.apis import Api
from skep.wire.codec import Body, request_class, response_class
from skep.wire.encoders import entity_encoder
from skep.wire.primitives import string

_HEADER = struct.Struct(">hhi")


def encode_request(api: Api, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    """The whole request, header included, without the length that frames it."""
    # The client id is a legacy string even where the version is flexible: see ``headers``.
    header = _HEADER.pack(api.key, version, correlation_id) + string(client_id)
    tags = b"\0" if api.is_flexible(version) else b""
    return header + tags + entity_encoder(request_class(api.key, version))(body)


def decode_response(api: Api, version: int, frame: bytes) -> tuple[int, Any]:
    """The correlation id and the answer. DecodeError when the frame is not one of this API and version."""
    entity = response_class(api.key, version)
    try:
        header, position = entity_reader(entity.__header_schema__)(frame, 0)
        answer, _ = entity_reader(entity)(frame, position)
    except (SerialError, ValueError, OverflowError) as error:
        raise DecodeError(f"{api.name} v{version}: {error}") from None
    return header.correlation_id, answer


def common_version(api: Api, oldest: int, newest: int) -> int | None:
    """The newest version that we and a broker with this range both have; None when there is none."""
    version = min(api.newest, newest)
    return version if version >= max(api.oldest, oldest) else None
