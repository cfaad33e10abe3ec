"""Where partitions begin, end, and what offset a moment falls on: ListOffsets through the AdminClient."""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it exports without saying so

from skep.base.ids import TopicPartition
from skep.cli.connection import Cluster

_SPEC: Any = OffsetSpec  # the library gives its constructors no types
PAUSE_S = 0.1
_LEADER_CHANGES = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)


def earliest_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return _list_offsets(cluster, places, _SPEC.earliest())


def latest_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset that the next record will get."""
    return _list_offsets(cluster, places, _SPEC.latest())


def offsets_at_time(cluster: Cluster, places: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    """The first offset at or after ``timestamp``; -1 where there is none."""
    return _list_offsets(cluster, places, _SPEC.for_timestamp(timestamp))


def with_leader(cluster: Cluster, places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of ``places`` that are there and can be asked. One without a leader would hold up all the others."""
    topics = cluster.metadata().topics
    led = {(name, p.id) for name, topic in topics.items() for p in topic.partitions.values() if p.leader >= 0}
    return [place for place in places if place in led]


def _list_offsets(cluster: Cluster, places: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
    """Asked again, for a while, of partitions whose leader is just changing: the library does not by itself."""
    left = {ClientPartition(topic, partition): spec for topic, partition in places}
    found = {}
    deadline = time.monotonic() + cluster.request_timeout_s
    while left:
        answers = cluster.admin.list_offsets(left, request_timeout=cluster.request_timeout_s)
        left = {}
        for at, answer in answers.items():
            try:
                found[TopicPartition(at.topic, at.partition)] = answer.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _LEADER_CHANGES or time.monotonic() > deadline:
                    raise
                left[at] = spec
        if left:
            time.sleep(PAUSE_S)
    return found
