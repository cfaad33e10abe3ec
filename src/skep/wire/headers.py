"""Request and response headers, encoded and decoded by hand because every request pays for them.

A request begins with API key, version and correlation id. Key and version determine the version of the header: 1
(client id) or 2 (client id and tagged fields). Header version 0 (no client id) belonged to ControlledShutdown v0 and is
no longer sent. The client id is a legacy nullable string even in header version 2.

A response begins with the correlation id (header 0), followed by a byte of tagged fields if the version is flexible
(header 1). ApiVersions always responds with header 0, because a client that does not know our versions must read it.
"""

import struct
from typing import NamedTuple

from skep.base.errors import DecodeError
from skep.wire.apis import API_VERSIONS, SERVED
from skep.wire.primitives import INT32, skip_tagged_fields

_FIXED = struct.Struct(">hhih")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_request_header(frame: memoryview, max_client_id_bytes: int) -> tuple[RequestHeader, int]:
    """Returns the header and the position of the body. Raises DecodeError for a torn header or a long client id."""
    if len(frame) < _FIXED.size:
        raise DecodeError(f"the frame has {len(frame)} bytes, too few for a request header")
    api_key, version, correlation_id, client_id_length = _FIXED.unpack_from(frame)
    position = _FIXED.size
    client_id = None
    if client_id_length >= 0:
        if client_id_length > max_client_id_bytes:
            raise DecodeError(f"the client id has {client_id_length} bytes; at most {max_client_id_bytes} are allowed")
        end = position + client_id_length
        if end > len(frame):
            raise DecodeError("the frame ends inside the client id")
        try:
            client_id = str(frame[position:end], "utf-8")
        except UnicodeDecodeError:
            raise DecodeError("the client id is not UTF-8") from None
        position = end
    api = SERVED.get(api_key)
    # The body of a version that is not served is never read, so the tagged fields of the header are not either.
    if api is not None and api.flexible_from <= version <= api.newest:
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            position = skip_tagged_fields(frame, position)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    api = SERVED[api_key]
    header = INT32.pack(correlation_id)
    if api_key != API_VERSIONS.key and version >= api.flexible_from:
        return header + b"\0"
    return header
