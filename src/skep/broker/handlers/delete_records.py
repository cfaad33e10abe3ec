"""DeleteRecords (API 21), versions 0 to 2.

Behaviour
    The log start offset of each partition moves to the given offset; -1 means the high watermark. Segments below it are
    deleted. The low watermark in the response is the new log start offset. An offset below the log start changes
    nothing. When the response is sent, the new log start offsets are on the disk and all in-sync replicas have them:
    deleted records do not come back after a crash or with another leader.

Versions
    1 changes nothing here (quotas).
    2 is flexible.

Refusals, per partition, in order
    Unknown topic or partition; INVALID_TOPIC_EXCEPTION: ``__share_group_state``; POLICY_VIOLATION: the topic's cleanup
    policy is only ``compact``; OFFSET_OUT_OF_RANGE: beyond the high watermark; NOT_LEADER_OR_FOLLOWER;
    REQUEST_TIMED_OUT: a replica does not have the new log start offset in time.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, allowed
from skep.broker.refusals import code_of
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body
from skep.wire.lazy_array import LazyArray

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DeleteRecordsRequest

HIGH_WATERMARK = -1
POLL_S = 0.02
_NO_WATERMARK = -1

_Result = tuple[str, dict[str, Any]]
"""The name of the topic, and the row of one of its partitions in the response."""


async def handle(services: Services, request: "Request[DeleteRecordsRequest]") -> Body:
    deadline = services.clock.monotonic() + request.body.timeout.total_seconds()
    # All partitions first, so that the replicas learn of them together.
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


def _all_deleted(services: Services, request: "Request[DeleteRecordsRequest]") -> Work[list[dict[str, Any]]]:
    topics = []
    for topic in request.body.topics:
        partitions: list[dict[str, Any]] = []
        topics.append({"name": topic.name, "partitions": partitions})
        is_allowed = allowed(request, TOPIC, topic.name)
        for wanted in topic.partitions:
            if is_allowed:
                partitions.append(_deleted(services, topic.name, wanted))
            else:
                partitions.append(_refused(wanted.partition_index, ErrorCode.topic_authorization_failed))
            yield
    return topics


def _deleted(services: Services, topic: str, wanted: "DeleteRecordsRequest.Partition") -> dict[str, Any]:
    index = wanted.partition_index
    try:
        low_watermark = _delete(services, topic, index, wanted.offset)
    except (KafkaError, StorageError) as error:
        return _refused(index, code_of(error))
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": ErrorCode.none}


def _refused(index: int, code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": index, "low_watermark": _NO_WATERMARK, "error_code": code}


def _still_waiting(services: Services, waiting: list[_Result], deadline: float) -> Work[list[_Result]]:
    """Returns the results for which a replica that could be elected has not deleted the records yet.

    At the deadline, or when the partition is no longer led here, a result becomes an error.
    """
    still = []
    for topic, result in waiting:
        before = Offset(result["low_watermark"])
        try:
            if not services.replicas.partition(topic, result["partition_index"]).is_deleted_everywhere(before):
                if services.clock.monotonic() >= deadline:
                    raise KafkaError(ErrorCode.request_timed_out, "a replica did not delete the records in time")
                still.append((topic, result))
        except (KafkaError, StorageError) as error:
            result.update(low_watermark=_NO_WATERMARK, error_code=code_of(error))
        yield
    return still


def _delete(services: Services, topic: str, index: int, offset: int) -> int:
    partition = services.replicas.partition(topic, index)
    config = partition.log.config
    if topic == SHARE_GROUP_STATE:
        raise KafkaError(
            ErrorCode.invalid_topic_exception, f"{topic} is an internal topic; its coordinator deletes its records"
        )
    if config.is_compacted and not config.expires:
        raise KafkaError(
            ErrorCode.policy_violation,
            f"cleanup.policy of {topic} is compact; records are deleted by offset only with the policy delete",
        )
    before = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= before <= partition.high_watermark:
        raise KafkaError(
            ErrorCode.offset_out_of_range,
            f"offset {offset} is not between 0 and the high watermark {partition.high_watermark}",
        )
    return services.replicas.delete_records_before(partition, Offset(before))


def refuse(request: "Request[DeleteRecordsRequest]", code: ErrorCode) -> Body:
    def partition(wanted: "DeleteRecordsRequest.Partition") -> dict[str, Any]:
        return _refused(wanted.partition_index, code)

    def topic(named: "DeleteRecordsRequest.Topic") -> dict[str, Any]:
        return {"name": named.name, "partitions": LazyArray(named.partitions, partition)}

    return {"topics": LazyArray(request.body.topics, topic)}
