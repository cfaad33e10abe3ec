"""AlterReplicaLogDirs (API 34), versions 1 and 2.

Behaviour
    Kafka moves replicas between the data directories of a broker. A broker of Skep has one, so nothing ever moves: a
    replica that is to be moved to the directory where it is has been moved. A partition that is named several times has
    the result of the last.

Versions
    1 is the first served.
    2 is flexible.

Refusals, per partition, in order
    LOG_DIR_NOT_FOUND: the directory is not the broker's own, whose path DescribeLogDirs returns;
    UNKNOWN_TOPIC_OR_PARTITION; REPLICA_NOT_AVAILABLE: this broker has no replica of the partition.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import AlterReplicaLogDirsRequest


def handle(services: Services, request: "Request[AlterReplicaLogDirsRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_results(services, request))


def _results(services: Services, request: "Request[AlterReplicaLogDirsRequest]") -> Work[Body]:
    codes: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.body.dirs:
        is_ours = directory.path == services.replicas.data_dir
        for topic in directory.topics:
            of_topic = codes.setdefault(topic.name, {})
            for index in topic.partitions:
                of_topic[index] = _code(services, topic.name, index) if is_ours else ErrorCode.log_dir_not_found
                yield
    return {"results": [_result(topic, of_topic) for topic, of_topic in codes.items()]}


def _code(services: Services, topic: str, index: int) -> ErrorCode:
    record = services.catalog.image.topics.get(topic)
    if record is None or not 0 <= index < len(record.partitions):
        return ErrorCode.unknown_topic_or_partition
    if services.node.id not in record.partitions[index].replicas:
        return ErrorCode.replica_not_available
    return ErrorCode.none


def _result(topic: str, codes: dict[int, ErrorCode]) -> dict[str, Any]:
    return {
        "topic_name": topic,
        "partitions": [{"partition_index": index, "error_code": code} for index, code in codes.items()],
    }


def refuse(request: "Request[AlterReplicaLogDirsRequest]", code: ErrorCode) -> Body:
    return {
        "results": [
            _result(topic.name, dict.fromkeys(topic.partitions, code))
            for directory in request.body.dirs
            for topic in directory.topics
        ]
    }
