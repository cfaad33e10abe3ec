"""ElectLeaders (API 43), versions 0 to 2.

Behaviour
    Preferred (0, the only one in version 0): each partition is led by the first of its replicas. Unclean (1): a
    partition without a leader gets one, from those in sync if one of them is there, otherwise the live replica with the
    longest log, whatever records it lacks; the topic need not allow it, for here somebody asks for it. Null stands for
    all partitions, of which those that need no election are left out of the answer.

    An unclean election waits for up to half of ``timeout`` until every live replica has said how long its log is. One
    that still has not (its log cannot be opened) is passed over.

Refusals
    The request: INVALID_REQUEST for another kind of election. Per partition, in order: UNKNOWN_TOPIC_OR_PARTITION;
    ELECTION_NOT_NEEDED: the first replica leads already, or for an unclean one: there is a leader;
    PREFERRED_LEADER_NOT_AVAILABLE: it is not there, or not in sync; ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica is
    there.

Left out
    Of a preferred election ``timeout`` is ignored: nothing but the metadata store is waited for.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.refusals import ANSWERABLE, code_of, message_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.controller.elections import Liveness, preferred, settled, unheard
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

logger = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
POLL_S = 0.05
INDEXES_AT_ONCE = 1_000
"""Looked at without a pause."""

_Outcome = tuple[ErrorCode, str | None]
_Outcomes = Callable[[int], _Outcome]
"""By the index of a partition."""


async def handle(services: Services, request: Request) -> Body:
    kind = getattr(request.body, "election_type", PREFERRED)
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")
    wanted = request.body.topic_partitions
    deadline = services.clock.monotonic() + request.body.timeout.total_seconds() / 2
    results = []
    for topic, indexes in _asked(services, wanted):
        await asyncio.sleep(0)  # all of them may be very many; others are served in between
        if kind == UNCLEAN:
            await _wait_for_reports(services, topic, indexes, deadline)
        outcomes = await _elect(services, topic, await services.slicer.finish(_known(services, topic, indexes)), kind)
        if wanted is None:
            indexes = [index for index in indexes if outcomes(index)[0] != ErrorCode.election_not_needed]
        if indexes or wanted is not None:
            results.append(_result(topic, indexes, outcomes))
    return {"error_code": ErrorCode.none, "replica_election_results": results}


async def _wait_for_reports(services: Services, name: str, indexes: Sequence[int], deadline: float) -> None:
    """Returns when every live replica of the partitions without a leader has reported its log, or at ``deadline``."""
    while True:
        topic, brokers = services.catalog.image.topics.get(name), Liveness.of(services.catalog.image.brokers)
        partitions = topic.partitions if topic is not None else ()
        chosen = [partitions[index] for index in indexes if 0 <= index < len(partitions)]
        if not any(_is_waited_for(partition, brokers) for partition in chosen):
            return
        if services.clock.monotonic() >= deadline:
            logger.warning("%s: an unclean election passes over live replicas that have not reported their logs", name)
            return
        await asyncio.sleep(POLL_S)


def _is_waited_for(partition: PartitionRecord, brokers: Liveness) -> bool:
    """Whether an election would compare logs, and does not know all of them yet."""
    is_led = partition.leader in brokers.live
    return not is_led and brokers.live.isdisjoint(partition.isr) and bool(unheard(partition, brokers))


def _asked(services: Services, wanted: Iterable[Any] | None) -> Iterable[tuple[str, Sequence[int]]]:
    if wanted is None:
        return [(topic.name, range(len(topic.partitions))) for topic in services.catalog.image.topics.values()]
    return ((one.topic, one.partitions) for one in wanted)


def _known(services: Services, name: str, indexes: Sequence[int]) -> Work[list[int]]:
    """Those that the topic has. A request may name very many that it does not have, or the same one very often."""
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
        # The store need not be asked: with null as a request, nearly all topics are such.
        return outcome_of
    try:
        await services.catalog.change_topic(name, change)
    except ANSWERABLE as error:
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


def refuse(request: Request, code: ErrorCode) -> Body:
    # Version 0 has no code for the whole.
    topics = request.body.topic_partitions or ()
    results = LazyArray(topics, lambda one: _result(one.topic, one.partitions, lambda _: (code, None)))
    return {"error_code": code, "replica_election_results": results}
