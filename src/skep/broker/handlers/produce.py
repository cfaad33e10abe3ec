"""Produce (API 0), versions 3 to 11.

Behaviour
    One batch per partition is checked (``records/batch.py``), given its offsets and appended. What a partition
    refuses is that partition's error; the others are not touched by it.

    acks=1 is answered when the leader has it: at once, or after the sync for a topic with ``flush.messages=1``.
    acks=all is answered when all in-sync replicas have it; after ``timeout`` with REQUEST_TIMED_OUT, when it may be
    there or not. acks=0 gets no answer; when it fails, the connection is closed, which is all the client can notice.

    A batch of an idempotent producer that was appended before is answered as it was then. The first transactional
    batch of a producer begins its transaction in the partition, which ends with a marker (WriteTxnMarkers). When the
    coordinator of the transaction is on another broker that batch waits for its word, and so do the producer's batches
    for the partition that come meanwhile.

Refusals, per partition, in order
    acks other than -1, 0, 1; a topic of the coordinators (INVALID_TOPIC_EXCEPTION); unknown topic or partition; one
    that another broker leads (NOT_LEADER_OR_FOLLOWER, with the leader named from version 10 on, KIP-951); disk too
    full; the checks of the batch; a record without a key for a compacted topic (INVALID_RECORD, the response says
    which), or more than ``skep.max.compacted.batch.records``; zstd below version 7 (KIP-110); a transactional batch
    without a producer id, without a transactional id, or of a transaction that the partition was not added to
    (INVALID_TXN_STATE, TRANSACTION_ABORTABLE from version 11 on, and what else the coordinator says, KIP-890);
    epoch and sequence of an idempotent producer; a batch that is not transactional, of a producer that is in a
    transaction (INVALID_TXN_STATE too). With acks=all, fewer in-sync replicas than ``min.insync.replicas``:
    NOT_ENOUGH_REPLICAS before anything is written, NOT_ENOUGH_REPLICAS_AFTER_APPEND when they became too few while
    the request waited.
"""

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Work
from skep.broker.refusals import code_of, message_of
from skep.broker.request import NO_ANSWER, CloseConnection, Parts, Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import current_leader, endpoints_of
from skep.broker.topics.topic_creation import INTERNAL_TOPICS
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.verification_guards import Guard
from skep.coordination.transactions.verifier import AskElsewhere
from skep.records.batch import BatchHeader, check_produced
from skep.records.keys import InvalidRecord, check_keys, check_keys_at_once
from skep.replication.partition.partition import Partition
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray
from skep.wire.produce.produce_response import ProducedPartition, encode_produce_in_slices, encode_produce_response

ALLOWS_ZSTD = 7
KNOWS_TRANSACTION_ABORTABLE = 11
_ZSTD = 4
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)

_ProducedTopic = tuple[str, list[ProducedPartition]]

RESULTS_AT_ONCE = 1024
"""How many batches of a request are looked at before others get their turn, when all of them are committed."""


_Appended = tuple[ProducedPartition, "asyncio.Future[None] | None"]
"""What the client is told, and what has to be awaited before."""


class _Result:
    """What became of one partition's batch.

    ``committed`` is what has to be awaited before the result stands; ``unverified`` is a batch, and its guard, whose
    transaction another broker is asked about.
    """

    __slots__ = ("committed", "produced", "topic", "unverified")

    def __init__(
        self, topic: str, produced: ProducedPartition, committed: "asyncio.Future[None] | None" = None
    ) -> None:
        self.topic = topic
        self.produced = produced
        self.committed = committed
        self.unverified: tuple[Any, Guard] | None = None


class _Produce(NamedTuple):
    """A request whose batches are with the log. It may wait for long, so it does not keep them."""

    services: Services
    version: int
    correlation_id: int
    acks: int
    timeout_s: float
    in_slices: bool
    results: list[_Result]


class KeysUnchecked(Exception):
    """The keys of a batch for a compacted topic are too many to be checked on the event loop."""

    def __init__(self, header: BatchHeader) -> None:
        self.header = header


