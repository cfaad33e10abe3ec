"""AddPartitionsToTxn (API 24), versions 0 to 4.

Behaviour
    The partitions become a part of the producer's transaction; the first ones begin it. All are added or none.

    Version 4 is what brokers send to each other: several transactions, of each whether its partitions are to be added
    or only looked for (``verify_only``, KIP-890). A partition that is no part of the transaction is INVALID_TXN_STATE
    then. Clients send version 3 at most.

Refusals of all partitions, in order
    UNKNOWN_TOPIC_OR_PARTITION for those that do not exist, and then OPERATION_NOT_ATTEMPTED for the others;
    INVALID_REQUEST for an empty or too long transactional id; no coordinator here; INVALID_PRODUCER_ID_MAPPING;
    PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); CONCURRENT_TRANSACTIONS while the last transaction is
    being ended.

Left out
    Version 5, which is that of transactions v2 (KIP-890).
"""

from collections.abc import Awaitable, Callable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

KNOWS_PRODUCER_FENCED = 2
HAS_SEVERAL_TRANSACTIONS = 4

_CodeOf = Callable[[TopicPartition], ErrorCode]


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    if request.version >= HAS_SEVERAL_TRANSACTIONS:
        return _handle_several(services, request)
    body = request.body
    wanted = _partitions(body.v3_and_below_topics)
    if unknown := _unknown(services, wanted):
        return _answer(request, lambda partition: _refusal_of_unknown(partition, unknown))
    producer = ProducerStamp(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    added = _answer(request, lambda _: ErrorCode.none)
    return services.transactions.add_partitions(body.v3_and_below_transactional_id, producer, wanted, added)


async def _handle_several(services: Services, request: Request) -> Body:
    return {
        "error_code": ErrorCode.none,
        "results_by_transaction": [await _one_of_several(services, wanted) for wanted in request.body.transactions],
    }


async def _one_of_several(services: Services, wanted: Any) -> dict[str, Any]:
    partitions = _partitions(wanted.topics)
    producer = ProducerStamp(wanted.producer_id, wanted.producer_epoch)
    try:
        if wanted.verify_only:
            verified = services.transactions.verify(wanted.transactional_id, producer, partitions)
            codes = await verified if isinstance(verified, Awaitable) else verified
            return _result(wanted, codes.__getitem__)
        if unknown := _unknown(services, partitions):
            return _result(wanted, lambda partition: _refusal_of_unknown(partition, unknown))
        added = services.transactions.add_partitions(wanted.transactional_id, producer, partitions, None)
        if isinstance(added, Awaitable):
            await added
    except KafkaError as error:
        code = error.code
        return _result(wanted, lambda _: code)
    return _result(wanted, lambda _: ErrorCode.none)


def _partitions(topics: Any) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _unknown(services: Services, wanted: frozenset[TopicPartition]) -> set[TopicPartition]:
    topics = services.catalog.image.topics
    return {
        partition
        for partition in wanted
        if (topic := topics.get(partition.topic)) is None or not 0 <= partition.partition < len(topic.partitions)
    }


def _refusal_of_unknown(partition: TopicPartition, unknown: set[TopicPartition]) -> ErrorCode:
    return ErrorCode.unknown_topic_or_partition if partition in unknown else ErrorCode.operation_not_attempted


def _answer(request: Request, code_of: _CodeOf) -> Body:
    return {"results_by_topic_v3_and_below": _topics(request.body.v3_and_below_topics, code_of)}


def _result(wanted: Any, code_of: _CodeOf) -> dict[str, Any]:
    return {"transactional_id": wanted.transactional_id, "topic_results": _topics(wanted.topics, code_of)}


def _topics(topics: Any, code_of: _CodeOf) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": code_of(TopicPartition(topic.name, index))}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


def refuse(request: Request, code: ErrorCode) -> Body:
    if request.version >= HAS_SEVERAL_TRANSACTIONS:
        return {"error_code": code, "results_by_transaction": []}
    told = fenced_code(request, code, KNOWS_PRODUCER_FENCED)
    return _answer(request, lambda _: told)
