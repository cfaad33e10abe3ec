"""FindCoordinator (API 10), versions 0 to 6.

Behaviour
    The coordinator of everything is this broker, the only one there is. What a client would then ask it for (JoinGroup,
    OffsetCommit, AddPartitionsToTxn, ...) is not served and not advertised, so clients say that in so many words:
    ``subscribe`` and ``commit`` fail at once. Answered with an error here, they would go on asking; confluent-kafka's
    ``Consumer.close`` takes 45 seconds over it.

    librdkafka also takes this API as the sign that a broker understands lz4. Without it confluent-kafka and kcat send
    plain batches where lz4 was asked for, and say nothing.

Refusals
    INVALID_REQUEST for a key type that is not known: 0 group, 1 transaction, from version 6 on 2 share group.
"""

from collections.abc import Mapping
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

HAS_SEVERAL_KEYS = 4
HAS_SHARE_GROUPS = 6
_GROUP, _TRANSACTION, _SHARE_GROUP = range(3)


def handle(services: Services, request: Request) -> Body:
    key_type = getattr(request.body, "key_type", _GROUP)
    if not _GROUP <= key_type <= (_SHARE_GROUP if request.version >= HAS_SHARE_GROUPS else _TRANSACTION):
        raise KafkaError(ErrorCode.invalid_request, f"there is no key type {key_type}")
    node = services.node
    return _answer(request, {"node_id": node.id, "host": node.host, "port": node.port})


def refuse(request: Request, code: ErrorCode) -> Body:
    return _answer(request, {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": code.name})


def _answer(request: Request, coordinator: Mapping[str, Any]) -> Body:
    if request.version < HAS_SEVERAL_KEYS:
        return coordinator
    return {"coordinators": [{"key": key, **coordinator} for key in request.body.coordinator_keys]}
