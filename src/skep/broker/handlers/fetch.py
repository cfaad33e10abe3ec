"""Fetch (API 1), versions 4 to 18.

Behaviour
    Each partition gives whole batches from the one that holds the fetch offset on, within its own limit and the
    request's; the first batch there is comes whole even when it is larger than both, so that no reader is ever stuck.

    When there is less than ``min_bytes`` the request waits up to ``max_wait``, parked on its partitions
    (``replication/partition/delayed_fetch.py``), and then reads again. An error in any partition is answered at once.

    A request, or the session it belongs to, may name thousands of partitions: everything here that goes over all of
    them is work for the ``Slicer``.

    Records stay in their files: what goes back is a list of bytes and file regions. Small ones are read here, which
    saves the connection a write.

    Readers see what lies below the high watermark; with read_committed, below the last stable offset, and they are told
    which transactions with records in the answer were aborted: the records are there, it is for clients to skip them.

    Consumers read from any replica, as far as that one knows the high watermark. The leader sends one to a replica in
    its own rack (``rack_id``, KIP-392) when ``replica.selector.class`` says so. Fetches of followers are
    ``broker/fetch/follower_fetch.py``.

    Whoever asks a broker that holds no replica is told who leads (KIP-951).
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence, Sized
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Work
from skep.broker.fetch.fetch_sessions import FetchSession, TopicKey, Wanted, wanted_in
from skep.broker.fetch.follower_fetch import FollowerFetch, follower_in
from skep.broker.fetch.follower_watch import FollowerWatch
from skep.broker.nearest_replica import nearest_replica
from skep.broker.request import FileRegion, Parts, Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import current_leader, endpoints_of
from skep.replication.partition.delayed_fetch import ParkedFetch
from skep.replication.partition.partition import Partition
from skep.storage.log.log_slice import LogSlice
from skep.wire.codec import Body
from skep.wire.fetch.fetch_response import (
    HAS_SESSION,
    FetchedPartition,
    FetchedTopic,
    encode_fetch_in_slices,
    encode_fetch_response,
)
from skep.wire.lazy_array import LazyArray
from skep.wire.leader_hints import NodeEndpoint

READ_COMMITTED = 1
READS_FROM_FOLLOWERS = 11
READ_AT_ONCE_BYTES = 32 * 1024
_NO_ID = UUID(int=0)


_Seen = tuple[int, int, int, bool]
"""What a partition was like when it was read."""


class _Reading(NamedTuple):
    """What one look at the partitions gave."""

    fetched: list[tuple[TopicKey, FetchedPartition]]
    partitions: list[tuple[Partition, _Seen]]
    size: int
    failed: bool
    news: int
    """How often a follower's session had been told of news when the look began."""


class _Fetch(NamedTuple):
    """One request. It may wait for long, so it keeps no more than it needs: of the body its limits, for instance."""

    services: Services
    version: int
    correlation_id: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack_id: str
    follower: FollowerFetch | None
    session: FetchSession | None
    is_incremental: bool
    watch: FollowerWatch | None
    """Of a follower with a session."""
    wanted: Sequence[Wanted]
    """Of a fetch without a session; each partition once."""

    def is_done(self, reading: _Reading) -> bool:
        """Whether there is nothing to wait for."""
        # A follower's session without news has nothing to look at, and waits.
        is_empty = self.watch is None and not reading.partitions
        return reading.size >= self.min_bytes or reading.failed or is_empty

    def to_look_at(self) -> Iterable[Wanted]:
        if self.session is None:
            return self.wanted
        return self.session.to_look_at(self.services.clock.monotonic(), is_full=not self.is_incremental)

    def looked_at(self, one: Wanted, partition: Partition, piece: FetchedPartition) -> None:
        """Has the watch of a follower's session know what the look has found."""
        if self.watch is None or self.session is None:
            return
        key = one[:2]
        is_done = (
            one.fetch_offset == partition.log.log_end_offset
            and piece.error_code == 0
            and piece.diverging_epoch is None
            and self.session.is_told(key, piece)
        )
        self.watch.looked_at(key, partition, is_done=is_done)


def handle(services: Services, request: Request) -> Parts | Awaitable[Parts]:
    begun = services.slicer.run(_begin(services, request))
    if isinstance(begun, tuple):
        return _respond_or_wait(*begun)
    return _wait_and_respond(begun)


async def _wait_and_respond(begun: Awaitable[tuple[_Fetch, _Reading | ErrorCode, float]]) -> Parts:
    response = _respond_or_wait(*await begun)
    return await response if isinstance(response, Awaitable) else response


