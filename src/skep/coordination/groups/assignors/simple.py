"""The ``simple`` assignor of share groups (KIP-932): a partition may have several members.

Of P partitions and M members, each partition gets ceil(M / P) members if M is greater than P, and otherwise one. These
places are divided evenly: each member gets ``low`` of them, and some one more. Balance comes first; then each member
keeps what it has::

    4 partitions, 2 members    2 places each
    4 partitions, 3 members    2, 1 and 1
    2 partitions, 3 members    2 members a partition: 2, 1 and 1

Every partition has a member, as long as there is a member that subscribes to its topic. An assignment that is its own
input does not change.

If members subscribe to different topics, each topic is divided for itself among those that subscribe to it, as in
Kafka.
"""

import heapq
import uuid
from collections.abc import Collection, Iterator, Sequence

from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Assignment, Partitions, Subscribers, Working, assignment_of

PLACES_AT_ONCE = 16
"""Places in one step of the work: some 0.02 ms."""

Place = tuple[int, int]
"""The number of a topic in the order of their ids, and a partition. UUIDs take ten times as long to compare."""


def assign(subscribers: Subscribers, assignable: Partitions) -> Work[Assignment]:
    """Assigns the ``assignable`` partitions of each topic."""
    # Sorted, so that the same group gets the same assignment after a replay, which may have another order.
    members = sorted(subscribers)
    working: Working = {member: {} for member in members}
    subscriptions = {subscriber.topic_ids for subscriber in subscribers.values()}
    topics = sorted(frozenset().union(*subscriptions) & assignable.keys())
    if len(subscriptions) == 1:
        yield from _share_out(members, topics, assignable, subscribers, working)
    else:
        for topic in topics:
            among = [member for member in members if topic in subscribers[member].topic_ids]
            yield from _share_out(among, [topic], assignable, subscribers, working)
    return (yield from assignment_of(working, subscribers))


def _share_out(
    members: Sequence[str],
    topics: Sequence[uuid.UUID],
    assignable: Partitions,
    subscribers: Subscribers,
    working: Working,
) -> Work[None]:
    """Adds the shares of these members in these topics to ``working``."""
    shares = _Shares(members, sum(len(assignable[topic]) for topic in topics))
    for number, topic in enumerate(topics):
        for partition in sorted(assignable[topic]):
            shares.of_place[number, partition] = set()
            if not partition % PLACES_AT_ONCE:
                yield
    numbers = {topic: number for number, topic in enumerate(topics)}
    for member in members:
        for topic, partitions in subscribers[member].partitions.items():
            if topic in numbers:
                for partition in partitions & assignable[topic]:
                    shares.give(member, (numbers[topic], partition))
                    if not partition % PLACES_AT_ONCE:
                        yield
        yield
    yield from _take_back(shares)
    yield from _fill_members(shares)
    yield from _fill_places(shares)
    for member, places in shares.of_member.items():
        for number, partition in places:
            working[member].setdefault(topics[number], set()).add(partition)
            if not partition % PLACES_AT_ONCE:
                yield
        yield


class _Shares:
    """Who has which of so many ``places``. No member has a place twice."""

    def __init__(self, members: Sequence[str], places: int) -> None:
        self.sharing = -(-len(members) // places) if places else 0
        self.low, self.extra = divmod(self.sharing * places, len(members))
        self.of_member: dict[str, set[Place]] = {member: set() for member in members}
        self.of_place: dict[Place, set[str]] = {}

    def give(self, member: str, place: Place) -> None:
        self.of_member[member].add(place)
        self.of_place[place].add(member)

    def take(self, member: str, place: Place) -> None:
        self.of_member[member].discard(place)
        self.of_place[place].discard(member)

    def by_size(self, members: Collection[str]) -> list[str]:
        """Returns the members, those with the most places first."""
        return sorted(members, key=lambda member: (-len(self.of_member[member]), member))

    def open_places(self) -> Work[list[tuple[int, Place]]]:
        """Returns the places with room for a member, as a heap: those with the fewest members first."""
        heap = []
        for place, members in self.of_place.items():
            if len(members) < self.sharing:
                heap.append((len(members), place))
            if not place[1] % PLACES_AT_ONCE:
                yield
        heapq.heapify(heap)
        return heap


def _take_back(shares: _Shares) -> Work[None]:
    """Takes places from those who have too many, and members from places that have too many."""
    for place, members in shares.of_place.items():
        if len(members) > shares.sharing:
            for member in shares.by_size(members)[: len(members) - shares.sharing]:
                shares.take(member, place)
            yield
    for number, member in enumerate(shares.by_size(shares.of_member)):
        places = shares.of_member[member]
        over = len(places) - shares.low - (number < shares.extra)
        if over > 0:
            for place in sorted(places, reverse=True)[:over]:
                shares.take(member, place)
        yield


def _fill_members(shares: _Shares) -> Work[None]:
    """Gives every member ``low`` places, first those that nobody has.

    There are enough: a member with fewer than ``low`` places means that some place has room. With M greater than P,
    ``low`` is 1 and such a member has none; otherwise a place with room has no member at all.
    """
    heap = yield from shares.open_places()
    for member, places in shares.of_member.items():
        while len(places) < shares.low:
            has, place = heapq.heappop(heap)
            shares.give(member, place)
            if has + 1 < shares.sharing:
                heapq.heappush(heap, (has + 1, place))
            if not place[1] % PLACES_AT_ONCE:
                yield
        yield


def _fill_places(shares: _Shares) -> Work[None]:
    """Gives the places that are left to members that have ``low``, as many as may have one more."""
    left = shares.extra - sum(len(places) > shares.low for places in shares.of_member.values())
    if left <= 0:
        return
    heap = yield from shares.open_places()
    candidates = [member for member, places in shares.of_member.items() if len(places) <= shares.low]
    while left > 0 and heap:
        has, place = heapq.heappop(heap)
        member = next(_without(candidates, shares.of_place[place]), None)
        if member is not None:
            candidates.remove(member)
            shares.give(member, place)
            left -= 1
            if has + 1 < shares.sharing:
                heapq.heappush(heap, (has + 1, place))
        yield


def _without(members: Sequence[str], unwanted: Collection[str]) -> Iterator[str]:
    return (member for member in members if member not in unwanted)
