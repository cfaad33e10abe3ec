"""Produce (API 0), versions 3 to 12.

Behaviour
    One batch per partition is checked (``records/batch.py``), gets its offsets and is appended. A partition that
    refuses its batch has an error code in the response; the other partitions are not affected.

    With acks=1 the response is sent when the leader has the batch: at once, or after the sync for a topic with
    ``flush.messages=1``. With acks=all it is sent when all in-sync replicas have the batch. After ``timeout`` it is
    REQUEST_TIMED_OUT, and the batch may be in the log or not. With acks=0 there is no response; a failure closes the
    connection, because the client can notice nothing else.

    A batch of an idempotent producer that was appended before gets the same response as then. The first transactional
    batch of a producer begins its transaction in the partition, which a marker ends (WriteTxnMarkers). If the
    coordinator of the transaction is on another broker, that batch waits for the coordinator's response, and so do
    later batches of the producer for the partition.

    A topic with a ``compression.type`` other than ``producer`` stores all batches in that codec. Batches that were sent
    in another one are compressed again, in a thread; the connection handles no other request meanwhile, so the order of
    the client's batches stays.

Versions
    3 is the first with record batches of format 2 and with transactional ids (KIP-98).
    4: KAFKA_STORAGE_ERROR (KIP-112), which version 3 gets here too.
    5: log start offset in the response.
    6: the client waits for ``throttle_time_ms`` itself (KIP-219); the broker mutes its connection in all versions.
    7: zstd (KIP-110).
    8: error message and the indexes of bad records (KIP-467).
    9 is flexible.
    10: the current leader and its address (KIP-951).
    11: TRANSACTION_ABORTABLE (KIP-890).
    12: transactions v2 (KIP-890). The first batch of a transaction for a partition adds the partition to it.

Refusals, per partition, in order
    acks other than -1, 0, 1; TOPIC_AUTHORIZATION_FAILED; an internal topic (INVALID_TOPIC_EXCEPTION); unknown topic or
    partition; another broker leads the partition (NOT_LEADER_OR_FOLLOWER, with the leader from version 10 on); disk too
    full; the checks of the batch; records without a key for a compacted topic (INVALID_RECORD with the indexes of these
    records, 10,000 at most), or more records than ``skep.max.compacted.batch.records``; zstd below version 7; a batch
    that has to be compressed again and decompresses to more than 32 MiB (CORRUPT_MESSAGE), or is too large then
    (MESSAGE_TOO_LARGE); a transactional batch without a producer id, without a transactional id, or of a transaction
    that does not include the partition (INVALID_TXN_STATE, from version 11 on TRANSACTION_ABORTABLE, and the
    coordinator's other errors, KIP-890); a batch of an idempotent producer that would overtake the retry of a refused
    one (NOT_ENOUGH_REPLICAS); epoch and sequence of an idempotent producer; a batch that is not transactional while its
    producer is in a transaction (INVALID_TXN_STATE). With acks=all, fewer in-sync replicas than
    ``min.insync.replicas``: NOT_ENOUGH_REPLICAS before anything is written, NOT_ENOUGH_REPLICAS_AFTER_APPEND when there
    were too few while the request waited.
"""

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, TRANSACTIONAL_ID, WRITE, check_item
from skep.broker.refusals import code_of, message_of
from skep.broker.refused_batches import RETRIED, RefusedBatches
from skep.broker.request import NO_RESPONSE, CloseConnection, Parts, Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import current_leader, endpoints_of
from skep.broker.topics.topic_creation import INTERNAL_TOPICS
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.verification_guards import VerificationGuard
from skep.coordination.transactions.verifier import VerificationRequired
from skep.records.batch import BatchHeader, Buffer, check_produced
from skep.records.compression import Codec, recompress
from skep.records.keys import InvalidRecord, check_keys, check_keys_at_once
from skep.replication.partition.partition import Partition
from skep.security.access import refusal
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray
from skep.wire.produce.one_batch_reader import OnePartition
from skep.wire.produce.produce_response import ProducedPartition, encode_produce_in_slices, encode_produce_response

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ProduceRequest

ALLOWS_ZSTD = 7
HAS_TRANSACTION_ABORTABLE = 11
ADDS_PARTITIONS = 12
_CODECS = {"uncompressed": Codec.NONE, **{codec.label: codec for codec in Codec if codec is not Codec.NONE}}
"""The values of ``compression.type`` except ``producer``."""
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)
_Data: TypeAlias = "ProduceRequest.PartitionProduceData | OnePartition | _Prepared"
"""One batch of a request."""