def _begin(services: Services, request: Request) -> Work[tuple[_Fetch, _Reading | ErrorCode, float]]:
    """The request, the first look at its partitions or why there is none, and when it ends."""
    body, version = request.body, request.version
    code, session, is_incremental = None, None, False
    try:
        session, is_incremental = yield from services.fetch_sessions.session_for(body, version)
    except KafkaError as error:
        code = error.code
    follower, watch = follower_in(body, version), None
    if session is not None and follower is not None:
        watch = services.fetch_sessions.watched_for(session, follower.broker_id)
    fetch = _Fetch(
        services,
        version,
        request.correlation_id,
        body.min_bytes,
        min(body.max_bytes, services.config.fetch_max_bytes),
        body.isolation_level == READ_COMMITTED,
        getattr(body, "rack_id", ""),
        follower,
        session,
        is_incremental,
        watch,
        () if session is not None or code is not None else (yield from _once_each(body)),
    )
    deadline = services.clock.monotonic() + body.max_wait.total_seconds()
    if code is not None:
        return fetch, code, deadline
    return fetch, (yield from _read(fetch)), deadline


def _once_each(body: Any) -> Work[Sequence[Wanted]]:
    """What the request names; of a partition that is named again the last counts."""
    wanted: dict[tuple[TopicKey, int], Wanted] = {}
    for one in wanted_in(body):
        wanted[one.topic, one.partition] = one
        yield
    return tuple(wanted.values())


def _respond_or_wait(fetch: _Fetch, reading: _Reading | ErrorCode, deadline: float) -> Parts | Awaitable[Parts]:
    if not isinstance(reading, _Reading):
        return encode_fetch_response(fetch.version, fetch.correlation_id, [], error_code=reading)
    if fetch.is_done(reading) or fetch.services.clock.monotonic() >= deadline:
        return fetch.services.slicer.run(_respond(fetch, reading))
    return _respond_later(fetch, reading, deadline)


async def _respond_later(fetch: _Fetch, reading: _Reading, deadline: float) -> Parts:
    slicer, clock = fetch.services.slicer, fetch.services.clock
    while not fetch.is_done(reading) and (left_s := deadline - clock.monotonic()) > 0:
        parked = ParkedFetch(fetch.min_bytes - reading.size, read_committed=fetch.read_committed)
        try:
            await slicer.finish(_park(fetch, reading, parked))
            await parked.wait(left_s * 1000)
        finally:
            parked.leave()
        reading = await slicer.finish(_read(fetch))
    return await slicer.finish(_respond(fetch, reading))


def _park(fetch: _Fetch, reading: _Reading, parked: ParkedFetch) -> Work[None]:
    """Parks the fetch on what was read. What has changed since then woke nobody, so it is looked for here."""
    if fetch.watch is not None:
        fetch.watch.fetch = parked
        if fetch.watch.news != reading.news:
            parked.wake()
        return
    for partition, seen in reading.partitions:
        parked.watch(partition if fetch.follower is None else partition.tail)
        if _seen(partition) != seen:
            parked.wake()
        if parked.is_woken:
            return
        yield


def _seen(partition: Partition) -> _Seen:
    return partition.log.log_end_offset, partition.high_watermark, partition.leader_epoch, partition.is_leader


def _read(fetch: _Fetch) -> Work[_Reading]:
    services, follower = fetch.services, fetch.follower
    left = fetch.max_bytes
    fetched: list[tuple[TopicKey, FetchedPartition]] = []
    partitions: list[tuple[Partition, _Seen]] = []
    size = 0
    failed = False
    news = 0 if fetch.watch is None else fetch.watch.news
    for one in fetch.to_look_at():
        try:
            if follower is None:
                partition = _find(services, fetch.version, one)
                seen = _seen(partition)
                piece = _read_one(partition, one, left, fetch.read_committed, at_least_one=size == 0)
                if fetch.rack_id and (preferred := nearest_replica(services, partition, fetch.rack_id)) is not None:
                    piece, failed = piece._replace(records=b"", aborted=None, preferred_read_replica=preferred), True
            else:
                partition = _led(services, one)
                seen = _seen(partition)
                room = services.throttled_replicas.room(follower.broker_id, partition, left)
                most, at_least_one = (left, size == 0) if room is None else (room, size == 0 < room)
                piece = follower.read(partition, one, most, _records, at_least_one=at_least_one)
                if room is not None:
                    services.throttled_replicas.gave(len(piece.records))
                failed |= piece.error_code != 0 or piece.diverging_epoch is not None
                fetch.looked_at(one, partition, piece)
            partitions.append((partition, seen))
            given = len(piece.records)
            size += given
            left -= given
        except (KafkaError, StorageError) as error:
            piece = _refused(services, one, error)
            failed = True
            if fetch.watch is not None:
                fetch.watch.failed(one[:2])
        fetched.append((one.topic, piece))
        yield
    return _Reading(fetched, partitions, size, failed, news)


