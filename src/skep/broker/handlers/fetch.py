"""Fetch (API 1), versions 4 to 18.

Behaviour
    Each partition gives whole batches, beginning with the one that holds the fetch offset, within its own limit and the
    request's. The first batch is returned whole even when it is larger than both limits, so that no reader is stuck.

    With less than ``min_bytes`` to return, the fetch is delayed for up to ``max_wait``: it waits on its partitions
    (``replication/partition/delayed_fetch.py``) and then reads those that have changed. An error in a partition is
    returned at once.

    A request, or its session, may name thousands of partitions. Everything here that loops over all of them is work for
    the ``Slicer``.

    Records stay in their files: the response is a list of bytes and file regions. Small regions are read here, which
    saves the connection a write.

    Consumers read up to the high watermark, with read_committed up to the last stable offset. The response to
    read_committed lists the aborted transactions that have records in it; the records are included, and clients skip
    them.

    Consumers can read from any replica, up to the high watermark that it knows. The leader redirects a consumer to a
    replica in its rack (``rack_id``, KIP-392) if ``replica.selector.class`` says so. Fetches of followers are in
    ``broker/fetch/follower_fetch.py``.

    A broker without a replica names the leader in its refusal (KIP-951).

    A consumer with a quota gets at most what it may use at once, and is throttled when it has used more. If it is over
    its quota before, it gets an empty response at once (KIP-219); a new session does not begin then.

Versions
    4 is the first served: isolation level, last stable offset, aborted transactions (KIP-98).
    5: log start offset, in the request and in the response (KIP-107).
    6: KAFKA_STORAGE_ERROR (KIP-112), which older versions get here too.
    7: fetch sessions, and an error code for the whole request (KIP-227).
    8: the client waits for ``throttle_time_ms`` itself (KIP-219); the broker mutes its connection in all versions.
    9: the leader epoch that the reader knows (KIP-320).
    10: the client reads zstd (KIP-110).
    11: rack and preferred read replica (KIP-392).
    12 is flexible; the epoch of the last batch and where it diverges, the current leader (KIP-595).
    13: topics by id (KIP-516).
    14: OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405), which is not used here.
    15: id and epoch of a follower as a tagged field (KIP-903).
    16: the addresses of current leaders (KIP-951).
    17: the follower's directory id (KIP-853).
    18: the follower's high watermark (KIP-1166).

Refusals of the request
    FETCH_SESSION_ID_NOT_FOUND, also when all sessions together have too many partitions; INVALID_FETCH_SESSION_EPOCH;
    FETCH_SESSION_TOPIC_ID_ERROR when a session changes between names and ids of topics.
Refusals per partition, in order
    UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER without a replica here and, for followers and
    consumers before version 11, without the leader here; FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; past the end of the
    log, OFFSET_NOT_AVAILABLE on a follower and NOT_LEADER_OR_FOLLOWER on a leader whose lease has expired;
    OFFSET_OUT_OF_RANGE; KAFKA_STORAGE_ERROR. A broker that is no replica gets NOT_LEADER_OR_FOLLOWER for its fetch.

Left out
    Version 10 says that a client reads zstd; older versions get zstd batches too. Tiered storage (14), the follower's
    directory id (17) and its high watermark (18) are not used.
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import NO_TOPIC_ID, BrokerId
from skep.base.loop.slicer import Work
from skep.broker.fetch.consumer_fetch import nearest_replica, read_for_consumer
from skep.broker.fetch.fetch_sessions import FetchSession, TopicKey, Wanted, is_incremental_fetch, wanted_in
from skep.broker.fetch.follower_fetch import FollowerFetch, follower_in
from skep.broker.fetch.follower_watch import FollowerWatch
from skep.broker.fetch.sliced_records import sliced_records
from skep.broker.permissions import READ, TOPIC
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import current_leader, endpoints_of
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.replication.partition.partition import Partition
from skep.security.access import Who, refusal
from skep.security.quotas.client_quotas import Throttle
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

if TYPE_CHECKING:
    from skep.wire.entities.request_types import FetchRequest

READ_COMMITTED = 1
READS_FROM_FOLLOWERS = 11
RACK_AWARE_SELECTOR = "RackAwareReplicaSelector"


_State = tuple[int, int, int, int, bool]
"""What decides the outcome of a consumer's read: log end, high watermark, log start, leader epoch, whether we lead."""


class _PartitionRead(NamedTuple):
    """One partition as it was read. ``partition`` and ``state`` are None if it was not found."""

    wanted: Wanted
    partition: Partition | None
    state: _State | None
    fetched: FetchedPartition


