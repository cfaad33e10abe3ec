"""The offsets of all groups of a shard: what is committed, and what transactions that still run are going to commit.

A transaction's offsets wait under its producer id until its marker comes. If a plain commit for the same partition is
written in between, the later record in the log wins, whatever the order in which they come to count.
"""

from typing import NamedTuple

from skep.coordination.group_records import OffsetCommitKey, OffsetCommitValue


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    record_offset: int
    """Where in the log its record lies."""


_Partitions = dict[tuple[str, int], CommittedOffset]


class Offsets:
    """Owns the offsets of one shard; changed by replay alone. A group without offsets has no entry."""

    def __init__(self) -> None:
        self._committed: dict[str, _Partitions] = {}
        self._pending: dict[int, dict[str, _Partitions]] = {}

    def __len__(self) -> int:
        """How many groups have an offset."""
        return len(self._committed)

    def of_group(self, group: str) -> dict[tuple[str, int], CommittedOffset]:
        """(topic, partition) -> what is committed. Not to be changed."""
        return self._committed.get(group, {})

    def partitions_of_group(self, group: str) -> list[tuple[str, int]]:
        """Those that have an offset, or will have one when a transaction commits."""
        pending = (place for groups in self._pending.values() for place in groups.get(group, ()))
        return list(dict.fromkeys((*self._committed.get(group, ()), *pending)))

    def groups(self) -> list[str]:
        """Those that have an offset."""
        return list(self._committed)

    def all_groups(self) -> list[str]:
        """Those that have an offset, or will have one when a transaction commits."""
        return list(
            dict.fromkeys((*self._committed, *(group for groups in self._pending.values() for group in groups)))
        )

    def has_offsets(self, group: str) -> bool:
        """Also one that a transaction is going to commit."""
        return group in self._committed or self.has_pending(group)

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended has an offset for it."""
        return any((topic, partition) in groups.get(group, ()) for groups in self._pending.values())

    def has_pending(self, group: str) -> bool:
        return any(group in groups for groups in self._pending.values())

    # Replay.

    def replay(
        self, record_offset: int, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int | None
    ) -> None:
        place = (key.topic, key.partition)
        if value is None:
            self._forget(key.group, place)
            for groups in self._pending.values():
                if key.group in groups:
                    groups[key.group].pop(place, None)
            return
        # What a call of the class does, without its checks: this is done for each commit, and for each at a restart.
        offset = tuple.__new__(CommittedOffset, (*value, record_offset))
        if producer_id is None:
            self._committed.setdefault(key.group, {})[place] = offset
        else:
            self._pending.setdefault(producer_id, {}).setdefault(key.group, {})[place] = offset

    def _forget(self, group: str, place: tuple[str, int]) -> None:
        partitions = self._committed.get(group)
        if partitions is not None:
            partitions.pop(place, None)
            if not partitions:
                del self._committed[group]

    def end_of_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        for group, partitions in self._pending.pop(producer_id, {}).items():
            if not is_committed:
                continue
            committed = self._committed.setdefault(group, {})
            for place, offset in partitions.items():
                current = committed.get(place)
                if current is None or current.record_offset < offset.record_offset:
                    committed[place] = offset
            if not committed:
                del self._committed[group]
