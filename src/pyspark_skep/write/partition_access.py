"""Partitions as the driver's protocol needs them: whole batches out and in, asked of the leader until it answers.

Every call is tried again when the connection breaks, the broker restarts or the leader moves, until the
cluster's ``timeout_s`` is over; so all of them must be harmless when done twice. Produce is, because its batches carry
sequences.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import create_topic
from skep.client.cluster_client import RETRIABLE, ClusterClient
from skep.client.errors import Unreachable
from skep.client.retry import Patience
from skep.client.topic_info import TopicInfo, describe_topics, id_of, place_of
from skep.wire.apis import FETCH, LIST_OFFSETS, METADATA, PRODUCE, Api

EARLIEST, LATEST = -2, -1
_RETRIABLE = RETRIABLE | {
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_not_available,
    # Of a topic that is made while some of the brokers that are to have it are down.
    ErrorCode.invalid_replication_factor,
}
_TIMEOUT = datetime.timedelta(seconds=30)
_MAX_WAIT = datetime.timedelta(milliseconds=100)

T = TypeVar("T")


_NOT_HEARD_YET = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
"""What the leader of a topic that was just made answers when another broker heard of it first."""


class Fetched(NamedTuple):
    data: bytes
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    """Producer id and first offset of each transaction that touches the data and was aborted; with ``committed``."""


class PartitionAccess:
    """Owns nothing: ``cluster`` is the caller's, and stays open."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster

    def topic(self, name: str) -> TopicInfo | None:
        """None when a broker says that there is none. One that has just been made may not be known to every broker."""
        try:
            return self._patiently(f"topic '{name}'", lambda: describe_topics(self.cluster, [name]))[name]
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return None

    def topic_ids(self, names: Sequence[str]) -> dict[str, UUID]:
        """Of those of the topics that are there."""
        try:
            found = list(self._patiently("topics", lambda: describe_topics(self.cluster, names)).values())
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            # Which one is missing can only be found out by asking for each.
            found = [info for info in map(self.topic, names) if info is not None]
        return {info.name: info.topic_id for info in found}

    def ids_known(self, name: str) -> set[UUID]:
        """The ids under which any broker knows a topic of this name. Every broker is asked, and has to answer."""

        def ask() -> set[UUID]:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            found = [
                topic
                for node in self.cluster.nodes()
                for topic in self.cluster.ask_node(node, METADATA, body).topics
                if topic.error_code is not ErrorCode.unknown_topic_or_partition
            ]
            return {id_of(topic) for topic in found}

        return self._patiently(f"topic '{name}'", ask)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Makes it if there is none; waits for brokers that its replicas need. Returns when those that we ask know it:
        only the one that made it does at once."""

        def find() -> None:
            if self.topic(name) is None:
                raise KafkaError(ErrorCode.leader_not_available, f"topic '{name}' is not known yet")

        self._patiently(f"making topic '{name}'", lambda: create_topic(self.cluster, name, partitions, configs))
        self._patiently(f"topic '{name}'", find)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is there and the one that comes next, whether committed or not."""
        return self.log_start_offset(topic, partition), self._offset(topic, partition, LATEST, 0)

    def log_start_offset(self, topic: str, partition: int) -> int:
        return self._offset(topic, partition, EARLIEST, 0)

    def last_stable_offset(self, topic: str, partition: int) -> int:
        return self._offset(topic, partition, LATEST, 1)

    def _offset(self, topic: str, partition: int, which: int, isolation_level: int) -> int:
        body = {
            "isolation_level": isolation_level,
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": which}]}],
        }
        return int(self._ask_leader(topic, partition, LIST_OFFSETS, lambda _: body, _listed).offset)

    def fetch(self, topic: str, partition: int, offset: int, *, committed: bool, max_bytes: int) -> Fetched:
        """At least one batch, if there is one. OFFSET_OUT_OF_RANGE as KafkaError."""

        def body(topic_id: Any) -> dict[str, Any]:
            wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
            return {
                "max_wait": _MAX_WAIT,
                "min_bytes": 1,
                "max_bytes": max_bytes,
                "isolation_level": 1 if committed else 0,
                "session_epoch": -1,
                "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [wanted]}],
                "forgotten_topics_data": [],
            }

        row = self._ask_leader(topic, partition, FETCH, body, _fetched)
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
        return Fetched(row.records or b"", row.high_watermark, row.last_stable_offset, aborted)

    def produce(self, topic: str, partition: int, batch: bytes, transactional_id: str) -> int | None:
        """Returns the offset of the first record when all in-sync replicas have the batch. None when the batch was
        written by an earlier try and its offset is not known any more."""
        body = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": _TIMEOUT,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        }
        try:
            return int(self._ask_leader(topic, partition, PRODUCE, lambda _: body, _produced).base_offset)
        except KafkaError as error:
            # The answer to the first try was lost, and others have written under later sequences since.
            if error.code is not ErrorCode.duplicate_sequence_number:
                raise
            return None

    def _ask_leader(
        self,
        topic: str,
        partition: int,
        api: Api,
        body_of: Callable[[Any], dict[str, Any]],
        row_of: Callable[[Any], Any],
    ) -> Any:
        """The one partition's row of the answer."""

        def ask() -> Any:
            topic_id, leader = place_of(self.cluster, topic, partition)
            if leader is None:
                raise KafkaError(ErrorCode.leader_not_available, f"{topic}-{partition} has no leader")
            row = row_of(self.cluster.ask_node(leader, api, body_of(topic_id)))
            if row.error_code is ErrorCode.not_leader_or_follower:
                self.cluster.look_elsewhere()
            if row.error_code in _NOT_HEARD_YET:
                # Metadata names it. Has the topic been deleted, the next look at Metadata says so.
                raise KafkaError(
                    ErrorCode.leader_not_available, f"the leader of {topic}-{partition} does not know it yet"
                )
            if row.error_code is not ErrorCode.none:
                raise KafkaError(row.error_code, f"{api.name} of {topic}-{partition}: {row.error_code.name}")
            return row

        return self._patiently(f"{api.name} of {topic}-{partition}", ask)

    def _patiently(self, what: str, ask: Callable[[], T]) -> T:
        patience = Patience(self.cluster, self.cluster.timeout_s, what)
        while True:
            try:
                return ask()
            except Unreachable as error:
                patience.wait(str(error))
            except KafkaError as error:
                if error.code not in _RETRIABLE:
                    raise
                patience.wait(str(error))


def _listed(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


def _fetched(answer: Any) -> Any:
    if getattr(answer, "error_code", ErrorCode.none) is not ErrorCode.none:
        return answer
    return answer.responses[0].partitions[0]


def _produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]
