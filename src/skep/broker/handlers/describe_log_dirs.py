"""DescribeLogDirs (API 35), versions 1 to 5.

Behaviour
    The data directory with the size of each partition asked for (all of them for null topics) that has a replica here,
    and of the disk it is on. Partitions that were never written to have no directory yet and count as empty.
    ``offset_lag`` is how many committed offsets a follower does not have yet.
"""

from collections.abc import Awaitable, Iterable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Work
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body


def handle(services: Services, request: Request) -> Body | Awaitable[Body]:
    return services.slicer.run(_described(services, request))


def _described(services: Services, request: Request) -> Work[Body]:
    replicas = services.replicas
    result: dict[str, Any] = {"log_dir": replicas.data_dir, "topics": []}
    try:
        sizes: dict[str, list[dict[str, Any]]] = {}
        for topic, index in _asked_for(services, request):
            yield
            try:
                # A log that was not used yet is opened for this.
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


def _asked_for(services: Services, request: Request) -> Iterable[TopicPartition]:
    """Each once, however often it is named."""
    if request.body.topics is None:
        return (
            TopicPartition(topic.name, index)
            for topic in services.catalog.image.topics.values()
            for index in range(len(topic.partitions))
        )
    named = (TopicPartition(topic.topic, index) for topic in request.body.topics for index in topic.partitions)
    return dict.fromkeys(named)


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "results": []}
