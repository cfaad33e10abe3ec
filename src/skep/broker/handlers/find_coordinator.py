"""FindCoordinator (API 10), versions 0 to 6.

Behaviour
    Which broker a group (type 0), a transactional id (1) or, from version 6 on, a share partition (2, its key is
    ``group:topic id:partition``) belongs to: the leader of the partition of ``__consumer_offsets``,
    ``__transaction_state`` or ``__share_group_state`` that its name falls into. The topic is made when somebody asks
    for the first time. From version 4 on several keys in one request, each with a code of its own. What share groups
    would then be asked is not served yet.

Refusals
    INVALID_REQUEST for a type that the version does not know.
Refusals per key
    INVALID_GROUP_ID, or INVALID_REQUEST for an empty transactional id and for a share partition that is not three
    parts; COORDINATOR_NOT_AVAILABLE while the partition has no leader.
"""

from collections.abc import Iterable
from typing import Any

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.group_ids import check_group_id
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics import internal_topics
from skep.broker.topics.topic_creation import alive_brokers
from skep.coordination.partitioner import partition_for
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

HAS_SEVERAL_KEYS = 4
UUID_TEXT_LENGTH = 22
HAS_SHARE_PARTITIONS = 6
_GROUP, _TRANSACTION, _SHARE_PARTITION = range(3)
_TOPICS = {
    _GROUP: CONSUMER_OFFSETS,
    _TRANSACTION: TRANSACTION_STATE,
    _SHARE_PARTITION: SHARE_GROUP_STATE,
}


async def handle(services: Services, request: Request) -> Body:
    key_type = getattr(request.body, "key_type", _GROUP)
    topic = _TOPICS.get(key_type)
    if topic is None or (key_type == _SHARE_PARTITION and request.version < HAS_SHARE_PARTITIONS):
        raise KafkaError(ErrorCode.invalid_request, f"there is no coordinator of type {key_type} here")
    await internal_topics.ensure(services, topic)
    if request.version < HAS_SEVERAL_KEYS:
        return _coordinator(services, key_type, topic, request.body.key)
    keys = request.body.coordinator_keys
    return {"coordinators": await services.slicer.finish(_coordinators(services, key_type, topic, keys))}


def _coordinators(services: Services, key_type: int, topic: str, keys: Iterable[str]) -> Work[list[dict[str, Any]]]:
    coordinators = []
    for key in keys:
        coordinators.append({"key": key, **_coordinator(services, key_type, topic, key)})
        yield
    return coordinators


def _coordinator(services: Services, key_type: int, topic: str, key: str) -> dict[str, Any]:
    try:
        if key_type == _GROUP:
            check_group_id(services, key, may_be_empty=True)
        elif key_type == _SHARE_PARTITION and not _is_share_partition(key):
            raise KafkaError(ErrorCode.invalid_request, f"{key!r} is not group:topic id:partition")
        elif not key:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        partitions = services.catalog.image.topics[topic].partitions
        leader = alive_brokers(services).get(partitions[partition_for(key, len(partitions))].leader)
        if leader is None:
            raise KafkaError(ErrorCode.coordinator_not_available, "the coordinator's partition has no leader")
    except KafkaError as error:
        return _nobody(error.code, str(error))
    return {"node_id": leader.id, "host": leader.host, "port": leader.port}


def _is_share_partition(key: str) -> bool:
    group, *others = key.rsplit(":", 2)
    return bool(group) and len(others) == 2 and len(others[0]) == UUID_TEXT_LENGTH and others[1].isdecimal()


def _nobody(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message}


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version < HAS_SEVERAL_KEYS:
        return _nobody(code, code.name)
    return {
        "coordinators": LazyArray(request.body.coordinator_keys, lambda key: {"key": key, **_nobody(code, code.name)})
    }
