"""ListPartitionReassignments (API 46), version 0.

Behaviour
    Returns the partitions that are being moved, of the given topics and partitions or, with null, of all: their current
    replicas, and which of these are being added and removed. Partitions that are not being moved or do not exist are
    left out.

Versions
    0 is the only one.

Refusals
    None.

Left out
    ``timeout`` is read and ignored: the response is this broker's image of the metadata.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.model import TopicRecord
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ListPartitionReassignmentsRequest


def handle(services: Services, request: "Request[ListPartitionReassignmentsRequest]") -> Body:
    known = services.catalog.image.topics
    asked: list[tuple[TopicRecord, Sequence[int]]]
    if request.body.topics is None:
        asked = [(topic, range(len(topic.partitions))) for topic in known.values()]
    else:
        asked = [(known[one.name], one.partition_indexes) for one in request.body.topics if one.name in known]
    topics = [
        {"name": topic.name, "partitions": moving} for topic, indexes in asked if (moving := _moving(topic, indexes))
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics}


def _moving(topic: TopicRecord, indexes: Iterable[int]) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": index,
            "replicas": partition.replicas,
            "adding_replicas": partition.adding,
            "removing_replicas": partition.removing,
        }
        for index in indexes
        if 0 <= index < len(topic.partitions) and (partition := topic.partitions[index]).is_reassigning
    ]


def refuse(request: "Request[ListPartitionReassignmentsRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "error_message": None, "topics": []}
