"""FindCoordinator (API 10), versions 0 to 6.

Behaviour
    Returns the coordinator of a group (type 0), a transactional id (1) or a share partition (2, with the key
    ``group:topic id:partition``): the leader of the partition of ``__consumer_offsets``, ``__transaction_state`` or
    ``__share_group_state`` to which the hash of the key leads. The first request creates the topic, unless all its
    keys are refused. A key that is named several times is in the response once.

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
    Not authorized; INVALID_GROUP_ID, or INVALID_REQUEST for an empty transactional id and for a share partition without
    three parts; COORDINATOR_NOT_AVAILABLE while the partition has no leader.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.permissions import CLUSTER, GROUP, TRANSACTIONAL_ID, check_item
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics import internal_topics
from skep.broker.topics.current_leaders import brokers_at
from skep.coordination.group_ids import check_group_id
from skep.coordination.partitioner import partition_for
from skep.security.operations import CLUSTER_NAME
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
_RESOURCES = {_GROUP: GROUP, _TRANSACTION: TRANSACTIONAL_ID, _SHARE_PARTITION: CLUSTER}


async def handle(services: Services, request: "Request[FindCoordinatorRequest]") -> Body:
    key_type = getattr(request.body, "key_type", _GROUP)
    topic = _TOPICS.get(key_type)
    if topic is None or (key_type == _SHARE_PARTITION and request.version < HAS_SHARE_PARTITIONS):
        raise KafkaError(
            ErrorCode.invalid_request, f"the coordinator type {key_type} is not supported in version {request.version}"
        )
    if request.version < HAS_SEVERAL_KEYS:
        if (refusal := _refusal(services, request, key_type, request.body.key)) is not None:
            return refusal
        await internal_topics.ensure(services, topic)
        return _coordinator(services, topic, request.body.key, request.listener_name)
    refusals = await services.slicer.finish(_refusals(services, request, key_type))
    if None in refusals.values() or not refusals:
        await internal_topics.ensure(services, topic)
    work = _coordinators(services, topic, refusals, request.listener_name)
    return {"coordinators": await services.slicer.finish(work)}


def _refusals(
    services: Services, request: "Request[FindCoordinatorRequest]", key_type: int
) -> Work[dict[str, dict[str, Any] | None]]:
    refusals = {}
    for key in request.body.coordinator_keys:
        refusals[key] = _refusal(services, request, key_type, key)
        yield
    return refusals


def _coordinators(
    services: Services, topic: str, refusals: Mapping[str, dict[str, Any] | None], listener: str
) -> Work[list[dict[str, Any]]]:
    coordinators = []
    for key, refusal in refusals.items():
        found = _coordinator(services, topic, key, listener) if refusal is None else refusal
        coordinators.append({"key": key, **found})
        yield
    return coordinators


def _coordinator(services: Services, topic: str, key: str, listener: str) -> dict[str, Any]:
    partitions = services.catalog.image.topics[topic].partitions
    leader = brokers_at(services, listener).get(partitions[partition_for(key, len(partitions))].leader)
    if leader is None:
        return _no_coordinator(
            ErrorCode.coordinator_not_available, f"the coordinator's partition of {topic} has no leader"
        )
    return {"node_id": leader.id, "host": leader.host, "port": leader.port}


def _refusal(
    services: Services, request: "Request[FindCoordinatorRequest]", key_type: int, key: str
) -> dict[str, Any] | None:
    """Returns the response to a key that no coordinator accepts, or that the client may not use."""
    try:
        resource = _RESOURCES[key_type]
        check_item(request, resource, CLUSTER_NAME if resource is CLUSTER else key)
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
