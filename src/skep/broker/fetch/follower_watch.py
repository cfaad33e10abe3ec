"""Tracks which partitions of a follower's fetch session have news, so that a fetch does not read all of them.

A follower fetches every partition that it copies from this broker in one session, a thousand times a second under load.
Reading a partition takes some microseconds, four times for each record that is produced one at a time (two followers,
each gets a response and fetches again). With thirty partitions in the session that was more than everything else.

So the session keeps a list of partitions to read: those that the request names, those with an append or a new high
watermark, those that were not read to the end, and those whose marks the follower does not have yet. The partitions
report changes (``Tail.watches``). Every ``FULL_READ_S`` all partitions are read: a read also records that the follower
is alive, on which the ISR depends, and finds changes that are not reported, e.g. of the log start offset.
"""

from uuid import UUID

from skep.replication.partition.delayed_fetch import DelayedFetch, Tail
from skep.replication.partition.partition import Partition

FULL_READ_S = 0.25

Key = tuple[str | UUID, int]


class FollowerWatch:
    """Owns the list of one session, and its watches on the partitions that were read.

    Between calls a partition that is not on the list had no news when it was read last, and has a watch. ``close`` must
    be called when the session ends.
    """

    __slots__ = ("_full_read_at", "_watches", "fetch", "news", "pending")

    def __init__(self) -> None:
        self.pending: dict[Key, None] = {}
        """In the order in which they are read, so that all get their turn under a tight limit."""
        self.fetch: DelayedFetch | None = None
        self.news = 0
        """Counts the changes that wake a delayed fetch."""
        self._watches: dict[Key, _Watch] = {}
        self._full_read_at = float("-inf")

    def is_full_read_due(self, now: float) -> bool:
        """Whether the read that begins now has to cover all partitions. If so, it is recorded as done."""
        if now - self._full_read_at < FULL_READ_S:
            return False
        self._full_read_at = now
        return True

    def forget(self, key: Key) -> None:
        self.pending.pop(key, None)
        if (watch := self._watches.pop(key, None)) is not None:
            watch.leave()

    def was_read(self, key: Key, partition: Partition, *, is_done: bool) -> None:
        """``is_done``: the follower has the whole log and its marks."""
        watch = self._watches.get(key)
        if watch is None or watch.tail is not partition.tail:
            if watch is not None:
                watch.leave()
            self._watches[key] = _Watch(self, key, partition.tail)
        self.pending.pop(key, None)
        if not is_done:
            self.pending[key] = None

    def failed(self, key: Key) -> None:
        """Keeps the partition on the list: an error is sent in every response until it is gone."""
        self.pending[key] = None

    def close(self) -> None:
        for watch in self._watches.values():
            watch.leave()
        self._watches.clear()


class _Watch:
    """Reports the changes of one partition to one session."""

    __slots__ = ("_key", "_owner", "tail")

    def __init__(self, owner: FollowerWatch, key: Key, tail: Tail) -> None:
        self._owner = owner
        self._key = key
        self.tail = tail
        tail.watches.add(self)

    def leave(self) -> None:
        self.tail.watches.discard(self)

    def moved(self) -> None:
        self._owner.pending[self._key] = None

    def more(self, size: int) -> None:
        owner = self._owner
        owner.pending[self._key] = None
        owner.news += 1
        if owner.fetch is not None:
            owner.fetch.more(size)

    def wake(self) -> None:
        owner = self._owner
        owner.pending[self._key] = None
        owner.news += 1
        if owner.fetch is not None:
            owner.fetch.wake()
