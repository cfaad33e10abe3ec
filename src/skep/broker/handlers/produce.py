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
    full; the checks of the batch; zstd below version 7 (KIP-110); a transactional batch without a producer id,
    without a transactional id, or of a transaction that the partition was not added to (INVALID_TXN_STATE,
    TRANSACTION_ABORTABLE from version 11 on, and what else the coordinator says, KIP-890); a record without a key for
    a compacted topic (INVALID_RECORD, the answer says which), or more than ``skep.max.compacted.batch.records``;
    epoch and sequence of an idempotent producer; a batch that is not transactional, of a producer that is in a
    transaction (INVALID_TXN_STATE too). With acks=all, fewer in-sync replicas than ``min.insync.replicas``:
    NOT_ENOUGH_REPLICAS before anything is written, NOT_ENOUGH_REPLICAS_AFTER_APPEND when they became too few while
    the request waited.
"""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.broker.current_leaders import current_leader, endpoints_of
from skep.broker.refusals import code_of, message_of
from skep.broker.request import NO_ANSWER, CloseConnection, Parts, Request
from skep.broker.services import Services
from skep.broker.topics import INTERNAL_TOPICS
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.guards import Guard
from skep.coordination.transactions.verifying import AskElsewhere
from skep.records.batch import BatchHeader, check_produced
from skep.records.keys import InvalidRecord, check_keys
from skep.replication.partition import Partition
from skep.wire.codec import Body
from skep.wire.produce_response import ProducedPartition, encode_produce_response

ALLOWS_ZSTD = 7
KNOWS_TRANSACTION_ABORTABLE = 11
_ZSTD = 4
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)

_Results = list[tuple[str, list[ProducedPartition]]]
_Waiting = list[tuple[list[ProducedPartition], int, "asyncio.Future[None]"]]
"""Answers that stand only if the records are committed: the list an answer is in, its place there, and when."""
_Unverified = list[tuple[str, Any, list[ProducedPartition], int, Guard]]
"""Batches whose transaction another broker is asked about: topic, data, and where the answer is to stand."""


def handle(services: Services, request: Request) -> Parts | Awaitable[Parts]:
    results: _Results = []
    waiting: _Waiting = []
    unverified: _Unverified = []
    for topic in request.body.topic_data:
        name = topic.name
        produced: list[ProducedPartition] = []
        results.append((name, produced))
        for data in topic.partition_data:
            try:
                result, synced = _append(services, request, name, data)
                if synced is not None:
                    waiting.append((produced, len(produced), synced))
            except InvalidRecord as error:
                result = _invalid(data.index, error)
            except (KafkaError, StorageError) as error:
                result = _refused(services, name, data.index, error)
            except AskElsewhere as asked:
                unverified.append((name, data, produced, len(produced), asked.guard))
                result = ProducedPartition(data.index, ErrorCode.not_enough_replicas)
            produced.append(result)
    if unverified:
        # A task, not a coroutine: it begins before any that a later request makes, and so keeps their order.
        return asyncio.ensure_future(_append_verified(services, request, results, waiting, unverified))
    return _answer_or_wait(services, request, results, waiting)


async def _append_verified(
    services: Services, request: Request, results: _Results, waiting: _Waiting, unverified: _Unverified
) -> Parts:
    """Appends what had to wait for the coordinator. Cancelled (the client left), nothing more is appended."""
    guards = [guard for *_, guard in unverified]
    async with services.transactions.verifier.in_turn(request.body.transactional_id, guards):
        for name, data, produced, place, guard in unverified:
            try:
                produced[place], synced = _append(services, request, name, data, guard)
                if synced is not None:
                    waiting.append((produced, place, synced))
            except InvalidRecord as error:
                produced[place] = _invalid(data.index, error)
            except (KafkaError, StorageError) as error:
                produced[place] = _refused(services, name, data.index, error)
    answer = _answer_or_wait(services, request, results, waiting)
    return await answer if isinstance(answer, Awaitable) else answer


def _answer_or_wait(
    services: Services, request: Request, results: _Results, waiting: _Waiting
) -> Parts | Awaitable[Parts]:
    if waiting and request.body.acks != 0:
        timeout_s = request.body.timeout.total_seconds()
        # The records are in the log. A hundred requests of a hundred MiB may be waiting, and must not keep theirs.
        request.body = _without_records(request.body)
        return _answer_when_committed(services, request, results, waiting, timeout_s)
    return _answer(services, request, results)


def _invalid(index: int, error: InvalidRecord) -> ProducedPartition:
    return ProducedPartition(index, error.code, error_message=message_of(error), bad_record=error.index)


def _refused(services: Services, topic: str, index: int, error: Exception) -> ProducedPartition:
    code = code_of(error)
    leader = current_leader(services, topic, index, code)
    return ProducedPartition(index, code, error_message=message_of(error), current_leader=leader)


def _without_records(body: Any) -> SimpleNamespace:
    """What is left to answer, also to refuse, a request whose records are appended."""
    return SimpleNamespace(
        acks=body.acks,
        topic_data=[
            SimpleNamespace(
                name=topic.name, partition_data=[SimpleNamespace(index=data.index) for data in topic.partition_data]
            )
            for topic in body.topic_data
        ],
    )


def _append(
    services: Services, request: Request, topic: str, data: Any, guard: Guard | None = None
) -> tuple[ProducedPartition, "asyncio.Future[None] | None"]:
    acks, index, records = request.body.acks, data.index, data.records
    if acks not in _ACKS:
        raise KafkaError(ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {acks}")
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is written by the broker alone")
    partition = services.replicas.writable_partition(topic, index)
    config = partition.log.config
    header = check_produced(records, max_message_bytes=config.max_message_bytes)
    if header.attributes:
        _check_attributes(services, request, partition, header, guard)
    if config.is_compacted:
        check_keys(records, header, max_records=services.config.max_compacted_batch_records)
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


async def _answer_when_committed(
    services: Services, request: Request, results: _Results, waiting: _Waiting, timeout_s: float
) -> Parts:
    # The futures are this request's alone, so a timer may end them and a client that leaves cancel them. Awaiting them
    # as they are takes one turn of the loop; ``wait_for`` and ``shield`` around them took three.
    timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), _time_out, waiting)
    try:
        return await _answer_committed(services, request, results, waiting, timeout_s)
    finally:
        timer.cancel()


def _time_out(waiting: _Waiting) -> None:
    for _, _, committed in waiting:
        if not committed.done():
            committed.set_exception(TimeoutError())


async def _answer_committed(
    services: Services, request: Request, results: _Results, waiting: _Waiting, timeout_s: float
) -> Parts:
    for produced, place, committed in waiting:
        try:
            await committed
        except (KafkaError, StorageError, TimeoutError) as error:
            refusal = _timed_out(timeout_s) if isinstance(error, TimeoutError) else error
            name = next(name for name, partitions in results if partitions is produced)
            produced[place] = _refused(services, name, produced[place].partition, refusal)
    return _answer(services, request, results)


def _timed_out(timeout_s: float) -> KafkaError:
    return KafkaError(
        ErrorCode.request_timed_out, f"not all in-sync replicas had the records within {timeout_s * 1000:.0f} ms"
    )


def _answer(services: Services, request: Request, results: _Results) -> Parts:
    acks, leaders = request.body.acks, []
    for name, produced in results:
        for result in produced:
            if result.error_code != 0:
                if acks == 0:
                    code = ErrorCode(result.error_code).name
                    raise CloseConnection(f"produce with acks=0 to {name}-{result.partition} failed: {code}")
                leaders.append(result.current_leader)
    if acks == 0:
        return NO_ANSWER
    endpoints = endpoints_of(services, leaders) if leaders else ()
    return (encode_produce_response(request.version, request.correlation_id, results, node_endpoints=endpoints),)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {"index": data.index, "error_code": code, "base_offset": -1} for data in topic.partition_data
                ],
            }
            for topic in request.body.topic_data
        ]
    }
