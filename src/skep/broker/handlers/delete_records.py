"""DeleteRecords (API 21), versions 0 to 2.

Behaviour
    The log start of each partition moves to the offset asked for; -1 means the high watermark. Segments that lie wholly
    below go; the answer's low watermark is the new log start. An offset below the log start changes nothing. The new
    log starts are on the disk when the answer goes out: what was deleted does not come back after a crash.

Refusals, per partition, in order
    unknown topic or partition; POLICY_VIOLATION for a topic that is compacted and nothing else; OFFSET_OUT_OF_RANGE
    beyond the high watermark.
"""

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import Offset
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

HIGH_WATERMARK = -1
_NO_WATERMARK = -1


async def handle(services: Services, request: Request) -> Body:
    topics = []
    for topic in request.body.topics:
        partitions = []
        for wanted in topic.partitions:
            low_watermark, code = _NO_WATERMARK, ErrorCode.none
            try:
                low_watermark = _delete(services, topic.name, wanted.partition_index, wanted.offset)
            except KafkaError as error:
                code = error.code
            except StorageError:
                code = ErrorCode.kafka_storage_error
            partitions.append(
                {"partition_index": wanted.partition_index, "low_watermark": low_watermark, "error_code": code}
            )
        topics.append({"name": topic.name, "partitions": partitions})
    await services.replicas.write_checkpoints()
    return {"topics": topics}


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
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": wanted.partition_index, "low_watermark": _NO_WATERMARK, "error_code": code}
                    for wanted in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
