"""The common shape of the requests for share states: partitions by topic id, each with a result of its own."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from skep.base.errors import ErrorCode
from skep.base.ids import NO_TOPIC_ID
from skep.broker.refusals import RESPONSE_ERRORS, code_of, message_of
from skep.coordination.share.share_state import SharePartitionKey
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

PARTITIONS_AT_ONCE = 100
"""Each takes up to 100 us, and other requests wait for the sum of these."""


class Partition(Protocol):
    @property
    def partition(self) -> int: ...


P = TypeVar("P", bound=Partition)
P_co = TypeVar("P_co", bound=Partition, covariant=True)


class Topic(Protocol[P_co]):
    @property
    def topic_id(self) -> uuid.UUID | None: ...

    @property
    def partitions(self) -> Sequence[P_co]: ...


class StateBody(Protocol[P_co]):
    @property
    def group_id(self) -> str: ...

    @property
    def topics(self) -> Sequence[Topic[P_co]]: ...


Ask = Callable[[SharePartitionKey, P], Awaitable[Body | None]]
"""Carries out the request for one share partition. Returns the fields of its result."""


async def results(body: StateBody[P], ask: Ask[P]) -> Body:
    """Returns the response. Share partitions wait for their replicas together, a hundred at a time."""
    group_id, topics = body.group_id, []

    def wanted() -> Iterator[tuple[list[Body], uuid.UUID | None, P]]:
        for topic in body.topics:
            partitions: list[Body] = []
            topics.append({"topic_id": topic.topic_id, "partitions": partitions})
            for partition in topic.partitions:
                yield partitions, topic.topic_id, partition

    left = wanted()
    while some := list(islice(left, PARTITIONS_AT_ONCE)):
        found = await asyncio.gather(*(_result(group_id, topic_id, one, ask) for _, topic_id, one in some))
        for (partitions, _, _), result in zip(some, found, strict=True):
            partitions.append(result)
    return {"results": topics}


async def _result(group_id: str, topic_id: uuid.UUID | None, partition: P, ask: Ask[P]) -> Body:
    index = partition.partition
    try:
        fields = await ask(SharePartitionKey(group_id, topic_id or NO_TOPIC_ID, index), partition)
    except RESPONSE_ERRORS as error:
        return {"partition": index, "error_code": code_of(error), "error_message": message_of(error)}
    return {"partition": index, "error_code": ErrorCode.none, **(fields or {})}


def refusals(body: StateBody[Partition], code: ErrorCode) -> Body:
    """Returns a response with ``code`` for every share partition."""

    def partition(wanted: Partition) -> Body:
        return {"partition": wanted.partition, "error_code": code, "error_message": code.name}

    def topic(named: Topic[Partition]) -> Body:
        return {"topic_id": named.topic_id, "partitions": LazyArray(named.partitions, partition)}

    return {"results": LazyArray(body.topics, topic)}
