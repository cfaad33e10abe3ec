"""Share sessions (KIP-932): which partitions a member of a share group fetches from this broker.

The epoch of a ShareFetch says what it wants. ShareAcknowledge counts the same epoch and cannot begin a session.

=====  ==========================================================================================
epoch  meaning
=====  ==========================================================================================
0      begins a session, in place of the one before
-1     ends the session; what the member has acquired is released
next   named partitions are added, forgotten ones removed
=====  ==========================================================================================

The epoch counts 1, 2, ... 2**31-1, 1. A session also ends with the connection that began it: its client has died, or
will begin a new one. And it ends when the group coordinator fences its member, which has sent no heartbeat for too long
although its connection is open: a process that hangs, or a machine that is gone. A session that ends releases what its
member holds, so that other members get it at once instead of when the locks expire.

A session without partitions stays: its client will name some, or close it.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.request import ClientConnection
from skep.broker.share.share_partitions import SharePartitions, TopicIdPartition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 0x7FFF_FFFF


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    """Owns the partitions of one member, in the order in which they were named."""

    __slots__ = ("connection", "epoch", "key", "partitions", "served")

    def __init__(self, key: SessionKey, connection: ClientConnection | None) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        """The epoch that the next request has to have."""
        self.partitions: dict[TopicIdPartition, None] = {}
        self.served: dict[int, float] = {}
        """The records that each class of topics got (``priorities.py``)."""


class ShareSessions:
    """Owns the sessions of this broker. ``limits`` returns how many sessions, and how many partitions in all of them,
    there may be."""

    def __init__(self, share_partitions: SharePartitions, limits: Callable[[], tuple[int, int]]) -> None:
        self._share_partitions = share_partitions
        self._limits = limits
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connection: dict[ClientConnection, set[SessionKey]] = {}
        self._sessions_of_group: dict[str, int] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, key: SessionKey, connection: ClientConnection | None, partitions: Iterable[TopicIdPartition]
    ) -> ShareSession:
        """Begins a session in place of the member's earlier one. Raises SHARE_SESSION_LIMIT_REACHED, and
        SHARE_SESSION_NOT_FOUND if the connection is lost: nothing would end the session.

        The earlier session keeps what the member holds: it is the same member, which may still acknowledge it.
        """
        if connection is not None and connection.is_lost:
            raise KafkaError(ErrorCode.share_session_not_found, "the connection ends, and the share session with it")
        session = ShareSession(key, connection)
        session.partitions.update(dict.fromkeys(partitions))
        earlier = self._sessions.get(key)
        count, held = len(self._sessions), self._partition_count
        if earlier is not None:
            count, held = count - 1, held - len(earlier.partitions)
        max_sessions, max_partitions = self._limits()
        if earlier is not None:
            self._remove(earlier)
        if count >= max_sessions or held + len(session.partitions) > max_partitions:
            if earlier is not None:
                self._release(key)
            raise KafkaError(
                ErrorCode.share_session_limit_reached,
                f"{count} share sessions with {held} partitions are open (group.share.max.share.sessions)",
            )
        self._sessions[key] = session
        self._partition_count += len(session.partitions)
        self._sessions_of_group[key.group_id] = self._sessions_of_group.get(key.group_id, 0) + 1
        if connection is not None:
            self._of_connection.setdefault(connection, set()).add(key)
            connection.when_lost = self._connection_lost
        self._share_partitions.session_begun(key.group_id)
        return session

    def update(
        self,
        key: SessionKey,
        epoch: int,
        added: Collection[TopicIdPartition] = (),
        forgotten: Collection[TopicIdPartition] = (),
    ) -> ShareSession:
        """Returns the session of a request with the next epoch. Raises SHARE_SESSION_NOT_FOUND,
        INVALID_SHARE_SESSION_EPOCH and SHARE_SESSION_LIMIT_REACHED."""
        session = self.find(key)
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.invalid_share_session_epoch,
                f"the epoch of the share session is {epoch}, expected {session.epoch}",
            )
        # A request names the partitions whose records it acknowledges, too.
        if forgotten or not session.partitions.keys() >= set(added):
            self._change(session, added, forgotten)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return session

    def _change(
        self, session: ShareSession, added: Collection[TopicIdPartition], forgotten: Collection[TopicIdPartition]
    ) -> None:
        before, partitions = len(session.partitions), dict(session.partitions)
        partitions.update(dict.fromkeys(added))
        for one in forgotten:
            partitions.pop(one, None)
        if self._partition_count + len(partitions) - before > max(self._limits()[1], self._partition_count):
            raise KafkaError(
                ErrorCode.share_session_limit_reached,
                f"share sessions have {self._partition_count} partitions; this one cannot have {len(partitions)}",
            )
        self._partition_count += len(partitions) - before
        session.partitions = partitions

    def find(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(
                ErrorCode.share_session_not_found,
                f"member {key.member_id!r} of group {key.group_id!r} has no share session here",
            )
        return session

    def check_open(self, session: ShareSession) -> None:
        """Raises SHARE_SESSION_NOT_FOUND if the session has ended, or another one has begun in its place."""
        if self._sessions.get(session.key) is not session:
            raise KafkaError(
                ErrorCode.share_session_not_found,
                f"the share session of member {session.key.member_id!r} of group {session.key.group_id!r} has ended",
            )

    def fetch_ended(self, key: SessionKey) -> None:
        """A fetch has ended, in whatever way. If its session has ended before it, releases what it has acquired since
        then, and drops the share partitions that it has loaded."""
        if key not in self._sessions:
            self._release(key)

    def close(self, session: ShareSession) -> None:
        """Ends a session and releases what its member holds. Does nothing if it has ended already."""
        if self._sessions.get(session.key) is session:
            self._remove(session)
            self._release(session.key)

    def end_members(self, group_id: str, member_ids: Iterable[str]) -> Work[None]:
        """The group has lost these members: ends their sessions and releases what they hold, also without a session."""
        for member_id in member_ids:
            session = self._sessions.get(SessionKey(group_id, member_id))
            if session is not None:
                self.close(session)
            else:
                self._share_partitions.release(group_id, member_id)
            yield

    def _connection_lost(self, connection: ClientConnection) -> None:
        for key in self._of_connection.pop(connection, ()):
            self.close(self._sessions[key])

    def _remove(self, session: ShareSession) -> None:
        key = session.key
        del self._sessions[key]
        self._partition_count -= len(session.partitions)
        left = self._sessions_of_group[key.group_id] - 1
        if left:
            self._sessions_of_group[key.group_id] = left
        else:
            del self._sessions_of_group[key.group_id]
        if session.connection is not None and (keys := self._of_connection.get(session.connection)) is not None:
            keys.discard(key)

    def _release(self, key: SessionKey) -> None:
        group_id, member_id = key
        self._share_partitions.release(group_id, member_id)
        self.drop_unused(group_id)

    def drop_unused(self, group_id: str) -> None:
        """Drops the share partitions of a group that has no session here."""
        if group_id not in self._sessions_of_group:
            self._share_partitions.group_unused(group_id)
