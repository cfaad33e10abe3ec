"""ListOffsets with the AdminClient: the earliest and latest offsets of partitions, and the offset of a timestamp."""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it exports without saying so

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster

_SPEC: Any = OffsetSpec  # its constructors have no type annotations
PAUSE_S = 0.1
_LEADER_IS_CHANGING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)


def earliest_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return _list_offsets(cluster, places, _SPEC.earliest())


def latest_offsets(
    cluster: Cluster, places: Iterable[TopicPartition], *, committed: bool = False
) -> dict[TopicPartition, int]:
    """Returns the log end offset of each partition: the offset of the next record.

    With ``committed`` it is the last stable offset: the offset of the first record of an open transaction.
    """
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    return _list_offsets(cluster, places, _SPEC.latest(), isolation)


def offsets_at_time(cluster: Cluster, places: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """Returns the offset of the first record at or after ``timestamp``; -1 for a partition without one."""
    return _list_offsets(cluster, places, _SPEC.for_timestamp(timestamp))


def with_leader(cluster: Cluster, places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions that exist and have a leader. One without a leader would delay the response for all."""
    topics = cluster.metadata().topics
    led = {(name, p.id) for name, topic in topics.items() for p in topic.partitions.values() if p.leader >= 0}
    return [place for place in places if place in led]


def _list_offsets(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    spec: Any,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Retries partitions whose leader is changing, which the library does not do for this request."""
    left = {ClientPartition(topic, partition): spec for topic, partition in places}
    found = {}
    deadline = time.monotonic() + cluster.request_timeout_s
    while left:
        futures = cluster.admin.list_offsets(left, isolation_level=isolation, request_timeout=cluster.request_timeout_s)
        left = {}
        for at, future in futures.items():
            try:
                found[TopicPartition(at.topic, at.partition)] = future.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _LEADER_IS_CHANGING or time.monotonic() > deadline:
                    raise
                left[at] = spec
        if left:
            time.sleep(PAUSE_S)
    return found