class _Reading(NamedTuple):
    """The result of reading the partitions of a fetch once."""

    reads: list[_PartitionRead]
    size: int
    ends_wait: bool
    """Whether a partition has an error, a redirection or a diverging epoch, which the client gets at once."""
    news: int
    """``FollowerWatch.news`` when the reading began."""


class _Fetch(NamedTuple):
    """One request. It may wait for long, so it keeps the limits and the partitions but not the body."""

    services: Services
    version: int
    correlation_id: int
    listener_name: str
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack_id: str
    follower: FollowerFetch | None
    session: FetchSession | None
    is_incremental: bool
    watch: FollowerWatch | None
    """Set for a follower with a session."""
    wanted: Sequence[Wanted]
    """The partitions of a fetch without a session, each once."""
    throttle: Throttle | None
    """Set for a consumer with quotas."""
    client: Who | None
    """Set if its rights are limited. They are checked at each reading, because ACLs may change while it waits."""

    def is_done(self, reading: _Reading) -> bool:
        """Whether there is nothing to wait for."""
        # A follower's session without news reads no partition, and waits.
        is_empty = self.watch is None and not reading.reads
        return reading.size >= self.min_bytes or reading.ends_wait or is_empty

    def partitions_to_read(self) -> Iterable[Wanted]:
        if self.session is None:
            return self.wanted
        return self.session.partitions_to_read(self.services.clock.monotonic(), is_full=not self.is_incremental)

    def update_watch(self, one: Wanted, partition: Partition, fetched: FetchedPartition) -> None:
        """Tells the watch of a follower's session what was read."""
        if self.watch is None or self.session is None:
            return
        key = one[:2]
        is_done = (
            one.fetch_offset == partition.log.log_end_offset
            and fetched.error_code == 0
            and fetched.diverging_epoch is None
            and self.session.has_sent(key, fetched)
        )
        self.watch.was_read(key, partition, is_done=is_done)


def handle(services: Services, request: "Request[FetchRequest]") -> Parts | Awaitable[Parts]:
    begun = services.slicer.run(_begin(services, request))
    if isinstance(begun, tuple):
        return _respond_or_delay(*begun)
    return _wait_and_respond(begun)


async def _wait_and_respond(begun: Awaitable[tuple[_Fetch, _Reading | ErrorCode, float]]) -> Parts:
    response = _respond_or_delay(*await begun)
    return await response if isinstance(response, Awaitable) else response


