"""Which partitions of a follower's fetch session have news, so that a fetch does not look at all of them.

A follower fetches every partition that it copies from this broker in one session, a thousand times a second under load.
Looking at a partition takes some microseconds, four times for each record that is produced one at a time (two
followers, each of which is answered and asks again). With thirty partitions in the session that was more than all else.

So the session keeps a list of what to look at: what the follower's request names, where something was appended, where
the high watermark moved, and what a look left unfinished or the follower was not told yet. The partitions tell it
(``Tail.watches``). Everything is looked at every ``FULL_LOOK_S`` all the same: a look also tells the leader that the
follower is alive, on which the ISR depends, and finds what nobody tells, such as a log start that moved.
"""

from uuid import UUID

from skep.replication.partition.delayed_fetch import ParkedFetch, Tail
from skep.replication.partition.partition import Partition

FULL_LOOK_S = 0.25

Key = tuple[str | UUID, int]


class FollowerWatch:
    """Owns the list of one session, and its places in the ``watches`` of the partitions that were looked at.

    Between calls a partition that is not on the list was found without news by the last look and has a watch. ``close``
    has to be called when the session ends.
    """

    __slots__ = ("_full_look_at", "_watches", "fetch", "news", "pending")

    def __init__(self) -> None:
        self.pending: dict[Key, None] = {}
        """In the order in which they are looked at: under a tight limit all get their turn."""
        self.fetch: ParkedFetch | None = None
        self.news = 0
        """How often something came that wakes a fetch."""
        self._watches: dict[Key, _Watch] = {}
        self._full_look_at = float("-inf")

    def is_full_look_due(self, now: float) -> bool:
        """Whether the look that begins now has to be at everything; it is noted as done."""
        if now - self._full_look_at < FULL_LOOK_S:
            return False
        self._full_look_at = now
        return True

    def forget(self, key: Key) -> None:
        self.pending.pop(key, None)
        if (watch := self._watches.pop(key, None)) is not None:
            watch.leave()

    def looked_at(self, key: Key, partition: Partition, *, is_done: bool) -> None:
        """``is_done``: the follower has all of the log and was told its marks."""
        watch = self._watches.get(key)
        if watch is None or watch.tail is not partition.tail:
            if watch is not None:
                watch.leave()
            self._watches[key] = _Watch(self, key, partition.tail)
        self.pending.pop(key, None)
        if not is_done:
            self.pending[key] = None

    def failed(self, key: Key) -> None:
        """An error is told in every answer until it is gone."""
        self.pending[key] = None

    def close(self) -> None:
        for watch in self._watches.values():
            watch.leave()
        self._watches.clear()


class _Watch:
    """One partition's way to tell one session."""

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