def handle(services: Services, request: Request) -> Parts | Awaitable[Parts]:
    results: list[_Result] = []
    if request.is_exclusive:
        return _handle_slowly(services, request, results, _batches(request))
    try:
        for topic in request.body.topic_data:
            for data in topic.partition_data:
                results.append(_produce(services, request, topic.name, data))
    except KeysUnchecked:
        request.is_exclusive = True
        # The batch may be a view into the frame, which is valid until the loop receives again.
        left = [(name, _kept(data)) for name, data in itertools.islice(_batches(request), len(results), None)]
        return _handle_slowly(services, request, results, left)
    for result in results:
        if result.unverified is not None:
            # A task, not a coroutine: it begins before any that a later request makes, and so keeps their order.
            return asyncio.ensure_future(_append_verified(services, request, results))
    return _respond_or_wait(services, request, results)


def _batches(request: Request) -> Iterator[tuple[str, Any]]:
    return ((topic.name, data) for topic in request.body.topic_data for data in topic.partition_data)


def _kept(data: Any) -> Any:
    return data if isinstance(data.records, bytes) else data._replace(records=bytes(data.records))


async def _handle_slowly(
    services: Services, request: Request, results: list[_Result], left: Iterable[tuple[str, Any]]
) -> Parts:
    """In slices, and keys are checked in a thread.

    The connection handles nothing else of this client meanwhile, so its batches stay in order.
    """
    left = iter(left)

    def append_all() -> Work[tuple[str, Any] | None]:
        """Appends up to the first batch whose keys are unchecked, and returns that one."""
        for name, data in left:
            try:
                results.append(_produce(services, request, name, data))
            except KeysUnchecked:
                return name, data
            yield
        return None

    while (unchecked := await services.slicer.finish(append_all())) is not None:
        results.append(await _produce_slowly(services, request, *unchecked))
    if any(result.unverified is not None for result in results):
        return await _append_verified(services, request, results)
    response = _respond_or_wait(services, request, results)
    return await response if isinstance(response, Awaitable) else response


def _produce(services: Services, request: Request, topic: str, data: Any) -> _Result:
    try:
        return _Result(topic, *_append(services, request, topic, data))
    except AskElsewhere as asked:
        result = _Result(topic, ProducedPartition(data.index, ErrorCode.not_enough_replicas))
        result.unverified = (data, asked.guard)
        return result
    except (KafkaError, StorageError) as error:
        return _Result(topic, _refused(services, topic, data.index, error))


async def _produce_slowly(services: Services, request: Request, topic: str, data: Any) -> _Result:
    result = _Result(topic, ProducedPartition(data.index, ErrorCode.not_enough_replicas))
    try:
        result.produced, result.committed = await _append_slowly(services, request, topic, data)
    except AskElsewhere as asked:
        result.unverified = (data, asked.guard)
    except (KafkaError, StorageError) as error:
        result.produced = _refused(services, topic, data.index, error)
    return result


async def _append_verified(services: Services, request: Request, results: list[_Result]) -> Parts:
    """Appends what had to wait for the coordinator. Cancelled (the client left), nothing more is appended."""
    unverified = [(result, *result.unverified) for result in results if result.unverified is not None]
    guards = [guard for _, _, guard in unverified]
    async with services.transactions.verifier.in_turn(request.body.transactional_id, guards):
        for result, data, guard in unverified:
            try:
                result.produced, result.committed = await _append_slowly(services, request, result.topic, data, guard)
            except (KafkaError, StorageError) as error:
                result.produced = _refused(services, result.topic, data.index, error)
            result.unverified = None
    response = _respond_or_wait(services, request, results)
    # Of the request nothing is needed any more, and a hundred requests of a hundred MiB may be waiting.
    del unverified, request
    return await response if isinstance(response, Awaitable) else response


def _respond_or_wait(services: Services, request: Request, results: list[_Result]) -> Parts | Awaitable[Parts]:
    acks = request.body.acks
    if len(results) == 1 and acks != 0:
        # Nearly all requests: one batch, appended, and nothing to wait for.
        [result] = results
        if result.committed is None and result.produced.error_code == 0:
            topics = ((result.topic, (result.produced,)),)
            return (encode_produce_response(request.version, request.correlation_id, topics),)
    timeout_s = request.body.timeout.total_seconds()
    produce = _Produce(
        services, request.version, request.correlation_id, acks, timeout_s, request.is_exclusive, results
    )
    if acks != 0:
        for result in results:
            if result.committed is not None:
                return _respond_when_committed(produce)
    return _respond(produce)


