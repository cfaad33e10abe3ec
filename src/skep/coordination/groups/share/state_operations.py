"""The operations that record which partitions of a share group have state: initializing, initialized, deleting.

The state itself is kept by a ``SharePersister``, perhaps on other brokers. So each change takes two operations with
requests to the persister in between (``share_group_coordinator.py``). The order makes a crash harmless:

- A partition is recorded as initializing before its state is initialized, and as initialized afterwards. What is only
  initializing is initialized again.
- A topic is recorded as deleting before its state is deleted on request. It is not assigned from then on, and it is
  initialized again if members subscribe to it.
- The state of a topic that was deleted itself is deleted before the topic is removed from the record, because only the
  record knows its partitions.
"""

import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.share.share_change import missing_partitions
from skep.coordination.groups.share.share_group import ShareGroup
from skep.coordination.groups.share.share_membership import share_group, share_group_or_new
from skep.coordination.shard import Outcome
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey

PAUSE_S = 5
"""After a failure partitions are not initialized again before this, however many members send heartbeats."""
PARTITIONS_AT_ONCE = 1_000
"""Partitions initialized at once. A group that subscribes to more is initialized in several rounds."""

GROUPS_AT_ONCE = 100
"""Groups visited without a pause: 0.01 ms."""

StartOffsets = Sequence[tuple[str, int, int]]
"""Topic names, partitions, and where to start in them."""


class NewState(NamedTuple):
    """A partition whose state is to be initialized."""

    key: SharePartitionKey
    start_offset: int


# Initialization.


def begin_initialization(table: GroupTable, group_id: str) -> Outcome:
    """Records the partitions of subscribed topics that have no state as initializing. The response is a list of
    NewState, empty if there are none.

    A partition that is added to a topic starts at 0: with ``latest`` the records that were produced before the group
    heard of the partition would be lost (KAFKA-20742). The partitions of a new topic start where
    share.auto.offset.reset says, also if some of them failed before the others.
    """
    group = table.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return Outcome([])
    states = group.states
    everything = missing_partitions(group, table.image().topics)
    new_topics = everything.keys() & (group.new_topics | (everything.keys() - states.initialized.keys()))
    missing = _first(everything)
    begun = states.begun(missing, _names(table, missing))
    plan = [
        NewState(
            SharePartitionKey(group_id, topic, partition),
            UNINITIALIZED if topic in new_topics else 0,
        )
        for topic, partition in _each(missing)
    ]

    def then() -> None:
        group.new_topics = frozenset(new_topics)

    return Outcome(plan, [] if begun == states else [begun.record(group_id)], then=then)


def initialized(table: GroupTable, group_id: str, keys: Collection[SharePartitionKey]) -> Outcome:
    """Records partitions as initialized. Those of topics that were deleted meanwhile are left out."""
    group = table.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return Outcome()
    done = group.states.done(_by_topic(keys))
    return Outcome(records=[] if done == group.states else [done.record(group_id)])


def initialization_failed(table: GroupTable, group_id: str) -> Outcome:
    group = table.groups.get(group_id)
    if isinstance(group, ShareGroup):
        group.initializable_at = table.clock.monotonic() + PAUSE_S
    return Outcome()


def _first(partitions: Partitions) -> dict[uuid.UUID, frozenset[int]]:
    """Returns at most ``PARTITIONS_AT_ONCE`` of the partitions."""
    left, taken = PARTITIONS_AT_ONCE, {}
    for topic, numbers in sorted(partitions.items()):
        if left <= 0:
            break
        taken[topic] = frozenset(sorted(numbers)[:left])
        left -= len(taken[topic])
    return taken


def _each(partitions: Partitions) -> Iterator[tuple[uuid.UUID, int]]:
    return ((topic, partition) for topic, numbers in sorted(partitions.items()) for partition in sorted(numbers))


