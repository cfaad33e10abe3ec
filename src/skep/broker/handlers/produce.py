"""Produce (API 0), versions 3 to 11.

Behaviour
    One batch per partition is checked (``records/batch.py``), given its offsets and appended. What a partition
    refuses is that partition's error; the others are not touched by it.

    acks=1 and acks=all are answered when the append may be acknowledged: at once, or after the sync for a topic with
    ``flush.messages=1``. acks=0 gets no answer; when it fails, the connection is closed, which is all the client can
    notice.

    A batch of an idempotent producer that was appended before is answered as it was then. The first transactional
    batch of a producer begins its transaction in the partition, which ends with a marker (WriteTxnMarkers).

Refusals, per partition, in order
    acks other than -1, 0, 1; a topic of the coordinators (INVALID_TOPIC_EXCEPTION); unknown topic or partition; disk
    too full; the checks of the batch; zstd below version 7 (KIP-110); a transactional batch without a producer id,
    without a transactional id, or of a transaction that the partition was not added to (INVALID_TXN_STATE,
    TRANSACTION_ABORTABLE from version 11 on, and what else the coordinator says, KIP-890); a record
    without a key for a compacted topic (INVALID_RECORD, the answer says which), or more than
    ``skep.max.compacted.batch.records``; epoch and sequence of an idempotent producer; a batch that is not
    transactional, of a producer that is in a transaction (INVALID_TXN_STATE too).

Left out
    ``timeout`` is read and ignored: nothing but the local disk is waited for. ``min.insync.replicas`` never refuses: as
    in Kafka it asks for no more replicas than a partition has, which is one.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.broker.refusals import message_of
from skep.broker.request import NO_ANSWER, CloseConnection, Parts, Request
from skep.broker.services import Services
from skep.broker.topics import INTERNAL_TOPICS
from skep.records.batch import BatchHeader, check_produced
from skep.records.keys import InvalidRecord, check_keys
from skep.replication.partition import Partition
from skep.wire.codec import Body
from skep.wire.produce_response import ProducedPartition, encode_produce_response

ALLOWS_ZSTD = 7
KNOWS_TRANSACTION_ABORTABLE = 11
_ZSTD = 4
_ACKS = (-1, 0, 1)

_Results = list[tuple[str, list[ProducedPartition]]]
_Waiting = list[tuple[list[ProducedPartition], int, "asyncio.Future[None]"]]
"""Answers that stand only if a sync succeeds: the list an answer is in, its place there, and the sync."""


def handle(services: Services, request: Request) -> Parts | Awaitable[Parts]:
    results: _Results = []
    waiting: _Waiting = []
    acks = request.body.acks
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
                result = ProducedPartition(
                    data.index, error.code, error_message=message_of(error), bad_record=error.index
                )
            except KafkaError as error:
                result = ProducedPartition(data.index, error.code, error_message=message_of(error))
            except StorageError as error:
                result = ProducedPartition(data.index, ErrorCode.kafka_storage_error, error_message=message_of(error))
            produced.append(result)
    if waiting and acks != 0:
        # The records are in the log. A hundred requests of a hundred MiB may be waiting, and must not keep theirs.
        request.body = _without_records(request.body)
        return _answer_when_synced(request, results, waiting)
    return _answer(request, results)


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
    services: Services, request: Request, topic: str, data: Any
) -> tuple[ProducedPartition, "asyncio.Future[None] | None"]:
    if request.body.acks not in _ACKS:
        raise KafkaError(ErrorCode.invalid_required_acks, f"acks is -1, 0 or 1, not {request.body.acks}")
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"{topic} is written by the broker alone")
    partition = services.replicas.writable_partition(topic, data.index)
    header = check_produced(data.records, max_message_bytes=partition.log.config.max_message_bytes)
    if header.attributes:
        _check_attributes(services, request, partition, header)
    if partition.log.config.is_compacted:
        check_keys(data.records, header, max_records=services.config.max_compacted_batch_records)
    appended, synced = partition.append(data.records, header)
    result = ProducedPartition(
        data.index, 0, appended.base_offset, appended.append_time_ms, appended.log_start_offset, None
    )
    return result, synced


def _check_attributes(services: Services, request: Request, partition: Partition, header: BatchHeader) -> None:
    if header.codec == _ZSTD and request.version < ALLOWS_ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"zstd needs Produce v{ALLOWS_ZSTD}")
    if header.is_transactional:
        if not header.has_producer_id:
            raise KafkaError(ErrorCode.invalid_record, "a transactional batch names its producer")
        transactional_id = request.body.transactional_id
        if transactional_id is None:
            # What Kafka answers: who does not say which id it acts for may not act for it.
            raise KafkaError(ErrorCode.transactional_id_authorization_failed, "there is no transactional id")
        # Asked for the batch that begins the transaction here, not for the others: were the partition no part of it,
        # nobody would ever end it, and readers would wait for ever (KIP-890). Nor for one of another epoch: it would
        # raise the partition's, which then refuses the coordinator's marker.
        if not partition.log.producers.is_in_transaction(header.producer_id, header.producer_epoch):
            _verify(services, request, partition, header)


def _verify(services: Services, request: Request, partition: Partition, header: BatchHeader) -> None:
    try:
        services.transactions.verify(
            request.body.transactional_id, header.producer_id, header.producer_epoch, *partition.topic_partition
        )
    except KafkaError as error:
        if error.code is ErrorCode.invalid_txn_state and request.version >= KNOWS_TRANSACTION_ABORTABLE:
            raise KafkaError(ErrorCode.transaction_abortable, str(error)) from None
        raise


async def _answer_when_synced(request: Request, results: _Results, waiting: _Waiting) -> Parts:
    for produced, place, synced in waiting:
        try:
            await synced
        except StorageError as error:
            partition = produced[place].partition
            produced[place] = ProducedPartition(
                partition, ErrorCode.kafka_storage_error, error_message=message_of(error)
            )
    return _answer(request, results)


def _answer(request: Request, results: Sequence[tuple[str, Sequence[ProducedPartition]]]) -> Parts:
    if request.body.acks == 0:
        for name, produced in results:
            for result in produced:
                if result.error_code != 0:
                    code = ErrorCode(result.error_code).name
                    raise CloseConnection(f"produce with acks=0 to {name}-{result.partition} failed: {code}")
        return NO_ANSWER
    return (encode_produce_response(request.version, request.correlation_id, results),)


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