def _refused(services: Services, topic: str, index: int, error: Exception) -> ProducedPartition:
    if isinstance(error, InvalidRecord):
        return ProducedPartition(index, error.code, error_message=message_of(error), bad_record=error.index)
    code = code_of(error)
    leader = current_leader(services, topic, index, code)
    return ProducedPartition(index, code, error_message=message_of(error), current_leader=leader)


async def _append_slowly(
    services: Services, request: Request, topic: str, data: Any, guard: Guard | None = None
) -> _Appended:
    """``_append`` with the keys checked in a thread if that takes long."""
    try:
        return _append(services, request, topic, data, guard)
    except KeysUnchecked as unchecked:
        check = functools.partial(
            check_keys, data.records, unchecked.header, max_records=services.config.max_compacted_batch_records
        )
        await asyncio.get_running_loop().run_in_executor(services.threads.background, check)
    return _append(services, request, topic, data, guard, keys_are_checked=True)


def _append(
    services: Services,
    request: Request,
    topic: str,
    data: Any,
    guard: Guard | None = None,
    *,
    keys_are_checked: bool = False,
) -> _Appended:
    acks, index, records = request.body.acks, data.index, data.records
    if acks not in _ACKS:
        raise KafkaError(ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {acks}")
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is written by the broker alone")
    partition = services.replicas.writable_partition(topic, index)
    config = partition.log.config
    header = check_produced(records, max_message_bytes=config.max_message_bytes)
    if config.is_compacted and not keys_are_checked:
        max_records = services.config.max_compacted_batch_records
        if not check_keys_at_once(records, header, max_records=max_records):
            raise KeysUnchecked(header)
    if header.attributes:
        _check_attributes(services, request, partition, header, guard)
    appended, synced = partition.append(records, header, acks_all=acks == _ACKS_ALL)
    base_offset, _, append_time_ms, log_start_offset, _ = appended
    return ProducedPartition(index, 0, base_offset, append_time_ms, log_start_offset), synced


def _check_attributes(
    services: Services, request: Request, partition: Partition, header: BatchHeader, guard: Guard | None
) -> None:
    if header.codec == _ZSTD and request.version < ALLOWS_ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"zstd needs Produce v{ALLOWS_ZSTD}")
    if header.is_transactional:
        if not header.has_producer_id:
            raise KafkaError(ErrorCode.invalid_record, "a transactional batch names its producer")
        if request.body.transactional_id is None:
            # What Kafka answers: who does not say which id it acts for may not act for it.
            raise KafkaError(ErrorCode.transactional_id_authorization_failed, "there is no transactional id")
        # Asked for the batch that begins the transaction here, not for the others: were the partition no part of it,
        # nobody would ever end it, and readers would wait for ever (KIP-890). Nor for one of another epoch: it would
        # raise the partition's, which then refuses the coordinator's marker.
        # Also for one behind a batch that still waits for the coordinator's word: it has to wait for its turn.
        guards, place = services.transactions.verifier.guards, partition.topic_partition
        if not partition.log.producers.is_in_transaction(header.producer_id, header.producer_epoch) or (
            guard is None and guards.is_waiting(place, header.producer_id)
        ):
            _verify(services, request, partition, header, guard)


def _verify(
    services: Services, request: Request, partition: Partition, header: BatchHeader, guard: Guard | None
) -> None:
    verifier, place = services.transactions.verifier, partition.topic_partition
    producer = ProducerStamp(header.producer_id, header.producer_epoch)
    try:
        verifier.guards.check_order(place, producer, header.base_sequence)
        if guard is None:
            verifier.verify(request.body.transactional_id, producer, place, partition.leader_epoch)
        else:
            guard.check(partition.leader_epoch)
    except KafkaError as error:
        if error.code is ErrorCode.not_enough_replicas:
            verifier.guards.refused(place, producer, header.base_sequence)
        if error.code is ErrorCode.invalid_txn_state and request.version >= KNOWS_TRANSACTION_ABORTABLE:
            raise KafkaError(ErrorCode.transaction_abortable, str(error)) from None
        raise
    verifier.guards.accepted(place, producer)