RESULTS_AT_ONCE = 1024
"""How many results of a request are processed in one turn of the event loop when all of them are committed."""


class _Uncommitted(NamedTuple):
    """An appended batch whose acknowledgement waits for ``committed``, a sync or the in-sync replicas."""

    produced: ProducedPartition
    committed: "asyncio.Future[None]"


class _Unverified(NamedTuple):
    """A batch that is not appended yet: the coordinator of its transaction, on another broker, is asked first."""

    data: "_Data"
    guard: VerificationGuard


_Appended = ProducedPartition | _Uncommitted
_Result = tuple[str, _Appended]
"""The topic, and what became of a batch for one of its partitions."""
_FirstResult = tuple[str, _Appended | _Unverified]
"""The same before the batches that need it are verified."""

_ProducedTopic = tuple[str, list[ProducedPartition]]


class _Produce(NamedTuple):
    """A request whose batches are appended, while it waits to be committed."""

    services: Services
    version: int
    correlation_id: int
    acks: int
    timeout_s: float
    in_slices: bool
    throttle_ms: int
    listener_name: str


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch that ``_prepare`` has looked into, in place of what the client sent."""

    index: int
    records: Buffer


class BatchUnprepared(Exception):
    """A thread has to prepare the batch before it can be stored: it has too many keys to be checked on the event loop,
    or it is to be compressed again."""

    def __init__(self, header: BatchHeader, config: TopicConfig) -> None:
        self.header = header
        self.config = config


def handle(services: Services, request: "Request[ProduceRequest]") -> Parts | Awaitable[Parts]:
    results: list[_FirstResult] = []
    if request.is_exclusive:
        return _handle_in_slices(services, request, results, _batches(request))
    try:
        for topic in request.body.topic_data:
            for data in topic.partition_data:
                results.append((topic.name, _produce(services, request, topic.name, data)))
    except BatchUnprepared:
        request.is_exclusive = True
        # A batch may be a view into the frame, which is valid until the loop receives again.
        left = [(name, _copied(data)) for name, data in itertools.islice(_batches(request), len(results), None)]
        return _handle_in_slices(services, request, results, left)
    for _, outcome in results:
        if type(outcome) is _Unverified:
            # A task, not a coroutine: it begins before the task of any later request, which keeps their order.
            return asyncio.ensure_future(_append_verified(services, request, results))
    return _respond_or_wait(services, request, cast("list[_Result]", results))


def _batches(request: "Request[ProduceRequest]") -> "Iterator[tuple[str, _Data]]":
    return ((topic.name, data) for topic in request.body.topic_data for data in topic.partition_data)


def _copied(data: "_Data") -> "_Data":
    return data._replace(records=bytes(data.records)) if isinstance(data, OnePartition) else data


async def _handle_in_slices(
    services: Services,
    request: "Request[ProduceRequest]",
    results: list[_FirstResult],
    left: "Iterable[tuple[str, _Data]]",
) -> Parts:
    """Appends the batches in ``left`` in slices. Those that need it are prepared in a thread.

    The connection handles no other request of the client meanwhile, so its batches stay in order.
    """
    left = iter(left)

    def append_all() -> "Work[tuple[str, _Data] | None]":
        """Appends up to the first batch that has to be prepared, and returns that batch."""
        for name, data in left:
            try:
                results.append((name, _produce(services, request, name, data)))
            except BatchUnprepared:
                return name, data
            yield
        return None

    try:
        while (unprepared := await services.slicer.finish(append_all())) is not None:
            name, data = unprepared
            results.append((name, await _produce_slowly(services, request, name, data)))
    except BaseException:
        # The client has left. A guard that stayed would make all later batches of the producer wait for their turn.
        for _, outcome in results:
            if isinstance(outcome, _Unverified):
                services.transactions.verifier.guards.release(outcome.guard)
        raise
    if any(type(outcome) is _Unverified for _, outcome in results):
        return await _append_verified(services, request, results)
    response = _respond_or_wait(services, request, cast("list[_Result]", results))
    return await response if isinstance(response, Awaitable) else response


def _produce(
    services: Services, request: "Request[ProduceRequest]", topic: str, data: "_Data"
) -> _Appended | _Unverified:
    try:
        return _append(services, request, topic, data)
    except VerificationRequired as asked:
        return _Unverified(data, asked.guard)
    except (KafkaError, StorageError) as error:
        return _not_appended(services, request, topic, data, error)


async def _produce_slowly(
    services: Services,
    request: "Request[ProduceRequest]",
    topic: str,
    data: "_Data",
    guard: VerificationGuard | None = None,
) -> _Appended | _Unverified:
    """``_produce`` with the batch prepared in a thread if it needs that. A batch with a guard has been verified."""
    try:
        try:
            return _append(services, request, topic, data, guard)
        except BatchUnprepared as unprepared:
            max_records = services.config.max_compacted_batch_records
            assert data.records is not None, "a null batch is refused before"
            prepare = functools.partial(_prepare, data.records, unprepared.header, unprepared.config, max_records)
            records = await asyncio.get_running_loop().run_in_executor(services.threads.batches, prepare)
            data = _Prepared(data.index, records)
        # All checks are repeated, because there was an await since. There is none between them and the append.
        return _append(services, request, topic, data, guard)
    except VerificationRequired as asked:
        return _Unverified(data, asked.guard)
    except (KafkaError, StorageError) as error:
        return _not_appended(services, request, topic, data, error)


async def _append_verified(
    services: Services, request: "Request[ProduceRequest]", results: list[_FirstResult]
) -> Parts:
    """Appends the batches that wait for the coordinator. When cancelled (the client left), appends nothing more."""
    guards = [outcome.guard for _, outcome in results if isinstance(outcome, _Unverified)]
    appended: list[_Result] = []
    transactional_id = request.body.transactional_id
    assert transactional_id is not None, "only batches of transactions have guards"
    async with services.transactions.verifier.in_turn(transactional_id, guards):
        for topic, outcome in results:
            if isinstance(outcome, _Unverified):
                outcome = await _produce_slowly(services, request, topic, outcome.data, outcome.guard)
                assert not isinstance(outcome, _Unverified), "a batch with a guard is not verified again"
            appended.append((topic, outcome))
    response = _respond_or_wait(services, request, appended)
    results.clear()  # frees the copies of the batches, which are not needed while this waits
    return await response if isinstance(response, Awaitable) else response


def _respond_or_wait(
    services: Services, request: "Request[ProduceRequest]", results: list[_Result]
) -> Parts | Awaitable[Parts]:
    acks = request.body.acks
    if len(results) == 1 and acks != 0 and request.throttle is None:
        # Nearly all requests: one batch, appended, and nothing to wait for.
        [(topic, only)] = results
        if type(only) is ProducedPartition and only.error_code == 0:
            return (encode_produce_response(request.version, request.correlation_id, ((topic, (only,)),)),)
    produce = _Produce(
        services,
        request.version,
        request.correlation_id,
        acks,
        request.body.timeout.total_seconds(),
        request.is_exclusive,
        0 if request.throttle is None else request.throttle.ms,
        request.listener_name,
    )
    if acks != 0:
        for _, outcome in results:
            if type(outcome) is _Uncommitted:
                return _respond_when_committed(produce, results)
    return _respond(produce, results)


def _not_appended(
    services: Services, request: "Request[ProduceRequest]", topic: str, data: "_Data", error: Exception
) -> ProducedPartition:
    if code_of(error) in RETRIED and (connection := request.connection) is not None:
        if connection.refused_batches is None:
            connection.refused_batches = RefusedBatches()
        connection.refused_batches.refused(topic, data.index, data.records)
    return _refused(services, topic, data.index, error)


def _refused(services: Services, topic: str, index: int, error: Exception) -> ProducedPartition:
    if isinstance(error, InvalidRecord):
        return ProducedPartition(index, error.code, error_message=message_of(error), bad_records=error.indexes)
    code = code_of(error)
    leader = current_leader(services, topic, index, code)
    return ProducedPartition(index, code, error_message=message_of(error), current_leader=leader)


def _append(
    services: Services,
    request: "Request[ProduceRequest]",
    topic: str,
    data: "_Data",
    guard: VerificationGuard | None = None,
) -> _Appended:
    acks, index, records = request.body.acks, data.index, data.records
    if acks not in _ACKS:
        raise KafkaError(ErrorCode.invalid_required_acks, f"acks is {acks}; it must be -1, 0 or 1")
    if request.access.is_limited and not request.access.asked(request, WRITE, TOPIC, topic):
        raise refusal(TOPIC)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is an internal topic; clients cannot write to it")
    partition = services.replicas.writable_partition(topic, index)
    config = partition.log.config
    header = check_produced(records, max_message_bytes=config.max_message_bytes)
    assert records is not None, "check_produced refuses it"
    if config.examines_batches and type(data) is not _Prepared:
        _examine(services, request, config, records, header)
    if header.attributes:
        if request.version < ALLOWS_ZSTD and type(data) is not _Prepared:
            _check_codec(request, header)
        _check_attributes(services, request, partition, header, guard)
    if (connection := request.connection) is not None and connection.refused_batches is not None:
        connection.refused_batches.check(topic, index, header, partition.log.producers)
    appended, committed = partition.append(records, header, acks_all=acks == _ACKS_ALL)
    base_offset, _, append_time_ms, log_start_offset, _ = appended
    produced = ProducedPartition(index, 0, base_offset, append_time_ms, log_start_offset)
    return produced if committed is None else _Uncommitted(produced, committed)


def _examine(
    services: Services, request: "Request[ProduceRequest]", config: TopicConfig, records: Buffer, header: BatchHeader
) -> None:
    """Raises BatchUnprepared unless the batch can be appended as it is."""
    max_records = services.config.max_compacted_batch_records
    is_checked = not config.is_compacted or check_keys_at_once(records, header, max_records=max_records)
    if not is_checked or _stored_codec(config, header) != header.codec:
        _check_codec(request, header)
        raise BatchUnprepared(header, config)


def _prepare(records: Buffer, header: BatchHeader, config: TopicConfig, max_records: int) -> Buffer:
    """Returns the batch as it is to be stored. Runs in a thread, so it must not touch state of the event loop."""
    if config.is_compacted:
        check_keys(records, header, max_records=max_records)
    codec = _stored_codec(config, header)
    return records if codec == header.codec else recompress(records, header, codec)


def _stored_codec(config: TopicConfig, header: BatchHeader) -> int:
    return _CODECS.get(config.compression_type, header.codec)


def _check_codec(request: "Request[ProduceRequest]", header: BatchHeader) -> None:
    if request.version < ALLOWS_ZSTD and header.codec == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce v{ALLOWS_ZSTD}, this is v{request.version}"
        )


def _check_attributes(
    services: Services,
    request: "Request[ProduceRequest]",
    partition: Partition,
    header: BatchHeader,
    guard: VerificationGuard | None,
) -> None:
    if header.is_transactional:
        if not header.has_producer_id:
            raise KafkaError(ErrorCode.invalid_record, "a transactional batch must have a producer id")
        transactional_id = request.body.transactional_id
        if transactional_id is None:
            # The same code as Kafka: without an id the client is not authorised for it.
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "the request has transactional batches but no transactional id",
            )
        check_item(request, TRANSACTIONAL_ID, transactional_id)
        # A batch is verified unless its producer has a transaction open here, with the batch's epoch. If the partition
        # were not part of the transaction, no marker would ever end it here, and readers would wait forever (KIP-890).
        # A batch of another epoch than the open transaction's is verified too: it would raise the partition's epoch,
        # and the partition would then refuse the coordinator's marker. A batch behind one that waits for the
        # coordinator is verified as well, because it has to wait for its turn.
        guards, place = services.transactions.verifier.guards, partition.topic_partition
        if not partition.log.producers.is_in_transaction(header.producer_id, header.producer_epoch) or (
            guard is None and guards.is_waiting(place, header.producer_id)
        ):
            _verify(services, request, transactional_id, partition, header, guard)


def _verify(
    services: Services,
    request: "Request[ProduceRequest]",
    transactional_id: str,
    partition: Partition,
    header: BatchHeader,
    guard: VerificationGuard | None,
) -> None:
    """Raises KafkaError if the transaction does not include the partition, VerificationRequired if this is not known
    here."""
    verifier, place = services.transactions.verifier, partition.topic_partition
    producer = ProducerStamp(header.producer_id, header.producer_epoch)
    try:
        verifier.guards.check_order(place, producer, header.base_sequence)
        if guard is None:
            adds = request.version >= ADDS_PARTITIONS
            verifier.verify(transactional_id, producer, place, partition.leader_epoch, adds=adds)
        else:
            guard.check(partition.leader_epoch)
            if guard.adds and header.base_sequence > 0 and not partition.log.producers.knows(header.producer_id):
                # Each epoch of v2 begins at 0, so a batch before this one is missing: it was refused, and comes again.
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} begins with sequence {header.base_sequence}",
                )
    except KafkaError as error:
        if error.code is ErrorCode.not_enough_replicas:
            verifier.guards.refused(place, producer, header.base_sequence)
        if error.code is ErrorCode.invalid_txn_state and request.version >= HAS_TRANSACTION_ABORTABLE:
            raise KafkaError(ErrorCode.transaction_abortable, str(error)) from None
        raise
    verifier.guards.accepted(place, producer)


async def _respond_when_committed(produce: _Produce, results: list[_Result]) -> Parts:
    # The futures belong to this request alone, so a timer may end them, and the request's cancellation may cancel them.
    # Awaiting them directly takes one turn of the loop; ``wait_for`` and ``shield`` around them took three.
    timer = asyncio.get_running_loop().call_later(max(0.0, produce.timeout_s), _time_out, produce, results)
    committed: list[_Result] = []
    try:
        for number, (topic, outcome) in enumerate(results):
            if isinstance(outcome, _Uncommitted):
                produced = outcome.produced
                try:
                    await outcome.committed
                except (KafkaError, StorageError, TimeoutError) as error:
                    refusal = _timed_out(produce.timeout_s) if isinstance(error, TimeoutError) else error
                    produced = _refused(produce.services, topic, produced.partition, refusal)
                outcome = produced
            committed.append((topic, outcome))
            if number % RESULTS_AT_ONCE == RESULTS_AT_ONCE - 1:
                await asyncio.sleep(0)
    finally:
        timer.cancel()
    response = _respond(produce, committed, results)
    return await response if isinstance(response, Awaitable) else response


def _time_out(produce: _Produce, results: Sequence[_Result]) -> None:
    def end_all() -> Work[None]:
        for _, outcome in results:
            if isinstance(outcome, _Uncommitted) and not outcome.committed.done():
                outcome.committed.set_exception(TimeoutError())
            yield

    produce.services.slicer.run(end_all())


def _timed_out(timeout_s: float) -> KafkaError:
    return KafkaError(
        ErrorCode.request_timed_out, f"not all in-sync replicas had the records within {timeout_s * 1000:.0f} ms"
    )


def _respond(
    produce: _Produce, results: list[_Result], waited: list[_Result] | None = None
) -> Parts | Awaitable[Parts]:
    """Encodes the response to ``results``. ``waited`` is an earlier list that is only to be freed."""
    if produce.in_slices:
        return produce.services.slicer.run(_respond_in_slices(produce, results, waited or []))
    if produce.acks == 0:
        for topic, outcome in results:
            _close_if_failed(topic, _produced(outcome))
        return NO_RESPONSE
    topics: list[_ProducedTopic] = []
    for topic, outcome in results:
        _add(topics, topic, _produced(outcome))
    leaders = [one.current_leader for _, produced in topics for one in produced if one.error_code]
    endpoints = endpoints_of(produce.services, leaders, produce.listener_name) if leaders else ()
    return (
        encode_produce_response(
            produce.version,
            produce.correlation_id,
            topics,
            node_endpoints=endpoints,
            throttle_ms=produce.throttle_ms,
        ),
    )


def _respond_in_slices(produce: _Produce, results: list[_Result], waited: list[_Result]) -> Work[Parts]:
    leaders = set()
    topics: list[_ProducedTopic] = []
    for topic, outcome in results:
        produced = _produced(outcome)
        if produce.acks == 0:
            _close_if_failed(topic, produced)
        leaders.add(produced.current_leader)
        _add(topics, topic, produced)
        yield
    parts: Parts = NO_RESPONSE
    if produce.acks != 0:
        endpoints = endpoints_of(produce.services, leaders, produce.listener_name)
        encoding = encode_produce_in_slices(
            produce.version, produce.correlation_id, topics, endpoints, produce.throttle_ms
        )
        parts = ((yield from encoding),)
    # The results are not needed any more. Freeing 200,000 of them at once would take 20 ms.
    lists: list[list[Any]] = [waited, results, *(partitions for _, partitions in topics)]
    for some in lists:
        while some:
            del some[-RESULTS_AT_ONCE:]
            yield
    return parts


def _produced(outcome: _Appended) -> ProducedPartition:
    return outcome.produced if isinstance(outcome, _Uncommitted) else outcome


def _add(topics: list[_ProducedTopic], topic: str, produced: ProducedPartition) -> None:
    if not topics or topics[-1][0] != topic:
        topics.append((topic, []))
    topics[-1][1].append(produced)


def _close_if_failed(topic: str, produced: ProducedPartition) -> None:
    if produced.error_code != 0:
        name = f"{topic}-{produced.partition}"
        raise CloseConnection(f"produce with acks=0 to {name} failed: {ErrorCode(produced.error_code).name}")


def refuse(request: "Request[ProduceRequest]", code: ErrorCode) -> Body:
    def partition(data: "ProduceRequest.PartitionProduceData") -> dict[str, Any]:
        return {"index": data.index, "error_code": code, "base_offset": -1}

    def topic(named: "ProduceRequest.TopicProduceData") -> dict[str, Any]:
        return {"name": named.name, "partition_responses": LazyArray(named.partition_data, partition)}

    return {"responses": LazyArray(request.body.topic_data, topic)}
