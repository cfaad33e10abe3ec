"""DeleteRecords (API 21), versions 0 to 2.

Behaviour
    The log start of each partition moves to the offset asked for; -1 means the high watermark. Segments that lie wholly
    below go; the answer's low watermark is the new log start. An offset below the log start changes nothing. The new
    log starts are on the disk, and known to all in-sync replicas, when the answer goes out: what was deleted does not
    come back after a crash, nor with another leader.

Refusals, per partition, in order
    unknown topic or partition; POLICY_VIOLATION for a topic that is compacted and nothing else; OFFSET_OUT_OF_RANGE
    beyond the high watermark; NOT_LEADER_OR_FOLLOWER; REQUEST_TIMED_OUT when a replica has not heard of it in time.
"""

import asyncio
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Work
from skep.broker.refusals import code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

HIGH_WATERMARK = -1
POLL_S = 0.02
_NO_WATERMARK = -1

_Result = tuple[str, dict[str, Any]]
"""The name of the topic, and what is said of one of its partitions."""


async def handle(services: Services, request: Request) -> Body:
    deadline = services.clock.monotonic() + request.body.timeout.total_seconds()
    # All of them first: the replicas then hear of them together.
    topics = await services.slicer.finish(_all_deleted(services, request))
    await services.replicas.write_checkpoints()
    waiting = [
        (topic["name"], result)
        for topic in topics
        for result in topic["partitions"]
        if result["error_code"] is ErrorCode.none
    ]
    while True:
        waiting = await services.slicer.finish(_still_waiting(services, waiting, deadline))
        if not waiting:
            break
        await asyncio.sleep(POLL_S)
    return {"topics": topics}


def _all_deleted(services: Services, request: Request) -> Work[list[dict[str, Any]]]:
    topics = []
    for topic in request.body.topics:
        partitions: list[dict[str, Any]] = []
        topics.append({"name": topic.name, "partitions": partitions})
        for wanted in topic.partitions:
            partitions.append(_deleted(services, topic.name, wanted))
            yield
    return topics


def _deleted(services: Services, topic: str, wanted: Any) -> dict[str, Any]:
    index = wanted.partition_index
    try:
        low_watermark = _delete(services, topic, index, wanted.offset)
    except (KafkaError, StorageError) as error:
        return {"partition_index": index, "low_watermark": _NO_WATERMARK, "error_code": code_of(error)}
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": ErrorCode.none}


def _still_waiting(services: Services, waiting: list[_Result], deadline: float) -> Work[list[_Result]]:
    """Those of the results for which a replica that could be elected has not deleted the records too. At the deadline,
    or when the partition is no longer led here, a result becomes an error."""
    still = []
    for topic, result in waiting:
        before = Offset(result["low_watermark"])
        try:
            if not services.replicas.partition(topic, result["partition_index"]).is_deleted_everywhere(before):
                if services.clock.monotonic() >= deadline:
                    raise KafkaError(ErrorCode.request_timed_out, "a replica has not heard of it")
                still.append((topic, result))
        except (KafkaError, StorageError) as error:
            result.update(low_watermark=_NO_WATERMARK, error_code=code_of(error))
        yield
    return still


def _delete(services: Services, topic: str, index: int, offset: int) -> int:
    partition = services.replicas.partition(topic, index)
    config = partition.log.config
    if config.is_compacted and not config.expires:
        raise KafkaError(ErrorCode.policy_violation, f"{topic} is compacted, its records are not deleted by offset")
    before = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= before <= partition.high_watermark:
        raise KafkaError(ErrorCode.offset_out_of_range, f"{offset} is not within 0 and {partition.high_watermark}")
    return services.replicas.delete_records_before(partition, Offset(before))


def refuse(request: Request, code: ErrorCode) -> Body:
    def partition(wanted: Any) -> dict[str, Any]:
        return {"partition_index": wanted.partition_index, "low_watermark": _NO_WATERMARK, "error_code": code}

    def topic(named: Any) -> dict[str, Any]:
        return {"name": named.name, "partitions": LazyArray(named.partitions, partition)}

    return {"topics": LazyArray(request.body.topics, topic)}