def _by_topic(keys: Collection[SharePartitionKey]) -> dict[uuid.UUID, frozenset[int]]:
    found: dict[uuid.UUID, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


def _names(table: GroupTable, topics: Collection[uuid.UUID]) -> dict[uuid.UUID, str]:
    by_id = table.image().topics_by_id
    return {topic: by_id[topic].name for topic in topics}


# AlterShareGroupOffsets.


def begin_alteration(table: GroupTable, group_id: str, offsets: StartOffsets) -> Outcome:
    """Starts a new epoch, and records the partitions as initializing. The response is a list of NewState.

    A group that does not exist is created. Topics and partitions that do not exist are left out. Raises
    GROUP_ID_NOT_FOUND for a group of another kind, NON_EMPTY_GROUP.
    """
    group = share_group_or_new(table, group_id)
    _check_empty(group)
    topics = table.image().topics
    epoch = group.group_epoch + 1
    plan = [
        NewState(SharePartitionKey(group_id, topics[name].topic_id, partition), offset)
        for name, partition, offset in offsets
        if name in topics and 0 <= partition < len(topics[name].partitions)
    ]
    if not plan:
        return Outcome(plan)
    partitions = _by_topic([new.key for new in plan])
    begun = group.states.begun(partitions, _names(table, partitions))
    return Outcome(plan, [group.epoch_record(epoch, group.metadata_hash), begun.record(group_id)])


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise KafkaError(ErrorCode.non_empty_group, f"Share group {group.group_id} has members.")


# Deletion.


def begin_deletion(table: GroupTable, group_id: str, topics: Collection[uuid.UUID] | None) -> Outcome:
    """Records topics as deleting, all of the group if ``topics`` is None. The response is a list of their partitions.

    A topic whose deletion was interrupted is deleted again. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    group = share_group(table, group_id)
    _check_empty(group)
    states, by_id = group.states, table.image().topics_by_id
    partitions = dict(states.everything)
    for topic in states.deleting & by_id.keys():
        partitions[topic] = frozenset(range(len(by_id[topic].partitions)))
    if topics is not None:
        partitions = {topic: numbers for topic, numbers in partitions.items() if topic in topics}
    keys = [SharePartitionKey(group_id, *place) for place in _each(partitions)]
    deleting = states.to_delete(partitions.keys())

    def then() -> None:
        group.may_lack_state = True

    return Outcome(keys, [] if deleting == states else [deleting.record(group_id)], then=then)


def deleted(table: GroupTable, group_id: str, topics: Collection[uuid.UUID]) -> Outcome:
    """Removes topics without state from the record, unless they are being initialized again."""
    group = table.groups.get(group_id)
    if not isinstance(group, ShareGroup) or group.states.deleting.isdisjoint(topics):
        return Outcome()
    gone = group.states.deleting.intersection(topics)
    return Outcome(records=[group.states.without(gone).record(group_id)])


def delete_group(table: GroupTable, group_id: str) -> Outcome:
    """Deletes a group without state. The response is False if it has got state since, and is not deleted.

    Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """
    group = share_group(table, group_id)
    _check_empty(group)
    if group.states.initialized or group.states.initializing:
        return Outcome(False)
    return Outcome(True, group.tombstones())


# Deleted topics.


def groups_with_state_of(table: GroupTable, topics: Collection[uuid.UUID]) -> Work[list[str]]:
    found = []
    for number, group in enumerate(list(table.groups.values())):
        if isinstance(group, ShareGroup) and not group.states.names.keys().isdisjoint(topics):
            found.append(group.group_id)
        if not number % GROUPS_AT_ONCE:
            yield
    return found


def state_of(table: GroupTable, group_id: str, topics: Collection[uuid.UUID]) -> Sequence[SharePartitionKey]:
    """Returns the partitions of these topics that may have state."""
    group = table.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return ()
    return [SharePartitionKey(group_id, *place) for place in _each(group.states.everything) if place[0] in topics]


def forget(table: GroupTable, group_id: str, topics: Collection[uuid.UUID]) -> Outcome:
    """Removes deleted topics from the record. They do not come back: a topic of the same name has another id."""
    group = table.groups.get(group_id)
    if not isinstance(group, ShareGroup) or group.states.names.keys().isdisjoint(topics):
        return Outcome()
    return Outcome(records=[group.states.without(topics).record(group_id)])
