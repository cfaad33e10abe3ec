"""DescribeLogDirs (API 35), versions 1 to 5.

Behaviour
    The data directory with the size of each partition asked for (all of them for null topics) that has a replica here,
    and of the disk it is on. Partitions that were never written to have no directory yet and count as empty.
    ``offset_lag`` is how many committed offsets a follower does not have yet.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.broker.request import Request
from skep.broker.services import Services
from skep.wire.codec import Body

PARTITIONS_PER_STEP = 50


async def handle(services: Services, request: Request) -> Body:
    replicas = services.replicas
    result: dict[str, Any] = {"log_dir": replicas.data_dir, "topics": []}
    try:
        sizes: dict[str, list[dict[str, Any]]] = {}
        for count, (topic, index) in enumerate(_asked_for(services, request)):
            if count % PARTITIONS_PER_STEP == 0:
                # A log that was not used yet is opened for this; ten thousand of them at once took three seconds.
                await asyncio.sleep(0)
            try:
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
    if request.body.topics is None:
        return [
            TopicPartition(topic.name, index)
            for topic in services.catalog.image.topics.values()
            for index in range(len(topic.partitions))
        ]
    return [TopicPartition(topic.topic, index) for topic in request.body.topics for index in topic.partitions]


def refuse(request: Request, code: ErrorCode) -> Body:
    return {"error_code": code, "results": []}
