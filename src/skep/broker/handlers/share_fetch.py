"""ShareFetch (API 78), versions 1 and 2.

Behaviour
    A member of a share group acquires records of the partitions in its share session (``broker/share``), and may
    acknowledge earlier ones in the same request. Each record goes to one member at a time. A session begins with
    epoch 0; the last epoch, -1, ends it after the acknowledgements, and fetches nothing.

    The partitions of a session take turns, and share ``max_bytes`` evenly. ``max_records`` is for all of them together.
    A group may have topics of different priorities (``skep.share.priority``); then those of one class take turns, and
    classes get parts of both (``broker/share/priorities.py``).
    Whole batches of the log are acquired, unless the member asks for the exact number (``share_acquire_mode``), or its
    group does so for members that cannot (``skep.share.acquire.mode``).

    Without ``min_bytes`` to deliver, the fetch is delayed for up to ``max_wait``, as a Fetch is. It also wakes when
    records are released, when a share partition is loaded, and when the leader changes.

    Records stay in their files, as in a Fetch. The response has the partitions with records or an error, and all whose
    records were acknowledged. It is sent when the acknowledgements are written.

    A member with a quota (``consumer_byte_rate``) that is over it gets no records, at once.

    A broker that does not lead a partition names the leader in its refusal.

Versions
    1 is the first served; 0 was that of an early access.
    2: ``share_acquire_mode`` (KIP-1206) and renewals (KIP-1222). A fetch with renewals must not ask for records.

Refusals
    INVALID_REQUEST: no group, no member id, or one of more than 36 characters; renewals in a fetch that asks for
    records; acknowledgements in a request that begins a session. It leaves an earlier session as it is.
    SHARE_SESSION_NOT_FOUND, also if the session ends while the fetch waits; INVALID_SHARE_SESSION_EPOCH.
    SHARE_SESSION_LIMIT_REACHED, not before ``max_wait``: the client would ask again at once.
    Of a partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
    COORDINATOR_NOT_AVAILABLE when its state cannot be read; those of acknowledgements are in ``share_acknowledge.py``.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from skep.base.config.share_group_config import RECORD_LIMIT
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Work
from skep.broker.permissions import GROUP, READ, TOPIC, check_item
from skep.broker.refusals import code_of, message_of
from skep.broker.request import Parts, Request
from skep.broker.services import Services
from skep.broker.share.acknowledgements import (
    Begun,
    Refusal,
    begin_acknowledgements,
    id_of,
    is_renewal,
    named_partitions,
    session_key,
    written,
    written_already,
)
from skep.broker.share.priorities import Priorities, priorities_of, settle, turns
from skep.broker.share.share_partition import Mark, SharePartition
from skep.broker.share.share_partitions import TopicIdPartition
from skep.broker.share.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, ShareSession
from skep.broker.topics.current_leaders import current_leader, endpoints_of
from skep.coordination.share.acquisition import Order
from skep.replication.partition.delayed_fetch import DelayedFetch
from skep.security.access import Access, check
from skep.wire.codec import Body
from skep.wire.share.share_fetch_response import SharedPartition, encode_share_fetch

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ShareFetchRequest

HAS_ACQUIRE_MODE = 2
EXACT_NUMBER = 1
"""The acquire mode in which ``max_records`` is exact."""

_Results = dict[TopicIdPartition, SharedPartition]


class _Left(NamedTuple):
    """What may still be delivered."""

    records: int
    bytes: int


class _ShareFetch(NamedTuple):
    """What a fetch asks for. It may wait for long, so it does not keep the request."""

    services: Services
    session: ShareSession
    order: Order
    min_bytes: int
    max_bytes: int
    deadline: float
    shares: dict[TopicIdPartition, SharePartition]
    """Those that can be fetched from, in the order of their turns."""
    classes: dict[int, dict[TopicIdPartition, SharePartition]]
    """The same by the classes of their topics."""
    priorities: Priorities
    served: dict[int, float]
    """Those of the session."""
    access: Access


class _Unserved(NamedTuple):
    """A fetch for which there are no records yet."""

    fetch: _ShareFetch
    marks: dict[TopicIdPartition, Mark]
    """Those of the share partitions when they were read."""
    missing: int
    """How many bytes were missing to deliver."""


class _Waiting(NamedTuple):
    """A request that has to wait: for records, for the writes of its acknowledgements, or for both."""

    begun: Begun
    results: _Results
    unserved: _Unserved | None


def handle(services: Services, request: "Request[ShareFetchRequest]") -> Parts | Awaitable[Parts]:
    """The response is there at once if records are, and the acknowledgements are written."""
    key = session_key(request.body)
    response = services.slicer.run(_released_at_once(services, key, request))
    return response if type(response) is tuple else _released_later(services, key, request, response)


def _released_at_once(
    services: Services, key: SessionKey, request: "Request[ShareFetchRequest]"
) -> Work[Parts | _Waiting | KafkaError]:
    """As ``_at_once``. The session may end between two slices of it, with the connection or when the member is fenced;
    what is acquired after that is for nobody."""
    try:
        return (yield from _at_once(services, request))
    finally:
        services.share_sessions.fetch_ended(key)


async def _released_later(
    services: Services,
    key: SessionKey,
    request: "Request[ShareFetchRequest]",
    response: Parts | _Waiting | KafkaError | Awaitable[Parts | _Waiting | KafkaError],
) -> Parts:
    try:
        return await _later(services, request, response)
    finally:
        services.share_sessions.fetch_ended(key)


def _at_once(services: Services, request: "Request[ShareFetchRequest]") -> Work[Parts | _Waiting | KafkaError]:
    """Returns the response or what it has to wait for; SHARE_SESSION_LIMIT_REACHED is returned, others are raised."""
    body = request.body
    key, epoch = session_key(body), body.share_session_epoch
    is_fetch = not is_renewal(request)
    if not is_fetch and (body.max_bytes or body.min_bytes or body.max_records or body.max_wait):
        raise KafkaError(
            ErrorCode.invalid_request, "max_bytes, min_bytes, max_records and max_wait must be 0 in a renewal"
        )
    named, has_acknowledgements = yield from named_partitions(body.topics)
    try:
        session = _session(services, key, request, named, has_acknowledgements)
    except KafkaError as error:
        if error.code is ErrorCode.share_session_limit_reached:
            return error
        raise
    begun: Begun = {}
    if has_acknowledgements:
        begun = yield from begin_acknowledgements(services.share_partitions, key, request)
    results: _Results = {}
    unserved = None
    throttle = request.throttle
    is_refused = throttle is not None and throttle.refuses_records(services.clock.monotonic())
    if epoch == FINAL_EPOCH:
        services.share_sessions.close(session)
    elif is_fetch and body.max_bytes > 0 and body.max_records > 0 and not is_refused:
        fetch = yield from _begin(services, request, key, session, epoch, results)
        unserved = yield from _first_delivery(fetch, results)
    acknowledged = written_already(begun)
    if unserved is not None or acknowledged is None:
        return _Waiting(begun, results, unserved)
    return (yield from _respond(services, request, results, acknowledged))


async def _later(
    services: Services,
    request: "Request[ShareFetchRequest]",
    response: Parts | _Waiting | KafkaError | Awaitable[Parts | _Waiting | KafkaError],
) -> Parts:
    if isinstance(response, Awaitable):
        response = await response
    if isinstance(response, KafkaError):
        await asyncio.sleep(max(0.0, request.body.max_wait.total_seconds()))
        raise response
    if not isinstance(response, _Waiting):
        return response
    if response.unserved is not None:
        await _fetch(response.unserved, response.results)
    acknowledged = await written(response.begun)
    return await services.slicer.finish(_respond(services, request, response.results, acknowledged))


def _session(
    services: Services,
    key: SessionKey,
    request: "Request[ShareFetchRequest]",
    named: list[TopicIdPartition],
    has_acknowledgements: bool,
) -> ShareSession:
    body, sessions = request.body, services.share_sessions
    epoch = body.share_session_epoch
    if epoch == FINAL_EPOCH:
        return sessions.find(key)
    if epoch != INITIAL_EPOCH:
        forgotten = [(id_of(topic), index) for topic in body.forgotten_topics_data for index in topic.partitions]
        return sessions.update(key, epoch, named, forgotten)
    if has_acknowledgements:
        raise KafkaError(ErrorCode.invalid_request, "a request that begins a share session cannot acknowledge records")
    return sessions.begin(key, request.connection, named)


def _begin(
    services: Services,
    request: "Request[ShareFetchRequest]",
    key: SessionKey,
    session: ShareSession,
    epoch: int,
    results: _Results,
) -> Work[_ShareFetch]:
    """Finds the share partitions of the session. Those that are refused are in ``results``."""
    body = request.body
    if request.version >= HAS_ACQUIRE_MODE:
        is_record_limit = body.share_acquire_mode == EXACT_NUMBER
    else:
        is_record_limit = services.share_partitions.options(key.group_id).acquire_mode == RECORD_LIMIT
    order = Order(key.member_id, body.max_records, max(1, body.batch_size), is_record_limit)
    deadline = services.clock.monotonic() + body.max_wait.total_seconds()
    partitions = tuple(session.partitions)
    turn = epoch % len(partitions) if partitions else 0
    priorities = priorities_of(services.share_partitions.options(key.group_id).priority)
    shares: dict[TopicIdPartition, SharePartition] = {}
    classes: dict[int, dict[TopicIdPartition, SharePartition]] = {} if priorities.classes else {0: shares}
    for topic_id, index in partitions[turn:] + partitions[:turn]:
        try:
            if request.access.is_limited:
                _check_topic(services, request, topic_id)
            share = shares[topic_id, index] = services.share_partitions.find(key.group_id, topic_id, index)
            if priorities.classes:
                number = priorities.class_of(share.partition.topic_partition.topic)
                classes.setdefault(number, {})[topic_id, index] = share
        except (KafkaError, StorageError) as error:
            results[topic_id, index] = _refused(services, topic_id, index, error)
        yield
    max_bytes = min(body.max_bytes, services.config.fetch_max_bytes)
    if request.throttle is not None:
        max_bytes = request.throttle.fetch_limit(max_bytes)
    min_bytes = min(body.min_bytes, max_bytes if request.throttle is None else max(1, max_bytes // 2))
    return _ShareFetch(
        services,
        session,
        order,
        min_bytes,
        max_bytes,
        deadline,
        shares,
        classes,
        priorities,
        session.served,
        request.access,
    )


def _check_topic(services: Services, request: "Request[ShareFetchRequest]", topic_id: UUID) -> None:
    """Raises TOPIC_AUTHORIZATION_FAILED. An id that is not known is refused later."""
    topic = services.catalog.image.topics_by_id.get(topic_id)
    if topic is not None:
        check_item(request, TOPIC, topic.name)


def _check_rights(fetch: _ShareFetch, share: SharePartition) -> None:
    """Raises KafkaError if the client has lost its rights while the fetch was waiting."""
    check(fetch.access, READ, GROUP, fetch.session.key.group_id)
    check(fetch.access, READ, TOPIC, share.partition.topic_partition.topic)


def _first_delivery(fetch: _ShareFetch, results: _Results) -> Work[_Unserved | None]:
    """Delivers what is there. Returns None unless the fetch has to wait. Raises as ``_fetch`` does."""
    left_s = fetch.deadline - fetch.services.clock.monotonic()
    fetch.services.share_sessions.check_open(fetch.session)
    marks: dict[TopicIdPartition, Mark] = {}
    missing = yield from _deliver(fetch, results, marks, is_last=left_s <= 0)
    if results or left_s <= 0 or not fetch.shares:
        return None
    return _Unserved(fetch, marks, missing)


async def _fetch(unserved: _Unserved, results: _Results) -> None:
    """Adds what is delivered, and share partitions that have ended, to the results. Returns when there is either, or
    the time is up. Raises SHARE_SESSION_NOT_FOUND if the session ends meanwhile: what is delivered to a member without
    a session would wait for its lock."""
    fetch, marks, missing = unserved
    clock, slicer = fetch.services.clock, fetch.services.slicer
    left_s = fetch.deadline - clock.monotonic()
    while True:
        delayed = DelayedFetch(missing, read_committed=_reads_committed(fetch))
        try:
            await slicer.finish(_delay(fetch, delayed, marks))
            # Others have their turn even if there is something to read again at once, e.g. behind aborted transactions.
            await asyncio.sleep(0)
            await delayed.wait(max(0.0, left_s) * 1000)
        finally:
            delayed.leave()
        left_s = fetch.deadline - clock.monotonic()
        fetch.services.share_sessions.check_open(fetch.session)
        missing = await slicer.finish(_deliver(fetch, results, marks, is_last=left_s <= 0))
        if results or left_s <= 0 or not fetch.shares:
            return


def _reads_committed(fetch: _ShareFetch) -> bool:
    return next(iter(fetch.shares.values())).options.isolation_level == "read_committed"


def _deliver(fetch: _ShareFetch, results: _Results, marks: dict[TopicIdPartition, Mark], *, is_last: bool) -> Work[int]:
    """Delivers from each share partition in its turn. Returns how many bytes were missing to do so.

    ``marks`` are set to those of share partitions without anything to deliver.
    """
    if fetch.min_bytes > 1 and not is_last:
        readable_bytes = 0
        for key, share in fetch.shares.items():
            marks[key] = share.mark
            try:
                readable_bytes += share.readable_bytes(fetch.max_bytes)
            except (KafkaError, StorageError) as error:
                results[key] = _refused(fetch.services, *key, error)
            yield
        if readable_bytes < fetch.min_bytes and not any(share.error for share in fetch.shares.values()):
            return fetch.min_bytes - readable_bytes
    yield from _deliver_classes(fetch, results, marks)
    return 1


def _deliver_classes(fetch: _ShareFetch, results: _Results, marks: dict[TopicIdPartition, Mark]) -> Work[None]:
    if not fetch.priorities.classes:
        fetch.served.clear()
        everything = _Left(fetch.order.max_records, fetch.max_bytes)
        yield from _deliver_class(fetch, fetch.shares, everything, results, marks, is_first=True)
        return
    readable = yield from _readable_classes(fetch)
    left, served, dry = _Left(fetch.order.max_records, fetch.max_bytes), fetch.served, set[int]()
    for number, most in turns(fetch.priorities, fetch.classes, readable, served, fetch.order.max_records):
        some = left
        if most is not None and most < left.records:
            some = _Left(most, max(1, left.bytes * most // left.records))
        is_first = left.bytes == fetch.max_bytes
        used = yield from _deliver_class(fetch, fetch.classes[number], some, results, marks, is_first=is_first)
        left = _Left(left.records - used.records, left.bytes - used.bytes)
        served[number] = served.get(number, 0) + used.records
        if not used.records and (number not in readable or is_first):
            # Not if it had only a part of the bytes, which may be less than its next batch.
            dry.add(number)
    settle(fetch.priorities, fetch.classes, dry, served)


def _readable_classes(fetch: _ShareFetch) -> Work[set[int]]:
    """Returns the classes that may have something to deliver, or all if that makes no difference."""
    readable = set(fetch.classes)
    if fetch.priorities.weights:
        for number, shares in fetch.classes.items():
            for share in shares.values():
                if share.is_readable:
                    break
                yield
            else:
                readable.discard(number)
    return readable


def _deliver_class(
    fetch: _ShareFetch,
    shares: dict[TopicIdPartition, SharePartition],
    most: _Left,
    results: _Results,
    marks: dict[TopicIdPartition, Mark],
    *,
    is_first: bool,
) -> Work[_Left]:
    """Delivers from each share partition of one class in its turn. Returns what was delivered."""
    left_records, left_bytes, has_none = most.records, most.bytes, is_first
    for number, (key, share) in enumerate(shares.items()):
        if share.error is not None:
            results[key] = _refused(fetch.services, *key, share.error)
        elif left_records > 0 and left_bytes > 0:
            marks[key] = share.mark
            max_bytes = max(1, left_bytes // (len(shares) - number))
            try:
                order = fetch.order
                if left_records != order.max_records:
                    order = order._replace(max_records=left_records)
                if fetch.access.is_limited:
                    _check_rights(fetch, share)
                delivery = share.deliver(order, max_bytes, at_least_one=has_none)
            except (KafkaError, StorageError) as error:
                results[key] = _refused(fetch.services, *key, error)
                delivery = None
            if delivery is not None:
                results[key] = SharedPartition(key[1], records=delivery.records, acquired=delivery.acquired)
                has_none = False
                left_bytes -= len(delivery.records)
                left_records -= sum(one.last - one.first + 1 for one in delivery.acquired)
        yield
    return _Left(most.records - left_records, most.bytes - left_bytes)


def _delay(fetch: _ShareFetch, delayed: DelayedFetch, marks: dict[TopicIdPartition, Mark]) -> Work[None]:
    """Registers the delayed fetch where it can be woken, and wakes it if something has changed since the reading."""
    for key, share in fetch.shares.items():
        delayed.watch(share)
        if share.window is not None and share.window.can_acquire:
            delayed.watch(share.partition)
        if share.mark != marks.get(key):
            delayed.wake()
        if delayed.is_woken:
            return
        yield


def _respond(
    services: Services,
    request: "Request[ShareFetchRequest]",
    results: _Results,
    acknowledged: dict[TopicIdPartition, Refusal | None],
) -> Work[Parts]:
    topics: dict[UUID, dict[int, SharedPartition]] = {}
    throttle, size = request.throttle, 0
    for (topic_id, index), result in results.items():
        topics.setdefault(topic_id, {})[index] = result
        size += len(result.records)
        yield
    if throttle is not None:
        throttle.consumed(size, services.clock.monotonic())
    for (topic_id, index), error in acknowledged.items():
        of_topic = topics.setdefault(topic_id, {})
        result = of_topic.get(index, SharedPartition(index))
        if error is not None:
            leader = result.current_leader or current_leader(services, topic_id, index, code_of(error))
            result = result._replace(
                acknowledge_error_code=code_of(error),
                acknowledge_error_message=message_of(error),
                current_leader=leader,
            )
        of_topic[index] = result
        yield
    leaders = [one.current_leader for of_topic in topics.values() for one in of_topic.values()]
    parts = yield from encode_share_fetch(
        request.version,
        request.correlation_id,
        [(topic_id, tuple(of_topic.values())) for topic_id, of_topic in topics.items()],
        # A request names its group, or it has no session.
        services.share_partitions.options(request.body.group_id or "").record_lock_duration_ms,
        endpoints_of(services, leaders, request.listener_name) if any(leaders) else (),
        0 if throttle is None else throttle.ms,
    )
    return parts


def _refused(services: Services, topic_id: UUID, index: int, error: Exception) -> SharedPartition:
    code = code_of(error)
    leader = current_leader(services, topic_id, index, code)
    return SharedPartition(index, code, message_of(error), current_leader=leader)


def refuse(request: "Request[ShareFetchRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": code.name, "responses": [], "node_endpoints": []}
