"""ElectLeaders (API 43), versions 0 to 2.

Behaviour
    Preferred (0): the first replica of each partition becomes its leader. Unclean (1): a partition without a leader
    gets one. It is an in-sync replica if one is live, otherwise the live replica with the longest log, even if that
    loses records; the topic need not allow it, because the operator asks for it. Null means all partitions; those that
    need no election are then left out of the response.

    An unclean election waits for up to half of ``timeout`` until every live replica has reported its log end. A replica
    that has not done so by then (its log cannot be opened) is passed over.

Versions
    0 has preferred elections only.
    1: the type of election, and an error code for the whole request (KIP-460).
    2 is flexible.

Refusals
    The request: INVALID_REQUEST for another type of election. Per partition, in order: UNKNOWN_TOPIC_OR_PARTITION;
    ELECTION_NOT_NEEDED when the first replica leads already or, for an unclean election, when there is a leader;
    PREFERRED_LEADER_NOT_AVAILABLE when the first replica is not live or not in sync; ELIGIBLE_LEADERS_NOT_AVAILABLE
    when no replica is live.

Left out
    A preferred election ignores ``timeout``: it waits for the metadata store only.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.controller.elections import Liveness, preferred, settled, unreported
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ElectLeadersRequest

logger = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
POLL_S = 0.05
INDEXES_AT_ONCE = 1_000
"""Partition indexes checked in one slice."""

_Outcome = tuple[ErrorCode, str | None]
_Outcomes = Callable[[int], _Outcome]
"""From the index of a partition to its result."""


async def handle(services: Services, request: "Request[ElectLeadersRequest]") -> Body:
    kind = getattr(request.body, "election_type", PREFERRED)
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")
    wanted = request.body.topic_partitions
    deadline = services.clock.monotonic() + request.body.timeout.total_seconds() / 2
    results = []
    for topic, indexes in _asked(services, wanted):
        await asyncio.sleep(0)  # there may be very many topics: other requests are served in between
        if kind == UNCLEAN:
            await _wait_for_reports(services, topic, indexes, deadline)
        outcomes = await _elect(services, topic, await services.slicer.finish(_known(services, topic, indexes)), kind)
        if wanted is None:
            indexes = [index for index in indexes if outcomes(index)[0] != ErrorCode.election_not_needed]
        if indexes or wanted is not None:
            results.append(_result(topic, indexes, outcomes))
    return {"error_code": ErrorCode.none, "replica_election_results": results}


async def _wait_for_reports(services: Services, name: str, indexes: Sequence[int], deadline: float) -> None:
    """Returns when every live replica of the partitions without a leader has reported its log end, or at
    ``deadline``."""
    while True:
        topic, brokers = services.catalog.image.topics.get(name), Liveness.of(services.catalog.image.brokers)
        partitions = topic.partitions if topic is not None else ()
        chosen = [partitions[index] for index in indexes if 0 <= index < len(partitions)]
        if not any(_is_waited_for(partition, brokers) for partition in chosen):
            return
        if services.clock.monotonic() >= deadline:
            logger.warning("%s: an unclean election passes over live replicas without a reported log end", name)
            return
        await asyncio.sleep(POLL_S)


def _is_waited_for(partition: PartitionRecord, brokers: Liveness) -> bool:
    """Returns whether an election would compare logs while some of their ends are not known yet."""
    is_led = partition.leader in brokers.live
    return not is_led and brokers.live.isdisjoint(partition.isr) and bool(unreported(partition, brokers))


def _asked(
    services: Services, wanted: "Iterable[ElectLeadersRequest.TopicPartitions] | None"
) -> Iterable[tuple[str, Sequence[int]]]:
    if wanted is None:
        return [(topic.name, range(len(topic.partitions))) for topic in services.catalog.image.topics.values()]
    return ((one.topic, one.partitions) for one in wanted)


def _known(services: Services, name: str, indexes: Sequence[int]) -> Work[list[int]]:
    """Returns the indexes that exist, each once. A request may name very many that do not, or the same one very
    often."""
    topic = services.catalog.image.topics.get(name)
    count = 0 if topic is None else len(topic.partitions)
    found: dict[int, None] = {}
    for number, index in enumerate(indexes):
        if 0 <= index < count:
            found[index] = None
        if not number % INDEXES_AT_ONCE:
            yield
    return list(found)


async def _elect(services: Services, name: str, indexes: Sequence[int], kind: int) -> _Outcomes:
    outcomes: dict[int, _Outcome] = {}

    def outcome_of(index: int) -> _Outcome:
        unknown = (ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{index}")
        return outcomes.get(index, unknown)

    def change(topic: TopicRecord) -> TopicRecord:
        outcomes.clear()
        brokers, partitions = Liveness.of(services.catalog.image.brokers), list(topic.partitions)
        for index in indexes:
            if index < len(partitions):
                partitions[index], code = _elected(partitions[index], brokers, kind)
                outcomes[index] = (code, None)
        return replace(topic, partitions=tuple(partitions))

    known = services.catalog.image.topics.get(name)
    if known is not None and change(known).partitions == known.partitions:
        # No write to the store is needed. When the request names null, this holds for nearly all topics.
        return outcome_of
    try:
        await services.catalog.change_topic(name, change)
    except RESPONSE_ERRORS as error:
        failed = code_of(error), message_of(error)
        return lambda _: failed
    return outcome_of


def _elected(partition: PartitionRecord, brokers: Liveness, kind: int) -> tuple[PartitionRecord, ErrorCode]:
    is_led = partition.leader in brokers.live
    if kind == PREFERRED:
        if is_led and partition.leader == partition.target[0]:
            return partition, ErrorCode.election_not_needed
        changed = preferred(partition, brokers)
        return changed, ErrorCode.preferred_leader_not_available if changed is partition else ErrorCode.none
    if is_led:
        return partition, ErrorCode.election_not_needed
    changed = settled(partition, brokers, unclean=True)
    if changed.leader in brokers.live:
        return changed, ErrorCode.none
    return partition, ErrorCode.eligible_leaders_not_available


def _result(topic: str, indexes: Sequence[int], outcomes: _Outcomes) -> dict[str, Any]:
    def partition(index: int) -> dict[str, Any]:
        code, message = outcomes(index)
        return {"partition_id": index, "error_code": code, "error_message": message}

    return {"topic": topic, "partition_result": LazyArray(indexes, partition)}


def refuse(request: "Request[ElectLeadersRequest]", code: ErrorCode) -> Body:
    # Version 0 has no error code for the whole request.
    topics = request.body.topic_partitions or ()
    results = LazyArray(topics, lambda one: _result(one.topic, one.partitions, lambda _: (code, None)))
    return {"error_code": code, "replica_election_results": results}
