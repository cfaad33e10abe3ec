"""DescribeProducers (API 61), version 0.

Behaviour
    The idempotent and transactional producers that each partition remembers: epoch, last sequence, when they last
    wrote, the epoch of the coordinator that last ended a transaction of theirs, and where their open transaction begins
    (-1: none). That is how a transaction that hangs is found. A partition that is named again is there once.

Refusals, per partition
    unknown topic or partition; NOT_LEADER_OR_FOLLOWER.
"""

from collections.abc import Awaitable
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.slicer import Work
from skep.broker.refusals import ANSWERABLE, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.storage.producers import ProducerState
from skep.wire.codec import Body


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    return services.slicer.run(_described(services, request.body.topics))


def _described(services: Services, topics: Any) -> Work[Body]:
    described = []
    for name, indexes in _each_once(topics).items():
        partitions = []
        for index in indexes:
            partitions.append((yield from _describe(services, name, index)))
            yield
        described.append({"name": name, "partitions": partitions})
    return {"topics": described}


def _each_once(topics: Any) -> dict[str, dict[int, None]]:
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return wanted


def _describe(services: Services, topic: str, index: int) -> Work[dict[str, Any]]:
    try:
        states = list(services.replicas.partition(topic, index).log.producers.states())
    except ANSWERABLE as error:
        return _refused(index, code_of(error), message_of(error))
    producers = []
    for state in states:
        producers.append(_shown(state))
        yield
    return {"partition_index": index, "active_producers": producers}


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


def refuse(request: Request, code: ErrorCode) -> Body:
    return {
        "topics": [
            {"name": topic.name, "partitions": [_refused(index, code) for index in topic.partition_indexes]}
            for topic in request.body.topics
        ]
    }
