"""Requests that name many things at once: groups, transactional ids. Each is asked for by itself, all in slices.

A name that is given again is asked for once, and is in the response once. Kafka (KafkaApis, 4.x) does the same in
DeleteGroups, but has an entry for each time that a name is given in DescribeGroups, ConsumerGroupDescribe,
DescribeTransactions, DescribeProducers and OffsetFetch. The admin clients of Java and librdkafka send each name once;
others find what they asked for by its name.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from skep.base.errors import KafkaError
from skep.base.loop.slicer import Slicer, Work

N = TypeVar("N")

Ask = Callable[[N], Any]
"""Gives the response for one name, or an awaitable of it; raises, or fails with, KafkaError."""
Refuse = Callable[[N, KafkaError], Any]
"""What stands in the response's place."""


NAMES_AT_ONCE = 100
"""Looked at without a pause."""


def each_once(names: Iterable[N]) -> Work[list[N]]:
    """The ``names`` in the order in which they are given first."""
    seen: dict[N, None] = {}
    for number, name in enumerate(names):
        seen[name] = None
        if not number % NAMES_AT_ONCE:
            yield
    return list(seen)


def named(topics: Iterable[Any]) -> Work[tuple[dict[str, Any], set[str]]]:
    """The elements of a request by their names, and the names that are given more than once."""
    by_name: dict[str, Any] = {}
    twice: set[str] = set()
    for number, topic in enumerate(topics):
        if topic.name in by_name:
            twice.add(topic.name)
        by_name[topic.name] = topic
        if not number % NAMES_AT_ONCE:
            yield
    return by_name, twice


async def ask_each(slicer: Slicer, names: Iterable[N], ask: Ask[N], refuse: Refuse[N]) -> list[Any]:
    """The response for each of ``names``, in the order in which they are given first."""
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
    """Asks up to the first response that has to be waited for, and returns that one."""
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
