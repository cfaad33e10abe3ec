"""Fetch sessions (KIP-227): a client of many partitions names them once, then sends and receives only changes.

The session id and epoch of a request say what it wants:

=============  ==========  ===========================================================================
id             epoch       meaning
=============  ==========  ===========================================================================
0              0           a full fetch that begins a session, if there is room for one
any            -1          a full fetch without a session; the session with this id ends
its session's  next        named partitions are added or changed, forgotten ones removed, all others unchanged
=============  ==========  ===========================================================================

The epoch counts 1, 2, ... 2**31-1, 1. An unexpected epoch means that a response was lost; the client gets an error and
begins a new session. The response to an incremental fetch leaves out partitions without news.

A session is its principal's. For others it does not exist: an incremental fetch needs to name no topic, so with the id
of somebody else's session a client would learn what that one reads, and could end it. Ids cannot be guessed either.
"""

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import NO_TOPIC_ID, BrokerId
from skep.base.loop.slicer import Work
from skep.broker.fetch.follower_watch import FollowerWatch
from skep.security.principal import Principal
from skep.wire.fetch.fetch_response import HAS_TOPIC_ID, FetchedPartition

if TYPE_CHECKING:
    from skep.wire.entities.request_types import FetchRequest

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICT_AFTER_IDLE_S = 120.0

TopicKey = str | UUID
"""The name of a topic below version 13, its id from there on. A session uses only one of the two."""


class Wanted(NamedTuple):
    """One partition of a fetch."""

    topic: TopicKey
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    max_bytes: int
    last_fetched_epoch: int = -1
    """The epoch of the last batch that a follower has."""
    log_start_offset: int = -1
    """The start of a follower's log."""


class _CachedPartition:
    """A partition of a session: the client's position, and the marks that were sent last."""

    __slots__ = ("sent", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.sent: tuple[int, int, int] | None = None


FetcherId = tuple[BrokerId, str | None]
"""A follower may have several fetchers (num.replica.fetchers): its broker id, and the client id of one of them."""


class FetchSession:
    """Owns the partitions of one client's incremental fetches, in the order in which they are served."""

    def __init__(self, session_id: int, uses_topic_ids: bool, principal: Principal) -> None:
        self.session_id = session_id
        self.principal = principal
        self.uses_topic_ids = uses_topic_ids
        self.next_epoch = 1
        self.last_used = 0.0
        self.counted = 0
        """How many of its partitions are included in the sum over all sessions."""
        self.follower: FetcherId | None = None
        self.watch: FollowerWatch | None = None
        """Set for a follower's session."""
        self._partitions: OrderedDict[tuple[TopicKey, int], _CachedPartition] = OrderedDict()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Wanted]:
        return iter([cached.wanted for cached in self._partitions.values()])

    def partitions_to_read(self, now: float, *, is_full: bool) -> Iterable[Wanted]:
        """Returns all partitions, or those of a follower's session that may have news."""
        watch = self.watch
        if watch is None or watch.is_full_read_due(now) or is_full:
            return self
        return [self._partitions[key].wanted for key in watch.pending if key in self._partitions]

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[tuple[TopicKey, int]]) -> Work[None]:
        watch = self.watch
        for one in wanted:
            key = (one.topic, one.partition)
            cached = self._partitions.get(key)
            if cached is None:
                self._partitions[key] = _CachedPartition(one)
            else:
                cached.wanted = one
            if watch is not None:
                watch.pending[key] = None
            yield
        for key in forgotten:
            self._partitions.pop(key, None)
            if watch is not None:
                watch.forget(key)
            yield

    def has_sent(self, key: tuple[TopicKey, int], fetched: FetchedPartition) -> bool:
        """Whether the client has the current marks of the partition."""
        cached = self._partitions.get(key)
        return cached is not None and cached.sent == _marks(fetched)

    def is_news(self, topic: TopicKey, fetched: FetchedPartition) -> bool:
        """Whether an incremental response has to include the partition. Records that it does.

        A partition with records moves to the end of the order, so that all get their turn under a tight limit.
        """
        key = (topic, fetched.partition)
        cached = self._partitions.get(key)
        if cached is None:
            return True
        state = _marks(fetched)
        if len(fetched.records):
            self._partitions.move_to_end(key)
        elif state == cached.sent and fetched.error_code == 0 and fetched.diverging_epoch is None:
            return False
        # An error is sent in every response until it is gone: the client acts on it.
        cached.sent = state
        return True


def _marks(fetched: FetchedPartition) -> tuple[int, int, int]:
    return fetched.high_watermark, fetched.log_start_offset, fetched.error_code


