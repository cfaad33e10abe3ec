"""Deleting single offsets of a group: OffsetDelete, which the client library has no function for."""

from collections.abc import Sequence

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster
from skep.cli.failures import CommandError
from skep.cli.groups.offset_reset import partitions_in
from skep.cli.skep_client import asking, in_words
from skep.client.cluster_client import GROUP
from skep.wire.apis import OFFSET_DELETE


def forget_offsets(cluster: Cluster, group: str, topics: Sequence[str]) -> dict[TopicPartition, str | None]:
    """By partition why its offset is still there, or None when it is gone."""
    places = partitions_in(cluster, topics)
    by_topic: dict[str, list[dict[str, int]]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append({"partition_index": partition})
    body = {
        "group_id": group,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
    }
    with asking(cluster) as client:
        _, answer = client.ask_coordinator(GROUP, group, OFFSET_DELETE, body, lambda answer: answer.error_code)
    if answer.error_code is not ErrorCode.none:
        raise CommandError(f"group '{group}' keeps its offsets: {in_words(answer.error_code)}")
    return {
        TopicPartition(topic.name, row.partition_index): None
        if row.error_code is ErrorCode.none
        else in_words(row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }
