"""AddPartitionsToTxn (API 24), versions 0 to 3.

Behaviour
    The partitions become a part of the producer's transaction; the first ones begin it. All are added or none.

Refusals of all partitions, in order
    UNKNOWN_TOPIC_OR_PARTITION for those that do not exist, and then OPERATION_NOT_ATTEMPTED for the others;
    INVALID_REQUEST for an empty or too long transactional id; no coordinator here; INVALID_PRODUCER_ID_MAPPING;
    PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); CONCURRENT_TRANSACTIONS while the last transaction is
    being ended.

Left out
    Versions from 4 on, which brokers send to each other.
"""

from collections.abc import Awaitable, Callable

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.broker.fencing import fenced_code
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.wire.codec import Body

KNOWS_PRODUCER_FENCED = 2


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    wanted = frozenset(
        TopicPartition(topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions
    )
    topics = services.catalog.image.topics
    unknown = {
        partition
        for partition in wanted
        if (topic := topics.get(partition.topic)) is None or not 0 <= partition.partition < len(topic.partitions)
    }
    if unknown:
        return _answer(
            request,
            lambda partition: (
                ErrorCode.unknown_topic_or_partition if partition in unknown else ErrorCode.operation_not_attempted
            ),
        )
    producer = ProducerStamp(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    added = _answer(request, lambda _: ErrorCode.none)
    return services.transactions.add_partitions(body.v3_and_below_transactional_id, producer, wanted, added)


def _answer(request: Request, code_of: Callable[[TopicPartition], ErrorCode]) -> Body:
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": code_of(TopicPartition(topic.name, index))}
                    for index in topic.partitions
                ],
            }
            for topic in request.body.v3_and_below_topics
        ]
    }


def refuse(request: Request, code: ErrorCode) -> Body:
    told = fenced_code(request, code, KNOWS_PRODUCER_FENCED)
    return _answer(request, lambda _: told)
