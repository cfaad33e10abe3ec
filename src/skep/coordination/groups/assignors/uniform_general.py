"""The ``uniform`` assignor for members that do not all subscribe to the same topics.

Equal numbers may be out of reach: a member that alone subscribes to a topic has all of its partitions. What is reached
is that no single move makes it more even: nobody has two partitions more than another member that could take one of
them. Each member begins with what it had; free partitions go to the subscriber with the fewest, first those of topics
that few can take; then partitions move from who has most to who has least.

Topics with the same subscribers are looked at together, for among them any partition can move. Several such sets share
members, so moves within one may unsettle another: the sets are gone through until nothing moves, at most ``MAX_PASSES``
times. Each move makes the sum of the squares of all loads smaller, so without a limit it would end, too, but in a long
chain of sets only after many passes.
"""

import heapq
import uuid

from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import (
    Assignment,
    PartitionCounts,
    Subscribers,
    Working,
    assignment_of,
    free_partitions,
    kept_partitions,
)

MAX_PASSES = 16


def assign(subscribers: Subscribers, counts: PartitionCounts) -> Work[Assignment]:
    order = sorted(subscribers)
    members_of: dict[uuid.UUID, list[str]] = {}
    for member in order:
        for topic in subscribers[member].topic_ids:
            members_of.setdefault(topic, []).append(member)
        yield
    kept = yield from kept_partitions(subscribers, counts, order)
    loads = {member: sum(map(len, mine.values())) for member, mine in kept.items()}
    yield from _give_free(kept, loads, members_of, counts)
    topics_of: dict[tuple[str, ...], list[uuid.UUID]] = {}
    for topic in sorted(members_of):
        topics_of.setdefault(tuple(members_of[topic]), []).append(topic)
        yield
    for _ in range(MAX_PASSES):
        moves = 0
        for members, topics in topics_of.items():
            moves += yield from _even_out(kept, loads, members, topics)
        if not moves:
            break
    return (yield from assignment_of(kept, subscribers))


def _give_free(
    kept: Working, loads: dict[str, int], members_of: dict[uuid.UUID, list[str]], counts: PartitionCounts
) -> Work[None]:
    free = yield from free_partitions(kept, {topic: counts[topic] for topic in members_of})

    def scarcity(topic: uuid.UUID) -> tuple[float, int, uuid.UUID]:
        return (-counts[topic] / len(members_of[topic]), len(members_of[topic]), topic)

    for topic in sorted((topic for topic, partitions in free.items() if partitions), key=scarcity):
        heap = [(loads[member], member) for member in members_of[topic]]
        heapq.heapify(heap)
        for partition in sorted(free[topic]):
            load, member = heap[0]
            kept[member].setdefault(topic, set()).add(partition)
            loads[member] = load + 1
            heapq.heapreplace(heap, (load + 1, member))
            yield


def _even_out(kept: Working, loads: dict[str, int], members: tuple[str, ...], topics: list[uuid.UUID]) -> Work[int]:
    """Moves partitions of ``topics``, to which exactly ``members`` subscribe, while that helps; how many it moved."""
    if max(loads[member] for member in members) - min(loads[member] for member in members) <= 1:
        return 0
    # Entries whose load is not the member's any more are passed over; each move pushes the new ones.
    least = [(loads[member], member) for member in members]
    most = [(-loads[member], member) for member in members]
    heapq.heapify(least)
    heapq.heapify(most)
    moves = 0
    while most:
        yield
        load, giver = -most[0][0], most[0][1]
        topic = next((topic for topic in topics if kept[giver].get(topic)), None)
        if load != loads[giver] or topic is None:
            heapq.heappop(most)
            continue
        while least[0][0] != loads[least[0][1]]:
            heapq.heappop(least)
        taker = least[0][1]
        if load - loads[taker] <= 1:
            break
        partition = max(kept[giver][topic])
        kept[giver][topic].remove(partition)
        kept[taker].setdefault(topic, set()).add(partition)
        loads[giver] -= 1
        loads[taker] += 1
        moves += 1
        for member in (giver, taker):
            heapq.heappush(least, (loads[member], member))
            heapq.heappush(most, (-loads[member], member))
    return moves
