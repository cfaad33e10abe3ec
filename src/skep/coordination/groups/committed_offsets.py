"""The offsets of all groups of a shard: those that are committed, and those of open transactions.

The offsets of a transaction are pending under its producer id until its marker is replayed. If a plain commit for the
same partition is written in between, the later record in the log wins, whichever takes effect first.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from skep.coordination.group_records import OffsetCommitKey, OffsetCommitValue
from skep.coordination.groups.group_memory import GROUP_BYTES, OFFSET_BYTES, Memory

Place = tuple[str, int]
"""Topic and partition."""


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    record_offset: int
    """The offset of its record in the log."""


_Partitions = dict[Place, CommittedOffset]

_NONE: Mapping[Place, CommittedOffset] = {}


class CommittedOffsets:
    """Owns the offsets of one shard, which change by replay alone. A group without offsets has no entry.

    Between calls ``_producers`` has, for each group, the producers with an entry for it in ``_pending``.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()
        self._committed: dict[str, _Partitions] = {}
        self._pending: dict[int, dict[str, _Partitions]] = {}
        self._producers: dict[str, set[int]] = {}

    def __len__(self) -> int:
        """The number of groups with a committed offset."""
        return len(self._committed)

    def of_group(self, group: str) -> Mapping[Place, CommittedOffset]:
        """Returns the committed offsets, live: the caller must neither change nor keep them."""
        return self._committed.get(group, _NONE)

    def snapshot(self, group: str) -> Mapping[Place, CommittedOffset]:
        """Returns a copy of the committed offsets: 100,000 offsets take 1 ms."""
        committed = self._committed.get(group)
        return _NONE if committed is None else committed.copy()

    def partitions_of_group(self, group: str) -> list[Place]:
        """Returns the partitions that have an offset, or get one when a transaction commits."""
        committed = self.of_group(group)
        return [*committed, *(place for place in self.pending_places(group) if place not in committed)]

    def some_partitions_of_group(self, group: str, limit: int) -> list[Place]:
        """Returns the first ``limit`` of ``partitions_of_group``."""
        pending = (self._pending[producer][group] for producer in self._producers.get(group, ()))
        found: dict[Place, None] = {}
        for place in itertools.chain(self.of_group(group), *pending):
            found[place] = None
            if len(found) == limit:
                break
        return list(found)

    def groups(self) -> list[str]:
        """Returns the groups that have an offset."""
        return list(self._committed)

    def all_groups(self) -> list[str]:
        """Returns the groups that have an offset, or get one when a transaction commits."""
        return [*self._committed, *(group for group in self._producers if group not in self._committed)]

    def has_offsets(self, group: str) -> bool:
        """Whether the group has an offset, or gets one when a transaction commits."""
        return group in self._committed or self.has_pending(group)

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for the partition."""
        place = (topic, partition)
        return any(place in self._pending[producer][group] for producer in self._producers.get(group, ()))

    def has_pending(self, group: str) -> bool:
        return group in self._producers

    def pending_places(self, group: str) -> set[Place]:
        """Returns the partitions for which open transactions have an offset."""
        return set().union(*(self._pending[producer][group] for producer in self._producers.get(group, ())))

    def count_pending(self, group: str) -> int:
        return sum(len(self._pending[producer][group]) for producer in self._producers.get(group, ()))

    # Replay.

    def replay(
        self, record_offset: int, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None
    ) -> None:
        place = (key.topic, key.partition)
        if value is None:
            self._delete(key.group, place)
            for producer in self._producers.get(key.group, ()):
                self._remove(self._pending[producer][key.group], place)
            return
        # Like a call of the class, without its overhead: this runs for every commit, and for all of them at a restart.
        offset = tuple.__new__(CommittedOffset, (*value, record_offset))
        if producer_id is None:
            partitions = self._committed.get(key.group)
            if partitions is None:
                partitions = self._committed_of(key.group)
        else:
            partitions = self._pending.setdefault(producer_id, {}).setdefault(key.group, {})
            self._producers.setdefault(key.group, set()).add(producer_id)
        before = partitions.get(place)
        if before is None:
            self._memory.bytes += OFFSET_BYTES + len(value.metadata)
        elif before.metadata or value.metadata:
            self._memory.bytes += len(value.metadata) - len(before.metadata)
        partitions[place] = offset

    def _committed_of(self, group: str) -> _Partitions:
        partitions = self._committed.get(group)
        if partitions is None:
            partitions = self._committed[group] = {}
            self._memory.bytes += GROUP_BYTES
        return partitions

    def _drop_if_empty(self, group: str) -> None:
        if not self._committed[group]:
            del self._committed[group]
            self._memory.bytes -= GROUP_BYTES

    def _remove(self, partitions: _Partitions, place: Place) -> None:
        before = partitions.pop(place, None)
        if before is not None:
            self._memory.bytes -= OFFSET_BYTES + len(before.metadata)

    def _delete(self, group: str, place: Place) -> None:
        partitions = self._committed.get(group)
        if partitions is not None:
            self._remove(partitions, place)
            self._drop_if_empty(group)

    def end_of_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        for group, partitions in self._pending.pop(producer_id, {}).items():
            self._producers[group].discard(producer_id)
            if not self._producers[group]:
                del self._producers[group]
            self._memory.bytes -= _bytes(partitions.values())
            if not is_committed:
                continue
            committed = self._committed_of(group)
            # In comprehensions: a transaction may have committed a hundred thousand offsets.
            newer = {
                place: offset
                for place, offset in partitions.items()
                if (current := committed.get(place)) is None or current.record_offset < offset.record_offset
            }
            self._memory.bytes += _bytes(newer.values())
            self._memory.bytes -= _bytes([committed[place] for place in committed.keys() & newer.keys()])
            committed.update(newer)
            self._drop_if_empty(group)


def _bytes(offsets: Iterable[CommittedOffset]) -> int:
    return sum([OFFSET_BYTES + len(offset.metadata) for offset in offsets])
