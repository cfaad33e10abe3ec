"""DescribeProducers (API 61), version 0.

Behaviour
    Returns the idempotent and transactional producers that each partition remembers: epoch, last sequence number, time
    of the last write, the epoch of the coordinator that last ended a transaction of theirs, and the first offset of
    their open transaction (-1 if there is none). This is how a hanging transaction is found. A partition that is named
    several times is described once.

    A follower responds too, from its copy, which may be behind: ``kafka-transactions find-hanging --broker-id`` asks
    one broker about all of its replicas. A leader whose lease has expired does not.

Versions
    0 is the only one.

Refusals, per partition
    UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER when this broker has no replica, when its lease as leader has
    expired, and while a follower's log is being truncated.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.storage.producers.producers import ProducerState
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeProducersRequest

PRODUCERS_PER_STEP = 100


def handle(services: Services, request: "Request[DescribeProducersRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_described(services, request))


def _described(services: Services, request: "Request[DescribeProducersRequest]") -> Work[Body]:
    named: dict[str, dict[int, None]] = {}
    for topic in request.body.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in named.items():
        partitions = []
        is_allowed = allowed(request, TOPIC, name)
        for index in indexes:
            if is_allowed:
                partitions.append((yield from _describe(services, name, index)))
            else:
                partitions.append(_refused(index, ErrorCode.topic_authorization_failed))
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe(services: Services, topic: str, index: int) -> Work[dict[str, Any]]:
    yield
    try:
        partition = services.replicas.replica(topic, index)
        partition.check_leads()
        if partition.log.is_being_cut:
            # A thread is changing the producers.
            raise KafkaError(ErrorCode.not_leader_or_follower, f"the log of {topic}-{index} is being truncated")
    except RESPONSE_ERRORS as error:
        return _refused(index, code_of(error), message_of(error))
    shown = []
    # A copy of the current states: any of them may be removed between two slices.
    for number, state in enumerate(partition.log.producers.states()):
        shown.append(_shown(state))
        if number % PRODUCERS_PER_STEP == 0:
            yield
    return {"partition_index": index, "active_producers": shown}


def _shown(state: ProducerState) -> dict[str, int]:
    return {
        "producer_id": state.producer_id,
        "producer_epoch": state.epoch,
        "last_sequence": state.last_sequence,
        "last_timestamp": state.last_timestamp,
        "coordinator_epoch": state.coordinator_epoch,
        "current_txn_start_offset": state.transaction_first_offset,
    }


def _refused(index: int, code: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return {"partition_index": index, "error_code": code, "error_message": message, "active_producers": []}


def refuse(request: "Request[DescribeProducersRequest]", code: ErrorCode) -> Body:
    def topic(named: "DescribeProducersRequest.TopicRequest") -> dict[str, Any]:
        return {
            "name": named.name,
            "partitions": LazyArray(named.partition_indexes, lambda index: _refused(index, code)),
        }

    return {"topics": LazyArray(request.body.topics, topic)}