def _begin(services: Services, request: "Request[FetchRequest]") -> Work[tuple[_Fetch, _Reading | ErrorCode, float]]:
    """Returns the fetch, its first reading or the session's error, and its deadline."""
    body, version = request.body, request.version
    code, session, is_incremental = None, None, False
    follower, watch = follower_in(body, version), None
    throttle = request.throttle if follower is None else None
    is_refused = throttle is not None and throttle.refuses_records(services.clock.monotonic())
    try:
        if not is_refused or is_incremental_fetch(body):
            session, is_incremental = yield from services.fetch_sessions.session_for(
                body, version, request.access.principal
            )
    except KafkaError as error:
        code = error.code
    if session is not None and follower is not None:
        watch = services.fetch_sessions.watch_for(session, (follower.broker_id, request.client_id))
    min_bytes, max_bytes = body.min_bytes, min(body.max_bytes, services.config.fetch_max_bytes)
    if throttle is not None:
        max_bytes = throttle.fetch_limit(max_bytes)
        # Whole batches fill at least half of the limit, if there are enough of them. With more, the fetch would wait.
        min_bytes = min(min_bytes, max(1, max_bytes // 2))
    fetch = _Fetch(
        services,
        version,
        request.correlation_id,
        request.listener_name,
        min_bytes,
        max_bytes,
        body.isolation_level == READ_COMMITTED,
        getattr(body, "rack_id", ""),
        follower,
        session,
        is_incremental,
        watch,
        () if session is not None or code is not None or is_refused else (yield from _each_once(body)),
        throttle,
        Who(request.api, request.client_id, request.client_host, request.access) if request.access.is_limited else None,
    )
    deadline = services.clock.monotonic() + body.max_wait.total_seconds()
    if code is not None:
        return fetch, code, deadline
    if is_refused:
        return fetch, _Reading([], 0, ends_wait=True, news=0), deadline
    return fetch, (yield from _read(fetch)), deadline


def _each_once(body: "FetchRequest") -> Work[Sequence[Wanted]]:
    """Returns the partitions of the request. Of a partition that is named twice, the last one counts."""
    wanted: dict[tuple[TopicKey, int], Wanted] = {}
    for one in wanted_in(body):
        wanted[one.topic, one.partition] = one
        yield
    return tuple(wanted.values())


def _respond_or_delay(fetch: _Fetch, reading: _Reading | ErrorCode, deadline: float) -> Parts | Awaitable[Parts]:
    if not isinstance(reading, _Reading):
        throttle_ms = 0 if fetch.throttle is None else fetch.throttle.ms
        return encode_fetch_response(
            fetch.version, fetch.correlation_id, [], error_code=reading, throttle_ms=throttle_ms
        )
    if fetch.is_done(reading) or fetch.services.clock.monotonic() >= deadline:
        return fetch.services.slicer.run(_respond(fetch, reading))
    return _respond_later(fetch, reading, deadline)


async def _respond_later(fetch: _Fetch, reading: _Reading, deadline: float) -> Parts:
    slicer, clock = fetch.services.slicer, fetch.services.clock
    while not fetch.is_done(reading) and (left_s := deadline - clock.monotonic()) > 0:
        delayed = DelayedFetch(fetch.min_bytes - reading.size, read_committed=fetch.read_committed)
        try:
            await slicer.finish(_delay(fetch, reading, delayed))
            await delayed.wait(left_s * 1000)
        finally:
            delayed.leave()
        reading = await slicer.finish(_read(fetch, reading.reads))
    return await slicer.finish(_respond(fetch, reading))


def _delay(fetch: _Fetch, reading: _Reading, delayed: DelayedFetch) -> Work[None]:
    """Registers the delayed fetch on its partitions, and wakes it if one has changed since the reading."""
    if fetch.watch is not None:
        fetch.watch.fetch = delayed
        if fetch.watch.news != reading.news:
            delayed.wake()
        return
    for _, partition, state, _ in reading.reads:
        if partition is None:
            continue
        delayed.watch(partition if fetch.follower is None else partition.tail)
        if _state(partition) != state:
            delayed.wake()
        if delayed.is_woken:
            return
        yield


def _state(partition: Partition) -> _State:
    log = partition.log
    return (
        log.log_end_offset,
        partition.high_watermark,
        log.log_start_offset,
        partition.leader_epoch,
        partition.is_leader,
    )


def _read(fetch: _Fetch, before: Iterable[_PartitionRead] = ()) -> Work[_Reading]:
    """Reads the partitions. A consumer's partition that has not changed since ``before`` is not read again."""
    services, follower = fetch.services, fetch.follower
    left = fetch.max_bytes
    reads: list[_PartitionRead] = []
    size = 0
    ends_wait = False
    news = 0 if fetch.watch is None else fetch.watch.news
    earlier = iter(before)
    for one in fetch.partitions_to_read():
        previous = next(earlier, None)
        partition, state = None, None
        try:
            if follower is None:
                partition = _find(services, fetch.version, one, fetch.client)
                state = _state(partition)
                if previous is not None and _still_holds(previous, one, partition, state, left):
                    fetched = previous.fetched
                else:
                    fetched = read_for_consumer(partition, one, left, fetch.read_committed, at_least_one=size == 0)
                    if fetch.rack_id and (replica := _preferred_replica(fetch, partition)) is not None:
                        fetched = fetched._replace(records=b"", aborted=None, preferred_read_replica=replica)
                        ends_wait = True
            else:
                partition = _led(services, one)
                state = _state(partition)
                fetched = _read_for_follower(services, follower, partition, one, left, is_first=size == 0)
                ends_wait |= fetched.error_code != 0 or fetched.diverging_epoch is not None
                fetch.update_watch(one, partition, fetched)
            given = len(fetched.records)
            size += given
            left -= given
        except (KafkaError, StorageError) as error:
            fetched = _refused(services, one, error)
            ends_wait = True
            if fetch.watch is not None:
                fetch.watch.failed(one[:2])
        reads.append(_PartitionRead(one, partition, state, fetched))
        yield
    return _Reading(reads, size, ends_wait, news)


def _still_holds(previous: _PartitionRead, one: Wanted, partition: Partition, state: _State, left: int) -> bool:
    """Whether reading again would give the same as ``previous``.

    The readings of a fetch are in the same order, unless its session was changed by another request meanwhile. A file
    region is looked up again, because its segment may be deleted or compacted while the fetch is delayed.
    """
    records = previous.fetched.records
    return (
        previous.wanted is one
        and previous.partition is partition
        and previous.state == state
        and isinstance(records, bytes)
        and len(records) <= left
    )


def _preferred_replica(fetch: _Fetch, partition: Partition) -> BrokerId | None:
    services = fetch.services
    if services.node.rack == fetch.rack_id:
        return None
    if not services.config.cluster.replica_selector_class.endswith(RACK_AWARE_SELECTOR):
        return None
    return nearest_replica(partition, services.catalog.image.brokers, fetch.rack_id)


def _read_for_follower(
    services: Services, follower: FollowerFetch, partition: Partition, one: Wanted, left: int, *, is_first: bool
) -> FetchedPartition:
    room = services.throttled_replicas.room(follower.broker_id, partition, left)
    if room is None:
        return follower.read(partition, one, left, sliced_records, at_least_one=is_first)
    fetched = follower.read(partition, one, room, sliced_records, at_least_one=is_first and room > 0)
    services.throttled_replicas.gave(len(fetched.records))
    return fetched


def _refused(services: Services, one: Wanted, error: KafkaError | StorageError) -> FetchedPartition:
    if isinstance(error, StorageError):
        return FetchedPartition(one.partition, ErrorCode.kafka_storage_error)
    leader = current_leader(services, one.topic, one.partition, error.code)
    return FetchedPartition(one.partition, error.code, current_leader=leader)


def _find(services: Services, version: int, one: Wanted, client: Who | None) -> Partition:
    """Returns the replica that a consumer reads from. Before ``READS_FROM_FOLLOWERS`` it must be the leader."""
    replicas = services.replicas
    topic = replicas.name_of(one.topic) if isinstance(one.topic, UUID) else one.topic
    if client is not None and not client.access.asked(client, READ, TOPIC, topic):
        raise refusal(TOPIC)
    find = replicas.replica if version >= READS_FROM_FOLLOWERS else replicas.partition
    partition = find(topic, one.partition)
    partition.check_leader_epoch(one.current_leader_epoch)
    if one.fetch_offset > partition.log.log_end_offset:
        if not partition.is_leader:
            raise KafkaError(ErrorCode.offset_not_available, "this replica does not have the fetch offset yet")
        # The consumer may have read from a newer leader. OFFSET_OUT_OF_RANGE would make it reset its position.
        partition.check_leads()
    return partition


def _led(services: Services, one: Wanted) -> Partition:
    topic = services.replicas.name_of(one.topic) if isinstance(one.topic, UUID) else one.topic
    partition = services.replicas.partition(topic, one.partition)
    partition.check_leader_epoch(one.current_leader_epoch)
    return partition


def _respond(fetch: _Fetch, reading: _Reading) -> Work[Parts]:
    session, throttle_ms = fetch.session, 0
    if fetch.throttle is not None:
        fetch.throttle.consumed(reading.size, fetch.services.clock.monotonic())
        throttle_ms = fetch.throttle.ms
    endpoints: Sequence[NodeEndpoint] = ()
    if reading.ends_wait:
        endpoints = endpoints_of(
            fetch.services, (read.fetched.current_leader for read in reading.reads), fetch.listener_name
        )
    topics: dict[TopicKey, list[FetchedPartition]] = {}
    for read in reading.reads:
        topic, fetched = read.wanted.topic, read.fetched
        # ``is_news`` also records what is sent, so it is called for a full response too.
        if session is None or session.is_news(topic, fetched) or not fetch.is_incremental:
            topics.setdefault(topic, []).append(fetched)
        yield
    named = [_named(topic, partitions) for topic, partitions in topics.items()]
    session_id = 0 if session is None else session.session_id
    parts = yield from encode_fetch_in_slices(
        fetch.version, fetch.correlation_id, named, session_id, node_endpoints=endpoints, throttle_ms=throttle_ms
    )
    return parts


def _named(topic: TopicKey, partitions: Sequence[FetchedPartition]) -> FetchedTopic:
    name, topic_id = ("", topic) if isinstance(topic, UUID) else (topic, NO_TOPIC_ID)
    return FetchedTopic(name, topic_id, partitions)


def refuse(request: "Request[FetchRequest]", code: ErrorCode) -> Body:
    if request.version >= HAS_SESSION:
        return {"error_code": code, "responses": []}

    def partition(wanted: "FetchRequest.Partition") -> dict[str, Any]:
        return {"partition_index": wanted.partition, "error_code": code, "high_watermark": -1, "records": b""}

    def topic(named: "FetchRequest.Topic") -> dict[str, Any]:
        return {"topic": named.topic, "partitions": LazyArray(named.partitions, partition)}

    return {"responses": LazyArray(request.body.topics, topic)}
