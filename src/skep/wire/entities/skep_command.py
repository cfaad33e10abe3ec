"""The messages of SkepCommand, the private API, as kio declares those of Kafka.

So the codec, the bounds of requests, the fuzzer and the tests of encodings take them as they take Kafka's.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

from skep.base.errors import ErrorCode
from skep.wire.apis import SKEP_COMMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class SkepCommandRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(SKEP_COMMAND.key)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    command: str = field(metadata={"kafka_type": "string"})
    arguments: bytes = field(metadata={"kafka_type": "bytes"})
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkepCommandResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(SKEP_COMMAND.key)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    result: bytes | None = field(metadata={"kafka_type": "bytes"}, default=None)
    """JSON; null after an error."""
