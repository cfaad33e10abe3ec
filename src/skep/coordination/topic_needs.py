"""What the groups of a cluster still need of topics, for topics that delete what was acknowledged.

A consumer group, classic or not, needs the records from its committed offset on. A share group needs those from the
start of its window on. A group that is known to read a topic and has no offset for one of its partitions yet needs
everything there: it may have begun anywhere. The same is true of a share group that has the state of some partitions of
a topic and not of all, which happens when partitions are added while it has no member.

The group in which the writer of dead letters notes what it has copied (``NOTES_PREFIX``) has offsets and reads nothing.

Each coordinator knows some of the groups. It counts them, and how many of them have an offset for a partition; the sums
over all coordinators say whether one has none. So nobody needs to know how many partitions there are.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from skep.base.dead_letters import NOTES_PREFIX
from skep.base.loop.slicer import Work
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.share.share_state import UNINITIALIZED
from skep.coordination.share.share_table import ShareTable

GROUPS_AT_ONCE = 100
PLACES_AT_ONCE = 1_000
"""Visited without a pause."""

Topics = Mapping[str, UUID]
"""The topics that are asked for. A topic that was deleted and created again has another id."""


class TopicNeeds:
    """What some groups need of one topic. ``groups`` are those with committed offsets, or without any offset yet."""

    __slots__ = ("_counts", "_lowest", "groups")

    def __init__(self) -> None:
        self.groups = 0
        self._counts: dict[int, int] = {}
        self._lowest: dict[int, int] = {}

    def add_group(self, offsets: Mapping[int, int]) -> None:
        """Adds a group that needs everything, but in partitions with an offset only what comes from there on."""
        self.groups += 1
        for partition, offset in offsets.items():
            self._add(partition, offset, 1)

    def add_share(self, partition: int, start_offset: int) -> None:
        """Adds the state that a share group has of one partition. Its start is not chosen yet if it is -1."""
        self._add(partition, start_offset, 0)

    def _add(self, partition: int, lowest: int, count: int) -> None:
        self._counts[partition] = self._counts.get(partition, 0) + count
        self._lowest[partition] = min(lowest, self._lowest.get(partition, lowest))

    def merge(self, other: "TopicNeeds") -> None:
        self.groups += other.groups
        for partition, lowest in other._lowest.items():
            self._add(partition, lowest, other._counts[partition])

    def deletable_before(self, partition: int) -> int | None:
        """Returns the first offset that a group needs; None if everything is needed, or there is no group."""
        if self._counts.get(partition, 0) < self.groups:
            return None
        lowest = self._lowest.get(partition, UNINITIALIZED)
        return None if lowest == UNINITIALIZED else lowest

    # As JSON, between brokers.

    def to_json(self) -> dict[str, Any]:
        partitions = [[partition, lowest, self._counts[partition]] for partition, lowest in self._lowest.items()]
        return {"groups": self.groups, "partitions": partitions}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "TopicNeeds":
        needs = cls()
        needs.groups = int(found["groups"])
        for partition, lowest, count in found["partitions"]:
            needs._add(int(partition), int(lowest), int(count))
        return needs


Needs = dict[str, TopicNeeds]


def merge_needs(into: Needs, other: Mapping[str, TopicNeeds]) -> None:
    for name, needs in other.items():
        into.setdefault(name, TopicNeeds()).merge(needs)


def needs_of_groups(table: GroupTable, topics: Topics) -> Work[Needs]:
    """Returns what the groups in a shard of ``__consumer_offsets`` need, without the states of share groups."""
    needs: Needs = {name: TopicNeeds() for name in topics}
    for name, topic_id in topics.items():
        known = table.image().topics.get(name)
        # The offsets of a deleted topic may still be there, under the name that the new one has.
        if known is None or known.topic_id != topic_id or name in table.deleted_topics:
            needs[name].add_group({})
    groups = table.groups
    seen = set(groups)
    for number, group_id in enumerate(itertools.chain(list(groups), table.offsets.all_groups())):
        group = groups.get(group_id)
        if (number >= len(seen) and group_id in seen) or _has_notes_only(group_id, group):
            pass
        elif isinstance(group, ShareGroup):
            for name in _uninitialized(group, table, topics):
                needs[name].add_group({})
        else:
            found = yield from _offsets_of(table, group_id, topics)
            if group is not None and not group.is_empty:
                for name in topics:
                    if name not in found and group.is_subscribed_to(name):
                        found[name] = {}
            for name, offsets in found.items():
                needs[name].add_group(offsets)
        if not number % GROUPS_AT_ONCE:
            yield
    return needs


def _has_notes_only(group_id: str, group: Group | None) -> bool:
    """Whether the offsets are notes of dead letters. A group of that name with members is somebody's own."""
    is_in_use = isinstance(group, ShareGroup) or (group is not None and not group.is_empty)
    return group_id.startswith(NOTES_PREFIX) and not is_in_use


def _uninitialized(group: ShareGroup, table: GroupTable, topics: Topics) -> Iterator[str]:
    """Yields the topics that the group reads or is about to, and has not the state of all partitions of."""
    for name, topic_id in topics.items():
        known = table.image().topics.get(name)
        is_read = name in group.name_counts or topic_id in group.states.initialized
        count = 0 if known is None or not is_read else len(known.partitions)
        if topic_id in group.states.initializing or group.states.missing(topic_id, count):
            yield name


def _offsets_of(table: GroupTable, group_id: str, topics: Topics) -> Work[dict[str, dict[int, int]]]:
    """Returns the committed offsets by topic and partition. A topic for which only an open transaction has offsets has
    no partitions: if it is aborted, the group begins again."""
    found: dict[str, dict[int, int]] = {}
    committed = table.offsets.of_group(group_id)
    # A copy only of what is visited with pauses: the offsets may change meanwhile.
    places = list(committed.items()) if len(committed) > PLACES_AT_ONCE else committed.items()
    for number, ((name, partition), one) in enumerate(places, 1):
        if name in topics:
            found.setdefault(name, {})[partition] = one.offset
        if not number % PLACES_AT_ONCE:
            yield
    if table.offsets.has_pending(group_id):
        for name, _ in table.offsets.pending_places(group_id):
            if name in topics:
                found.setdefault(name, {})
    return found


def needs_of_shares(table: ShareTable, topics: Topics) -> Work[Needs]:
    """Returns what share groups need by their states in a shard of ``__share_group_state``."""
    needs: Needs = {name: TopicNeeds() for name in topics}
    names = {topic_id: name for name, topic_id in topics.items()}
    for number, (key, state) in enumerate(list(table.states.items())):
        name = names.get(key.topic_id)
        if name is not None:
            needs[name].add_share(key.partition, state.start_offset)
        if not number % PLACES_AT_ONCE:
            yield
    return needs