async def _respond_when_committed(produce: _Produce) -> Parts:
    # The futures are this request's alone, so a timer may end them and a client that leaves cancel them. Awaiting them
    # as they are takes one turn of the loop; ``wait_for`` and ``shield`` around them took three.
    timer = asyncio.get_running_loop().call_later(max(0.0, produce.timeout_s), _time_out, produce)
    try:
        for number, result in enumerate(produce.results):
            try:
                if result.committed is not None:
                    await result.committed
            except (KafkaError, StorageError, TimeoutError) as error:
                refusal = _timed_out(produce.timeout_s) if isinstance(error, TimeoutError) else error
                result.produced = _refused(produce.services, result.topic, result.produced.partition, refusal)
            if number % RESULTS_AT_ONCE == RESULTS_AT_ONCE - 1:
                await asyncio.sleep(0)
    finally:
        timer.cancel()
    response = _respond(produce)
    return await response if isinstance(response, Awaitable) else response


def _time_out(produce: _Produce) -> None:
    def end_all() -> Work[None]:
        for result in produce.results:
            if result.committed is not None and not result.committed.done():
                result.committed.set_exception(TimeoutError())
            yield

    produce.services.slicer.run(end_all())


def _timed_out(timeout_s: float) -> KafkaError:
    return KafkaError(
        ErrorCode.request_timed_out, f"not all in-sync replicas had the records within {timeout_s * 1000:.0f} ms"
    )


def _respond(produce: _Produce) -> Parts | Awaitable[Parts]:
    if produce.in_slices:
        return produce.services.slicer.run(_respond_in_slices(produce))
    if produce.acks == 0:
        for result in produce.results:
            _close_if_failed(result)
        return NO_ANSWER
    leaders = [result.produced.current_leader for result in produce.results if result.produced.error_code]
    endpoints = endpoints_of(produce.services, leaders) if leaders else ()
    topics = _by_topic(produce.results)
    return (encode_produce_response(produce.version, produce.correlation_id, topics, node_endpoints=endpoints),)


def _respond_in_slices(produce: _Produce) -> Work[Parts]:
    leaders = set()
    topics: list[_ProducedTopic] = []
    for result in produce.results:
        if produce.acks == 0:
            _close_if_failed(result)
        leaders.add(result.produced.current_leader)
        _add(result, topics)
        yield
    parts: Parts = NO_ANSWER
    if produce.acks != 0:
        endpoints = endpoints_of(produce.services, leaders)
        parts = ((yield from encode_produce_in_slices(produce.version, produce.correlation_id, topics, endpoints)),)
    # Nobody needs the results any more. To free 200,000 of them in one go would take 20 ms.
    lists: list[list[Any]] = [produce.results, *(partitions for _, partitions in topics)]
    for some in lists:
        while some:
            del some[-RESULTS_AT_ONCE:]
            yield
    return parts


def _by_topic(results: list[_Result]) -> Sequence[_ProducedTopic]:
    topics: list[_ProducedTopic] = []
    for result in results:
        _add(result, topics)
    return topics


def _add(result: _Result, topics: list[_ProducedTopic]) -> None:
    if not topics or topics[-1][0] != result.topic:
        topics.append((result.topic, []))
    topics[-1][1].append(result.produced)


def _close_if_failed(result: _Result) -> None:
    if (code := result.produced.error_code) != 0:
        name = f"{result.topic}-{result.produced.partition}"
        raise CloseConnection(f"produce with acks=0 to {name} failed: {ErrorCode(code).name}")


def refuse(request: Request, code: ErrorCode) -> Body:
    def partition(data: Any) -> dict[str, Any]:
        return {"index": data.index, "error_code": code, "base_offset": -1}

    def topic(named: Any) -> dict[str, Any]:
        return {"name": named.name, "partition_responses": LazyArray(named.partition_data, partition)}

    return {"responses": LazyArray(request.body.topic_data, topic)}
