"""The follower's side of a fetch session (KIP-227): which partitions the next Fetch request has to name.

The session on the leader remembers the position of each partition. A request names only the partitions whose position
has changed since the last one, and those that the session has to forget.
"""

import asyncio
from collections.abc import Iterable

from skep.base.clock import Clock
from skep.replication.follower.followed_partition import FollowedPartition, Key
from skep.replication.partition.partition import Partition
from skep.wire.fetch.fetch_request import FetchPosition

POSITIONS_PER_TURN = 500
UNSYNCED_PAUSE_S = 0.05


class FetchSessionHandler:
    """Owns the partitions that are followed in one session.

    Between rounds ``changed`` has the partitions whose position may differ from the session's, ``paused`` those that
    are not fetched for now, and the session has to forget those in ``_forgotten``. ``id`` is 0 before the leader has
    created a session.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.followed: dict[Key, FollowedPartition] = {}
        self.changed: set[Key] = set()
        self.paused: set[Key] = set()
        self._forgotten: set[Key] = set()
        self.id = 0
        self.epoch = 0
        self._began_at = clock.monotonic()

    def follow(self, partition: Partition, *, is_new: bool, is_in_sync: bool) -> None:
        """Adds the partition, or takes over its new leader epoch and ISR membership. Ends a pause."""
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self.followed.get(key)
        if followed is None or followed.partition is not partition:
            sent = None if followed is None else followed.sent
            followed = self.followed[key] = FollowedPartition(partition, is_new, is_in_sync)
            followed.sent = sent
            self._forgotten.discard(key)
        followed.is_new, followed.is_in_sync = is_new, is_in_sync
        followed.wait_until = 0.0
        self.resume(key)

    def forget(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self.followed.get(key)
        if followed is None or followed.partition is not partition:
            return
        del self.followed[key]
        self.changed.discard(key)
        self.paused.discard(key)
        if followed.sent is not None:
            self._forgotten.add(key)

    def pause(self, followed: FollowedPartition, until: float) -> None:
        """Leaves the partition out of the session until then.

        If the session kept it, each response would come at once, with the same error.
        """
        followed.wait_until = until
        self.changed.discard(followed.key)
        self.paused.add(followed.key)
        if followed.sent is not None:
            followed.sent = None
            self._forgotten.add(followed.key)

    def resume(self, key: Key) -> None:
        self.paused.discard(key)
        self.changed.add(key)

    def due(self, now: float) -> list[FollowedPartition]:
        """Returns the paused partitions whose pause is over."""
        return [self.followed[key] for key in self.paused if self.followed[key].wait_until <= now]

    @property
    def next_due(self) -> float | None:
        """The moment at which the first pause is over; None if nothing is paused."""
        return min((self.followed[key].wait_until for key in self.paused), default=None)

    def begin(self) -> None:
        """Begins a new session: the next request names every partition."""
        self.id = self.epoch = 0
        self._began_at = self._clock.monotonic()
        self._forgotten.clear()
        for followed in self.followed.values():
            followed.sent = None
        self.changed = set(self.followed) - self.paused

    def renew_if_out_of_sync(self, now: float, after_s: float) -> None:
        """Begins a new session if a replica is out of the ISR and the session is at least ``after_s`` old.

        The two sides may disagree about the session: a position that was damaged on its way is never sent again if
        nothing is appended to the partition, and the leader waits for it in vain.
        """
        if now - self._began_at < after_s:
            return
        self._began_at = now
        if any(not followed.is_in_sync for followed in self.followed.values()):
            self.begin()

    def responded(self, session_id: int) -> None:
        """The leader has accepted a request of this session; 0 means that it keeps no session."""
        self.id = session_id
        self.epoch = self.epoch + 1 if session_id else 0

    def positions(self, max_bytes: int) -> list[FetchPosition]:
        """Returns the positions that the session does not have yet."""
        changed, self.changed = self.changed, set()
        return self._positions(changed, max_bytes)

    async def positions_in_slices(self, max_bytes: int) -> list[FetchPosition]:
        """``positions`` for very many partitions: a few of them per turn of the event loop."""
        changed, self.changed = list(self.changed), set()
        wanted = self._positions(changed[:POSITIONS_PER_TURN], max_bytes)
        for start in range(POSITIONS_PER_TURN, len(changed), POSITIONS_PER_TURN):
            await asyncio.sleep(0)
            wanted += self._positions(changed[start : start + POSITIONS_PER_TURN], max_bytes)
        if len(changed) > POSITIONS_PER_TURN:
            # Leaves out partitions that were forgotten meanwhile.
            wanted = [position for position in wanted if position[:2] in self.followed]
        return wanted

    def _positions(self, keys: Iterable[Key], max_bytes: int) -> list[FetchPosition]:
        wanted = []
        for key in keys:
            followed = self.followed.get(key)
            if followed is None:
                continue
            partition, log = followed.partition, followed.partition.log
            if log.config.syncs_before_acknowledging and log.flushed_offset < log.log_end_offset:
                # Asking for the next offset tells the leader that we have everything before it, but the log is not
                # synced: a sync failed, or the leader has changed since.
                partition.flush()
                self.pause(followed, self._clock.monotonic() + UNSYNCED_PAUSE_S)
                continue
            position = followed.position(max_bytes)
            if position != followed.sent:
                followed.sent = position
                wanted.append(position)
                self._forgotten.discard(key)
        return wanted

    def pop_forgotten(self) -> list[Key]:
        """Returns the partitions that the session has to forget."""
        forgotten, self._forgotten = sorted(self._forgotten), set()
        return forgotten
