"""DescribeLogDirs (API 35), versions 1 to 5.

Behaviour
    Returns the data directory, the size of its disk, and the size of each named partition (null topics: of all
    partitions) with a replica on this broker. A partition that was never written to has no directory and is listed as
    empty. ``offset_lag`` is the number of committed offsets that a follower does not have yet.

Versions
    1 is the first served.
    2 is flexible.
    3: an error code for the whole request.
    4: size of the disk and its free space (KIP-827).
    5: whether the directory is cordoned (KIP-1066); it never is.

Refusals
    KAFKA_STORAGE_ERROR for the directory when a log or the disk cannot be read. A partition without a replica here is
    left out.
"""

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeLogDirsRequest


def handle(services: Services, request: "Request[DescribeLogDirsRequest]") -> Body | Awaitable[Body]:
    return services.slicer.run(_described(services, request))


def _described(services: Services, request: "Request[DescribeLogDirsRequest]") -> Work[Body]:
    replicas = services.replicas
    result: dict[str, Any] = {"log_dir": replicas.data_dir, "topics": []}
    try:
        sizes: dict[str, list[dict[str, Any]]] = {}
        for topic, index in _asked_for(services, request):
            yield
            try:
                # Opens the log if it was not used yet.
                partition = replicas.replica(topic, index)
            except KafkaError:
                continue
            sizes.setdefault(topic, []).append(
                {"partition_index": index, "partition_size": partition.log.size, "offset_lag": partition.lag}
            )
        result["total_bytes"], result["usable_bytes"] = replicas.disk_bytes()
        result["topics"] = [{"name": topic, "partitions": partitions} for topic, partitions in sizes.items()]
    except StorageError:
        result["error_code"] = ErrorCode.kafka_storage_error
    return {"results": [result]}


def _asked_for(services: Services, request: "Request[DescribeLogDirsRequest]") -> Iterable[TopicPartition]:
    """Returns each partition once, however often it is named."""
    if request.body.topics is None:
        return (
            TopicPartition(topic.name, index)
            for topic in services.catalog.image.topics.values()
            for index in range(len(topic.partitions))
        )
    named = (TopicPartition(topic.topic, index) for topic in request.body.topics for index in topic.partitions)
    return dict.fromkeys(named)


def refuse(request: "Request[DescribeLogDirsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "results": []}
