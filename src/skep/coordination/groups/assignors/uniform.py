"""The ``uniform`` assignor: all members get the same number of partitions, give or take one, with the fewest moves.

If all members subscribe to the same topics, quotas decide: of P partitions each of M members gets P // M, and P % M of
them one more, preferably those that have the most already. Each member keeps its partitions up to its quota; the
surplus and the free partitions go to the others. No assignment with these quotas moves fewer partitions.

``uniform_general`` is for members that subscribe to different topics.
"""

import itertools
import uuid

from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors import uniform_general
from skep.coordination.groups.assignors.spec import (
    Assignment,
    PartitionCounts,
    Subscribers,
    Working,
    assignment_of,
    free_partitions,
    kept_partitions,
)


def assign(subscribers: Subscribers, counts: PartitionCounts) -> Work[Assignment]:
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) > 1:
        return (yield from uniform_general.assign(subscribers, counts))
    # Sorted, so that the same group gets the same assignment after a replay, which may have another order.
    kept = yield from kept_partitions(subscribers, counts, sorted(subscribers))
    quotas = _quotas(kept, sum(counts.values()))
    for member, quota in quotas.items():
        _take_back(kept[member], quota)
        yield
    free = yield from free_partitions(kept, counts)
    yield from _fill_up(kept, quotas, free)
    return (yield from assignment_of(kept, subscribers))


def _quotas(kept: Working, total: int) -> dict[str, int]:
    if not kept:
        return {}
    quota, extra = divmod(total, len(kept))
    by_size = sorted(kept, key=lambda member: (-_size(kept[member]), member))
    return {member: quota + (place < extra) for place, member in enumerate(by_size)}


def _size(mine: dict[uuid.UUID, set[int]]) -> int:
    return sum(map(len, mine.values()))


def _take_back(mine: dict[uuid.UUID, set[int]], quota: int) -> None:
    over = _size(mine) - quota
    if over <= 0:
        return
    for topic in sorted(mine, reverse=True):
        for partition in sorted(mine[topic], reverse=True)[:over]:
            mine[topic].remove(partition)
            over -= 1


def _fill_up(kept: Working, quotas: dict[str, int], free: dict[uuid.UUID, set[int]]) -> Work[None]:
    in_order = ((topic, partition) for topic in sorted(free) for partition in sorted(free[topic]))
    for member, quota in quotas.items():
        mine = kept[member]
        for topic, partition in itertools.islice(in_order, max(0, quota - _size(mine))):
            mine.setdefault(topic, set()).add(partition)
        yield
