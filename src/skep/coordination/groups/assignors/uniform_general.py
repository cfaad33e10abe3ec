"""The ``uniform`` assignor for members that do not all subscribe to the same topics.

Equal numbers may be impossible: the only subscriber of a topic gets all of its partitions. The result is one that no
single move makes more even: no member has two partitions more than another one that could take one of them. Each member
starts with what it had. Free partitions go to the subscriber with the fewest partitions, those of topics with few
subscribers first. Then partitions move from the member with the most to the one with the fewest.

Topics with the same subscribers form a set, within which any partition can move. Sets may share members, so a move in
one can unbalance another: the sets are visited until nothing moves, at most ``MAX_PASSES`` times. Each move decreases
the sum of the squares of all loads, so it would end without a limit too, but in a long chain of sets only after many
passes.
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
    """Moves partitions of ``topics``, to which exactly ``members`` subscribe, while that helps. Returns the number."""
    if max(loads[member] for member in members) - min(loads[member] for member in members) <= 1:
        return 0
    # Entries with an outdated load are skipped; each move pushes new entries.
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
