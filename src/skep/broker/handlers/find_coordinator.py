"""FindCoordinator (API 10), versions 0 to 6.

Behaviour
    Returns the coordinator of a group (type 0), a transactional id (1) or a share partition (2, with the key
    ``group:topic id:partition``): the leader of the partition of ``__consumer_offsets``, ``__transaction_state`` or
    ``__share_group_state`` to which the hash of the key leads. The first request creates the topic, unless its only key
    is refused.

Versions
    1: the type of the key (before, keys are groups), an error message, and ``throttle_time_ms``.
    2 changes nothing here (quotas).
    3 is flexible.
    4: several keys, each with a code of its own (KIP-699).
    5: TRANSACTION_ABORTABLE (KIP-890), which is not used here.
    6: share partitions (KIP-932).

Refusals
    INVALID_REQUEST for a type that the version does not have.
Refusals per key
    INVALID_GROUP_ID, or INVALID_REQUEST for an empty transactional id and for a share partition without three parts;
    COORDINATOR_NOT_AVAILABLE while the partition has no leader.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics import internal_topics
from skep.broker.topics.topic_creation import alive_brokers
from skep.coordination.group_ids import check_group_id
from skep.coordination.partitioner import partition_for
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import FindCoordinatorRequest

HAS_SEVERAL_KEYS = 4
UUID_TEXT_LENGTH = 22
HAS_SHARE_PARTITIONS = 6
_GROUP, _TRANSACTION, _SHARE_PARTITION = range(3)
_TOPICS = {
    _GROUP: CONSUMER_OFFSETS,
    _TRANSACTION: TRANSACTION_STATE,
    _SHARE_PARTITION: SHARE_GROUP_STATE,
}


async def handle(services: Services, request: "Request[FindCoordinatorRequest]") -> Body:
    key_type = getattr(request.body, "key_type", _GROUP)
    topic = _TOPICS.get(key_type)
    if topic is None or (key_type == _SHARE_PARTITION and request.version < HAS_SHARE_PARTITIONS):
        raise KafkaError(
            ErrorCode.invalid_request, f"the coordinator type {key_type} is not supported in version {request.version}"
        )
    if request.version < HAS_SEVERAL_KEYS:
        if (refusal := _refusal(services, key_type, request.body.key)) is not None:
            return refusal
        await internal_topics.ensure(services, topic)
        return _coordinator(services, key_type, topic, request.body.key)
    keys = request.body.coordinator_keys
    await internal_topics.ensure(services, topic)
    return {"coordinators": await services.slicer.finish(_coordinators(services, key_type, topic, keys))}


def _coordinators(services: Services, key_type: int, topic: str, keys: Iterable[str]) -> Work[list[dict[str, Any]]]:
    coordinators = []
    for key in keys:
        coordinators.append({"key": key, **_coordinator(services, key_type, topic, key)})
        yield
    return coordinators


def _coordinator(services: Services, key_type: int, topic: str, key: str) -> dict[str, Any]:
    if (refusal := _refusal(services, key_type, key)) is not None:
        return refusal
    partitions = services.catalog.image.topics[topic].partitions
    leader = alive_brokers(services).get(partitions[partition_for(key, len(partitions))].leader)
    if leader is None:
        return _no_coordinator(
            ErrorCode.coordinator_not_available, f"the coordinator's partition of {topic} has no leader"
        )
    return {"node_id": leader.id, "host": leader.host, "port": leader.port}


def _refusal(services: Services, key_type: int, key: str) -> dict[str, Any] | None:
    """Returns the response to a key that no coordinator accepts."""
    try:
        if key_type == _GROUP:
            check_group_id(services.config.coordinator, key, may_be_empty=True)
        elif key_type == _SHARE_PARTITION and not _is_share_partition(key):
            raise KafkaError(ErrorCode.invalid_request, f"{key!r} is not group:topic id:partition")
        elif not key:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
    except KafkaError as error:
        return _no_coordinator(error.code, str(error))
    return None


def _is_share_partition(key: str) -> bool:
    group, *others = key.rsplit(":", 2)
    return bool(group) and len(others) == 2 and len(others[0]) == UUID_TEXT_LENGTH and others[1].isdecimal()


def _no_coordinator(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message}


def refuse(request: "Request[FindCoordinatorRequest]", code: ErrorCode) -> Body:
    if request.version < HAS_SEVERAL_KEYS:
        return _no_coordinator(code, code.name)
    return {
        "coordinators": LazyArray(
            request.body.coordinator_keys, lambda key: {"key": key, **_no_coordinator(code, code.name)}
        )
    }
