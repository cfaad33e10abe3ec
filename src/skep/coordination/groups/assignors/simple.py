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

Place = tuple[uuid.UUID, int]


def assign(subscribers: Subscribers, assignable: Partitions) -> Work[Assignment]:
    """Assigns the ``assignable`` partitions of each topic."""
    # Sorted, so that the same group gets the same assignment after a replay, which may have another order.
    members = sorted(subscribers)
    working: Working = {member: {} for member in members}
    subscriptions = {subscriber.topic_ids for subscriber in subscribers.values()}
    topics = sorted(frozenset().union(*subscriptions) & assignable.keys())
    if len(subscriptions) == 1:
        yield from _share_out(_Shares(members, _places(topics, assignable)), subscribers, working)
    else:
        for topic in topics:
            among = [member for member in members if topic in subscribers[member].topic_ids]
            yield from _share_out(_Shares(among, _places([topic], assignable)), subscribers, working)
    return (yield from assignment_of(working, subscribers))


def _places(topics: Sequence[uuid.UUID], assignable: Partitions) -> list[Place]:
    return [(topic, partition) for topic in topics for partition in sorted(assignable[topic])]


class _Shares:
    """Who has which of ``places``. No member has a place twice."""

    def __init__(self, members: Sequence[str], places: Sequence[Place]) -> None:
        self.sharing = -(-len(members) // len(places)) if places else 0
        self.low, self.extra = divmod(self.sharing * len(places), len(members))
        self.of_member: dict[str, set[Place]] = {member: set() for member in members}
        self.of_place: dict[Place, set[str]] = {place: set() for place in places}

    def give(self, member: str, place: Place) -> None:
        self.of_member[member].add(place)
        self.of_place[place].add(member)

    def take(self, member: str, place: Place) -> None:
        self.of_member[member].discard(place)
        self.of_place[place].discard(member)

    def by_size(self, members: Collection[str]) -> list[str]:
        """Returns the members, those with the most places first."""
        return sorted(members, key=lambda member: (-len(self.of_member[member]), member))

    def open_places(self) -> list[tuple[int, Place]]:
        """Returns the places with room for a member, as a heap: those with the fewest members first."""
        heap = [(len(members), place) for place, members in self.of_place.items() if len(members) < self.sharing]
        heapq.heapify(heap)
        return heap


def _share_out(shares: _Shares, subscribers: Subscribers, working: Working) -> Work[None]:
    yield from _keep(shares, subscribers)
    yield from _take_back(shares)
    yield from _fill_members(shares)
    yield from _fill_places(shares)
    for member, places in shares.of_member.items():
        for topic, partition in places:
            working[member].setdefault(topic, set()).add(partition)
        yield


def _keep(shares: _Shares, subscribers: Subscribers) -> Work[None]:
    for member in shares.of_member:
        for topic, partitions in subscribers[member].partitions.items():
            for partition in partitions:
                if (topic, partition) in shares.of_place:
                    shares.give(member, (topic, partition))
        yield


def _take_back(shares: _Shares) -> Work[None]:
    """Takes places from those who have too many, and members from places that have too many."""
    for place, members in shares.of_place.items():
        for member in shares.by_size(members)[: max(0, len(members) - shares.sharing)]:
            shares.take(member, place)
        yield
    for number, member in enumerate(shares.by_size(shares.of_member)):
        places = shares.of_member[member]
        over = len(places) - shares.low - (number < shares.extra)
        for place in sorted(places, reverse=True)[: max(0, over)]:
            shares.take(member, place)
        yield


def _fill_members(shares: _Shares) -> Work[None]:
    """Gives every member ``low`` places, first those that nobody has.

    There are enough: a member with fewer than ``low`` places means that some place has room. With M greater than P,
    ``low`` is 1 and such a member has none; otherwise a place with room has no member at all.
    """
    heap = shares.open_places()
    for member, places in shares.of_member.items():
        while len(places) < shares.low:
            has, place = heapq.heappop(heap)
            shares.give(member, place)
            if has + 1 < shares.sharing:
                heapq.heappush(heap, (has + 1, place))
        yield


def _fill_places(shares: _Shares) -> Work[None]:
    """Gives the places that are left to members that have ``low``, as many as may have one more."""
    left = shares.extra - sum(len(places) > shares.low for places in shares.of_member.values())
    heap = shares.open_places()
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
