"""Fetch (API 1), versions 4 to 18.

Behaviour
    Each partition gives whole batches from the one that holds the fetch offset on, within its own limit and the
    request's; the first batch there is comes whole even when it is larger than both, so that no reader is ever stuck.

    When there is less than ``min_bytes`` the request waits up to ``max_wait``, parked on its partitions
    (``replication/waiting.py``), and then reads again. An error in any partition is answered at once.

    Records stay in their files: what goes back is a list of bytes and file regions. Small ones are read here, which
    saves the connection a write.

    Readers see what lies below the high watermark; with read_committed, below the last stable offset, and they are told
    which transactions with records in the answer were aborted: the records are there, it is for clients to skip them.

    Consumers read from any replica, as far as that one knows the high watermark. The leader sends one to a replica in
    its own rack (``rack_id``, KIP-392) when ``replica.selector.class`` says so. Fetches of followers are
    ``broker/follower_fetch.py``.

    Whoever asks a broker that holds no replica is told who leads (KIP-951).
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence, Sized
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.broker.current_leaders import current_leader, endpoints_of
from skep.broker.fetch_sessions import FetchSession, TopicKey, Wanted, wanted_in
from skep.broker.follower_fetch import FollowerFetch, follower_in
from skep.broker.follower_watch import FollowerWatch
from skep.broker.nearest_replica import nearest_replica
from skep.broker.request import FileRegion, Parts, Request
from skep.broker.services import Services
from skep.replication.partition import Partition
from skep.replication.waiting import ParkedFetch
from skep.storage.reading import LogSlice
from skep.wire.codec import Body
from skep.wire.fetch_response import HAS_SESSION, FetchedPartition, FetchedTopic, encode_fetch_response
from skep.wire.leader_hints import NodeEndpoint

READ_COMMITTED = 1
READS_FROM_FOLLOWERS = 11
READ_AT_ONCE_BYTES = 32 * 1024
_NO_ID = UUID(int=0)


class _Reading(NamedTuple):
    """What one look at the partitions gave."""

    fetched: list[tuple[TopicKey, FetchedPartition]]
    partitions: list[Partition]
    size: int
    failed: bool


def handle(services: Services, request: Request) -> Parts | Awaitable[Parts]:
    body = request.body
    try:
        session, is_incremental = services.fetch_sessions.session_for(body, request.version)
    except KafkaError as error:
        return encode_fetch_response(request.version, request.correlation_id, [], error_code=error.code)
    follower = follower_in(body, request.version)
    watch = None
    if session is not None and follower is not None:
        watch = services.fetch_sessions.watched_for(session, follower.broker_id)
    fetch = _Fetch(session, is_incremental, follower, watch)
    reading = fetch.look(services, request, wanted_in(body) if session is None else ())
    max_wait_ms = body.max_wait.total_seconds() * 1000
    if fetch.is_enough(request, reading) or max_wait_ms <= 0:
        return _answer(services, request, session, is_incremental, reading)
    parked = fetch.park(request, reading, max_wait_ms)
    return _answer_later(services, request, fetch, parked, services.clock.monotonic() + max_wait_ms / 1000)


class _Fetch(NamedTuple):
    """Whose fetch it is, and how it looks at its partitions and waits for them."""

    session: FetchSession | None
    is_incremental: bool
    follower: FollowerFetch | None
    watch: FollowerWatch | None
    """Of a follower with a session."""

    def look(self, services: Services, request: Request, wanted: Iterable[Wanted]) -> _Reading:
        """``wanted`` is for a fetch without a session."""
        if self.session is not None:
            wanted = self.session.to_look_at(services.clock.monotonic(), is_full=not self.is_incremental)
        return _read(services, request, wanted, self)

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

    def is_enough(self, request: Request, reading: _Reading) -> bool:
        # A follower's session without news has nothing to look at, and waits.
        is_empty = self.watch is None and not reading.partitions
        return reading.size >= request.body.min_bytes or reading.failed or is_empty

    def park(self, request: Request, reading: _Reading, left_ms: float) -> ParkedFetch:
        """No await from the look to here: an append in between would find nobody parked.

        Whatever ``handle`` gives is awaited in any case, because a task takes its first step before its connection can
        be lost; so a parked fetch always has somebody who takes it out again.
        """
        missing = request.body.min_bytes - reading.size
        if self.watch is not None:
            self.watch.fetch = ParkedFetch((), missing)
            return self.watch.fetch.park(left_ms)
        if self.follower is not None:
            return ParkedFetch([one.tail for one in reading.partitions], missing).park(left_ms)
        read_committed = request.body.isolation_level == READ_COMMITTED
        return ParkedFetch(reading.partitions, missing, read_committed=read_committed).park(left_ms)


async def _answer_later(
    services: Services, request: Request, fetch: _Fetch, parked: ParkedFetch, deadline: float
) -> Parts:
    # What waits keeps little: each partition once, and of the request no more than its limits.
    wanted = () if fetch.session is not None else {one[:2]: one for one in wanted_in(request.body)}.values()
    body = request.body
    request.body = SimpleNamespace(
        max_bytes=body.max_bytes, isolation_level=body.isolation_level, min_bytes=body.min_bytes, topics=()
    )
    del body
    while True:
        await parked.wait()
        reading = fetch.look(services, request, wanted)
        left_ms = (deadline - services.clock.monotonic()) * 1000
        if fetch.is_enough(request, reading) or left_ms <= 0:
            return _answer(services, request, fetch.session, fetch.is_incremental, reading)
        parked = fetch.park(request, reading, left_ms)


def _read(services: Services, request: Request, wanted: Iterable[Wanted], fetch: _Fetch) -> _Reading:
    follower = fetch.follower
    left = min(request.body.max_bytes, services.config.fetch_max_bytes)
    read_committed = request.body.isolation_level == READ_COMMITTED
    rack_id = getattr(request.body, "rack_id", "")
    fetched: list[tuple[TopicKey, FetchedPartition]] = []
    partitions: list[Partition] = []
    size = 0
    failed = False
    for one in wanted:
        try:
            if follower is None:
                partition = _find(services, request, one)
                piece = _read_one(partition, one, left, read_committed, at_least_one=size == 0)
                if rack_id and (preferred := nearest_replica(services, partition, rack_id)) is not None:
                    piece, failed = piece._replace(records=b"", aborted=None, preferred_read_replica=preferred), True
            else:
                partition = _led(services, one)
                room = services.throttled_replicas.room(follower.broker_id, partition, left)
                most, at_least_one = (left, size == 0) if room is None else (room, size == 0 < room)
                piece = follower.read(partition, one, most, _records, at_least_one=at_least_one)
                if room is not None:
                    services.throttled_replicas.gave(len(piece.records))
                failed |= piece.error_code != 0 or piece.diverging_epoch is not None
                fetch.looked_at(one, partition, piece)
            partitions.append(partition)
            given = len(piece.records)
            size += given
            left -= given
        except (KafkaError, StorageError) as error:
            piece = _refused(services, one, error)
            failed = True
            if fetch.watch is not None:
                fetch.watch.failed(one[:2])
        fetched.append((one.topic, piece))
    return _Reading(fetched, partitions, size, failed)


def _refused(services: Services, one: Wanted, error: KafkaError | StorageError) -> FetchedPartition:
    if isinstance(error, StorageError):
        return FetchedPartition(one.partition, ErrorCode.kafka_storage_error)
    leader = current_leader(services, one.topic, one.partition, error.code)
    return FetchedPartition(one.partition, error.code, current_leader=leader)


def _find(services: Services, request: Request, one: Wanted) -> Partition:
    """The replica that a consumer reads from; older ones know of no other than the leader."""
    replicas = services.replicas
    topic = replicas.name_of(one.topic) if isinstance(one.topic, UUID) else one.topic
    find = replicas.replica if request.version >= READS_FROM_FOLLOWERS else replicas.partition
    partition = find(topic, one.partition)
    partition.check_leader_epoch(one.current_leader_epoch)
    if not partition.is_leader and one.fetch_offset > partition.log.log_end_offset:
        raise KafkaError(ErrorCode.offset_not_available, "this replica is not that far yet")
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


def _answer(
    services: Services, request: Request, session: FetchSession | None, is_incremental: bool, reading: _Reading
) -> Parts:
    endpoints: Sequence[NodeEndpoint] = ()
    if reading.failed:
        endpoints = endpoints_of(services, (piece.current_leader for _, piece in reading.fetched))
    if session is None and len(reading.fetched) == 1:
        topic, piece = reading.fetched[0]
        topics_read = (_named(topic, (piece,)),)
        return encode_fetch_response(request.version, request.correlation_id, topics_read, node_endpoints=endpoints)
    topics: dict[TopicKey, list[FetchedPartition]] = {}
    for topic, piece in reading.fetched:
        # is_news also writes down what the client is told, so it is asked on a full answer too.
        if session is None or session.is_news(topic, piece) or not is_incremental:
            topics.setdefault(topic, []).append(piece)
    named = [_named(topic, pieces) for topic, pieces in topics.items()]
    session_id = 0 if session is None else session.session_id
    return encode_fetch_response(
        request.version, request.correlation_id, named, session_id=session_id, node_endpoints=endpoints
    )


def _named(topic: TopicKey, pieces: Sequence[FetchedPartition]) -> FetchedTopic:
    return FetchedTopic("", topic, pieces) if isinstance(topic, UUID) else FetchedTopic(topic, _NO_ID, pieces)


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version >= HAS_SESSION:
        return {"error_code": code, "responses": []}
    return {
        "responses": [
            {
                "topic": topic.topic,
                "partitions": [
                    {"partition_index": wanted.partition, "error_code": code, "high_watermark": -1, "records": b""}
                    for wanted in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