def _refused(services: Services, one: Wanted, error: KafkaError | StorageError) -> FetchedPartition:
    if isinstance(error, StorageError):
        return FetchedPartition(one.partition, ErrorCode.kafka_storage_error)
    leader = current_leader(services, one.topic, one.partition, error.code)
    return FetchedPartition(one.partition, error.code, current_leader=leader)


def _find(services: Services, version: int, one: Wanted) -> Partition:
    """The replica that a consumer reads from; older ones know of no other than the leader."""
    replicas = services.replicas
    topic = replicas.name_of(one.topic) if isinstance(one.topic, UUID) else one.topic
    find = replicas.replica if version >= READS_FROM_FOLLOWERS else replicas.partition
    partition = find(topic, one.partition)
    partition.check_leader_epoch(one.current_leader_epoch)
    if one.fetch_offset > partition.log.log_end_offset:
        if not partition.is_leader:
            raise KafkaError(ErrorCode.offset_not_available, "this replica is not that far yet")
        # The consumer may have read on from our successor. OFFSET_OUT_OF_RANGE would make it start over.
        partition.check_leads()
    return partition


def _led(services: Services, one: Wanted) -> Partition:
    topic = services.replicas.name_of(one.topic) if isinstance(one.topic, UUID) else one.topic
    partition = services.replicas.partition(topic, one.partition)
    partition.check_leader_epoch(one.current_leader_epoch)
    return partition


def _read_one(
    partition: Partition, one: Wanted, left: int, read_committed: bool, *, at_least_one: bool
) -> FetchedPartition:
    high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
    offset = Offset(one.fetch_offset)
    up_to, most = last_stable_offset if read_committed else high_watermark, max(0, min(left, one.max_bytes))
    found = partition.read(offset, most, up_to=up_to, at_least_one=at_least_one)
    if found.next_offset < up_to and found.size > READ_AT_ONCE_BYTES:
        # It will be back for the rest; when this has been sent there is time to look where that lies.
        asyncio.get_running_loop().call_soon(partition.log.prepare, found.next_offset, most)
    return FetchedPartition(
        one.partition,
        0,
        high_watermark,
        last_stable_offset,
        partition.log.log_start_offset,
        _records(found),
        _aborted(partition, offset, found) if read_committed else None,
    )


def _aborted(partition: Partition, offset: Offset, found: LogSlice) -> Sequence[tuple[int, int]]:
    """(producer id, first offset) of the transactions that a read_committed reader has to leave out of the slice."""
    if found.file is None:
        return ()
    return [one[:2] for one in partition.log.aborted_transactions(offset, found.next_offset)]


def _records(found: LogSlice) -> Sized:
    if found.file is None:
        return b""
    region = FileRegion(found.file, found.position, found.size)
    if found.size <= READ_AT_ONCE_BYTES and region.is_cached(0, found.size):
        return region.read(0, found.size)
    return region


def _respond(fetch: _Fetch, reading: _Reading) -> Work[Parts]:
    session = fetch.session
    endpoints: Sequence[NodeEndpoint] = ()
    if reading.failed:
        endpoints = endpoints_of(fetch.services, (piece.current_leader for _, piece in reading.fetched))
    topics: dict[TopicKey, list[FetchedPartition]] = {}
    for topic, piece in reading.fetched:
        # is_news also writes down what the client is told, so it is asked on a full response too.
        if session is None or session.is_news(topic, piece) or not fetch.is_incremental:
            topics.setdefault(topic, []).append(piece)
        yield
    named = [_named(topic, pieces) for topic, pieces in topics.items()]
    session_id = 0 if session is None else session.session_id
    parts = yield from encode_fetch_in_slices(
        fetch.version, fetch.correlation_id, named, session_id, node_endpoints=endpoints
    )
    return parts


def _named(topic: TopicKey, pieces: Sequence[FetchedPartition]) -> FetchedTopic:
    return FetchedTopic("", topic, pieces) if isinstance(topic, UUID) else FetchedTopic(topic, _NO_ID, pieces)


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version >= HAS_SESSION:
        return {"error_code": code, "responses": []}

    def partition(wanted: Any) -> dict[str, Any]:
        return {"partition_index": wanted.partition, "error_code": code, "high_watermark": -1, "records": b""}

    def topic(named: Any) -> dict[str, Any]:
        return {"topic": named.topic, "partitions": LazyArray(named.partitions, partition)}

    return {"responses": LazyArray(request.body.topics, topic)}