class FetchSessions:
    """Owns the sessions of all clients, up to a limit. A new session evicts the one that was idle longest.

    ``_partitions`` counts the partitions of all sessions. A client may name partitions that do not exist.
    """

    def __init__(self, clock: Clock, max_sessions: int, max_partitions: int) -> None:
        self._clock = clock
        self.max_sessions = max_sessions
        self.max_partitions = max_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_followers: dict[FetcherId, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def session_for(
        self, request: "FetchRequest", version: int, principal: Principal
    ) -> Work[tuple[FetchSession | None, bool]]:
        """Updates the session of a request. Returns it, None for a fetch without one, and whether it is incremental.

        Work for a ``Slicer``, because a request may name thousands of partitions. Raises KafkaError when the session
        does not exist, or when its epoch or its way of naming topics is not the expected one.
        """
        session_id, epoch = getattr(request, "session_id", 0), getattr(request, "session_epoch", FINAL_EPOCH)
        session = self._sessions.get(session_id)
        if session is not None and session.principal != principal:
            session = None
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._end(session_id)
            return ((yield from self._begin(request, version, principal)) if epoch == INITIAL_EPOCH else None), False
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"fetch session {session_id} does not exist")
        if epoch != session.next_epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"the epoch of fetch session {session_id} is {epoch}, expected {session.next_epoch}",
            )
        if session.uses_topic_ids != (version >= HAS_TOPIC_ID):
            raise KafkaError(
                ErrorCode.fetch_session_topic_id_error, f"fetch session {session_id} names topics by name and by id"
            )
        session.next_epoch = 1 if epoch == 0x7FFF_FFFF else epoch + 1
        yield from session.update(wanted_in(request), forgotten_in(request))
        if self._sessions.get(session_id) is session:  # otherwise it has ended meanwhile
            self._count(session)
        if not len(session):
            # As in Kafka, a session without partitions ends, and the request is a fetch without a session.
            self._end(session_id)
            return None, False
        if self._partitions > self.max_partitions:
            self._end(session_id)
            raise KafkaError(
                ErrorCode.fetch_session_id_not_found,
                f"fetch sessions have more than {self.max_partitions} partitions; start a new session",
            )
        self._touch(session)
        return session, True

    def watch_for(self, session: FetchSession, follower: FetcherId) -> FollowerWatch:
        """Returns the watch of a follower's session. A fetcher has one session; a new one ends the one before."""
        if session.watch is None:
            before = self._of_followers.get(follower)
            if before is not None:
                self._end(before.session_id)
            session.follower, session.watch = follower, FollowerWatch()
            self._of_followers[follower] = session
        return session.watch

    def _begin(self, request: "FetchRequest", version: int, principal: Principal) -> Work[FetchSession | None]:
        if not self._make_room():
            return None
        session = FetchSession(self._unused_id(), version >= HAS_TOPIC_ID, principal)
        yield from session.update(wanted_in(request), ())
        if not len(session) or self._partitions + len(session) > self.max_partitions:
            return None
        self._sessions[session.session_id] = session
        self._count(session)
        self._touch(session)
        return session

    def _make_room(self) -> bool:
        if len(self._sessions) < self.max_sessions:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if self._clock.monotonic() - oldest.last_used < EVICT_AFTER_IDLE_S:
            return False
        self._end(oldest.session_id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.counted
            if session.watch is not None and session.follower is not None:
                session.watch.close()
                del self._of_followers[session.follower]

    def _count(self, session: FetchSession) -> None:
        self._partitions += len(session) - session.counted
        session.counted = len(session)

    def _unused_id(self) -> int:
        ids = (1 + secrets.randbelow(0x7FFF_FFFF) for _ in itertools.count())
        return next(one for one in ids if one not in self._sessions)

    def _touch(self, session: FetchSession) -> None:
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)


def is_incremental_fetch(request: "FetchRequest") -> bool:
    """Whether the request continues a session."""
    return getattr(request, "session_epoch", FINAL_EPOCH) not in (INITIAL_EPOCH, FINAL_EPOCH)


def wanted_in(request: "FetchRequest") -> Iterator[Wanted]:
    return (
        Wanted(
            _topic_key(topic),
            partition.partition,
            getattr(partition, "current_leader_epoch", -1),
            partition.fetch_offset,
            partition.partition_max_bytes,
            getattr(partition, "last_fetched_epoch", -1),
            getattr(partition, "log_start_offset", -1),
        )
        for topic in request.topics
        for partition in topic.partitions
    )


def forgotten_in(request: "FetchRequest") -> Iterator[tuple[TopicKey, int]]:
    return ((_topic_key(topic), partition) for topic in request.forgotten_topics_data for partition in topic.partitions)


def _topic_key(topic: "FetchRequest.Topic | FetchRequest.ForgottenTopic") -> TopicKey:
    key: TopicKey | None = getattr(topic, "topic", None)
    if key is None:
        key = topic.topic_id or NO_TOPIC_ID
    return key
