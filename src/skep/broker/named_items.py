"""Requests that name many items, such as groups or transactional ids. The items are processed one by one, in slices.

A name that is repeated is processed once, and is in the response once. Kafka (KafkaApis, 4.x) does the same in
DeleteGroups, but returns an entry for each repetition in DescribeGroups, ConsumerGroupDescribe, DescribeTransactions,
DescribeProducers and OffsetFetch. The admin clients of Java and librdkafka send each name once; other clients find
their entries by name.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from skep.base.errors import KafkaError
from skep.base.loop.slicer import Slicer, Work


class HasName(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N")
T = TypeVar("T", bound=HasName)

Ask = Callable[[N], Any]
"""Returns the response for one name, or an awaitable of it; raises, or fails with, KafkaError."""
Refuse = Callable[[N, KafkaError], Any]
"""Returns the entry of a name that was refused."""


NAMES_AT_ONCE = 100
"""Names visited without a pause."""


def each_once(names: Iterable[N]) -> Work[list[N]]:
    """Returns the distinct ``names`` in the order of their first occurrence."""
    seen: dict[N, None] = {}
    for number, name in enumerate(names):
        seen[name] = None
        if not number % NAMES_AT_ONCE:
            yield
    return list(seen)


def named(topics: Iterable[T]) -> Work[tuple[dict[str, T], set[str]]]:
    """Returns the elements of a request by name, and the names that occur more than once."""
    by_name: dict[str, T] = {}
    twice: set[str] = set()
    for number, topic in enumerate(topics):
        if topic.name in by_name:
            twice.add(topic.name)
        by_name[topic.name] = topic
        if not number % NAMES_AT_ONCE:
            yield
    return by_name, twice


async def ask_each(slicer: Slicer, names: Iterable[N], ask: Ask[N], refuse: Refuse[N]) -> list[Any]:
    """Returns the response for each distinct name, in the order of their first occurrence."""
    left = iter(await slicer.finish(each_once(names)))
    responses: list[Any] = []
    while (waiting := await slicer.finish(_asked(left, responses, ask, refuse))) is not None:
        name, response = waiting
        try:
            responses.append(await response)
        except KafkaError as error:
            responses.append(refuse(name, error))
    return responses


def _asked(
    left: Iterator[N], responses: list[Any], ask: Ask[N], refuse: Refuse[N]
) -> Work[tuple[N, Awaitable[Any]] | None]:
    """Processes names up to the first response that is an awaitable, and returns that one."""
    for name in left:
        try:
            response = ask(name)
        except KafkaError as error:
            response = refuse(name, error)
        if isinstance(response, Awaitable):
            return name, response
        responses.append(response)
        yield
    return None
