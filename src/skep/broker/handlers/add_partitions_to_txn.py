"""AddPartitionsToTxn (API 24), versions 0 to 4.

Behaviour
    Adds the partitions to the producer's transaction; the first ones begin it. All are added or none.

    Version 4 is the one that brokers send to each other. It has several transactions, and says for each whether its
    partitions are to be added or only verified (``verify_only``, KIP-890). A partition that does not belong to the
    transaction then has INVALID_TXN_STATE. Partitions that are added by version 4 were written to with a request of
    transactions v2. Clients send version 3 at most.

Versions
    1 changes nothing here (quotas).
    2: PRODUCER_FENCED.
    3 is flexible.
    4: several transactions, ``verify_only``, and an error code for the whole request (KIP-890).

Refusals of all partitions, in order
    TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION for those that do not exist, and then OPERATION_NOT_ATTEMPTED
    for the others; INVALID_REQUEST for an empty or too long transactional id; no coordinator here;
    INVALID_PRODUCER_ID_MAPPING; PRODUCER_FENCED (INVALID_PRODUCER_EPOCH below version 2); CONCURRENT_TRANSACTIONS while
    the last transaction is being completed.

Left out
    Version 5, which adds TRANSACTION_ABORTABLE (KIP-890).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work, run_at_once
from skep.broker.fencing import fenced_code
from skep.broker.permissions import TOPIC, allowed
from skep.broker.request import Request
from skep.broker.services import Services
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.transaction import V2
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AddPartitionsToTxnRequest

HAS_PRODUCER_FENCED = 2
HAS_SEVERAL_TRANSACTIONS = 4
PARTITIONS_AT_ONCE = 100
"""Partitions checked in one slice."""

_CodeOf = Callable[[TopicPartition], ErrorCode]


def handle(services: Services, request: "Request[AddPartitionsToTxnRequest]") -> Body | Awaitable[Body]:
    if request.version >= HAS_SEVERAL_TRANSACTIONS:
        return _handle_several(services, request)
    body, topics = request.body, request.body.v3_and_below_topics
    if len(topics) + sum([len(topic.partitions) for topic in topics]) > PARTITIONS_AT_ONCE:
        return _handle_many(services, request)
    wanted, refused = run_at_once(_partitions(services, request, topics))
    if refused:
        return _response(request, _refusals(refused))
    added = _response(request, lambda _: ErrorCode.none)
    return services.transactions.add_partitions(body.v3_and_below_transactional_id, _producer(body), wanted, added)


async def _handle_many(services: Services, request: "Request[AddPartitionsToTxnRequest]") -> Body:
    body, topics = request.body, request.body.v3_and_below_topics
    try:
        code_of = await _added(services, request, body.v3_and_below_transactional_id, _producer(body), topics)
    except KafkaError as error:
        code_of = _always(fenced_code(request, error.code, HAS_PRODUCER_FENCED))
    return {"results_by_topic_v3_and_below": await services.slicer.finish(_results(topics, code_of))}


def _producer(body: "AddPartitionsToTxnRequest") -> ProducerStamp:
    return ProducerStamp(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)


async def _handle_several(services: Services, request: "Request[AddPartitionsToTxnRequest]") -> Body:
    return {
        "error_code": ErrorCode.none,
        "results_by_transaction": [
            await _one_of_several(services, request, wanted) for wanted in request.body.transactions
        ],
    }


async def _one_of_several(
    services: Services,
    request: "Request[AddPartitionsToTxnRequest]",
    wanted: "AddPartitionsToTxnRequest.Transaction",
) -> dict[str, Any]:
    producer = ProducerStamp(wanted.producer_id, wanted.producer_epoch)
    try:
        if wanted.verify_only:
            code_of = await _verified(services, request, wanted.transactional_id, producer, wanted.topics)
        else:
            code_of = await _added(services, request, wanted.transactional_id, producer, wanted.topics, V2)
    except KafkaError as error:
        code_of = _always(error.code)
    results = await services.slicer.finish(_results(wanted.topics, code_of))
    return {"transactional_id": wanted.transactional_id, "topic_results": results}


async def _added(
    services: Services,
    request: "Request[AddPartitionsToTxnRequest]",
    transactional_id: str,
    producer: ProducerStamp,
    topics: "Sequence[AddPartitionsToTxnRequest.Topic]",
    version: int = 0,
) -> _CodeOf:
    """Adds the partitions of ``topics``. Returns a function from a partition to its error code."""
    wanted, refused = await services.slicer.finish(_partitions(services, request, topics))
    if refused:
        return _refusals(refused)
    added = services.transactions.add_partitions(transactional_id, producer, wanted, None, version)
    if isinstance(added, Awaitable):
        await added
    return _always(ErrorCode.none)


async def _verified(
    services: Services,
    request: "Request[AddPartitionsToTxnRequest]",
    transactional_id: str,
    producer: ProducerStamp,
    topics: "Sequence[AddPartitionsToTxnRequest.Topic]",
) -> _CodeOf:
    """Verifies the partitions of ``topics``. Returns a function from a partition to its error code."""
    wanted, _ = await services.slicer.finish(_partitions(services, request, topics))
    verified = services.transactions.verify(transactional_id, producer, wanted)
    codes = await verified if isinstance(verified, Awaitable) else verified
    return codes.__getitem__


def _partitions(
    services: Services,
    request: "Request[AddPartitionsToTxnRequest]",
    topics: "Sequence[AddPartitionsToTxnRequest.Topic]",
) -> Work[tuple[frozenset[TopicPartition], dict[TopicPartition, ErrorCode]]]:
    """Returns all partitions, and those that do not exist or that the client may not write to, with their codes."""
    known = services.catalog.image.topics
    wanted: set[TopicPartition] = set()
    refused: dict[TopicPartition, ErrorCode] = {}
    is_of_client = request.version < HAS_SEVERAL_TRANSACTIONS
    for topic in topics:
        record = known.get(topic.name)
        count, code = 0 if record is None else len(record.partitions), ErrorCode.unknown_topic_or_partition
        if is_of_client and not allowed(request, TOPIC, topic.name):
            count, code = 0, ErrorCode.topic_authorization_failed
        for index in topic.partitions:
            partition = TopicPartition(topic.name, index)
            wanted.add(partition)
            if not 0 <= index < count:
                refused[partition] = code
            if not len(wanted) % PARTITIONS_AT_ONCE:
                yield
    return frozenset(wanted), refused


def _refusals(refused: Mapping[TopicPartition, ErrorCode]) -> _CodeOf:
    return lambda partition: refused.get(partition, ErrorCode.operation_not_attempted)


def _always(code: ErrorCode) -> _CodeOf:
    return lambda _: code


def _response(request: "Request[AddPartitionsToTxnRequest]", code_of: _CodeOf) -> Body:
    return {"results_by_topic_v3_and_below": run_at_once(_results(request.body.v3_and_below_topics, code_of))}


def _results(topics: "Sequence[AddPartitionsToTxnRequest.Topic]", code_of: _CodeOf) -> Work[list[dict[str, Any]]]:
    results = []
    for topic in topics:
        partitions: list[dict[str, Any]] = []
        for index in topic.partitions:
            code = code_of(TopicPartition(topic.name, index))
            partitions.append({"partition_index": index, "partition_error_code": code})
            if not len(partitions) % PARTITIONS_AT_ONCE:
                yield
        results.append({"name": topic.name, "results_by_partition": partitions})
    return results


def refuse(request: "Request[AddPartitionsToTxnRequest]", code: ErrorCode) -> Body:
    if request.version >= HAS_SEVERAL_TRANSACTIONS:
        return {"error_code": code, "results_by_transaction": []}
    told = fenced_code(request, code, HAS_PRODUCER_FENCED)

    def partition(index: int) -> dict[str, Any]:
        return {"partition_index": index, "partition_error_code": told}

    def topic(named: "AddPartitionsToTxnRequest.Topic") -> dict[str, Any]:
        return {"name": named.name, "results_by_partition": LazyArray(named.partitions, partition)}

    return {"results_by_topic_v3_and_below": LazyArray(request.body.v3_and_below_topics, topic)}
