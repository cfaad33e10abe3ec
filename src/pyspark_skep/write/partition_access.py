"""Single partitions as the driver's protocol needs them: whole batches, read from and written to the leader.

Every call is retried when the connection breaks, the broker restarts or the leader moves, until the cluster's
``timeout_s`` is over. So every call may be carried out twice. Produce may too, because its batches carry sequence
numbers.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient, Node
from skep.client.fetch.partition_fetch import fetch_partition
from skep.client.list_offsets import EARLIEST, LATEST, list_offsets
from skep.client.retry import RETRIABLE_FOR_CREATE, call_with_retries
from skep.client.topic_info import TopicInfo, describe_topics, find_leader, id_of
from skep.wire.apis import BEFORE_TRANSACTIONS_V2, METADATA, PRODUCE

_PRODUCE_TIMEOUT = datetime.timedelta(seconds=30)
_MAX_WAIT_MS = 100


class Fetched(NamedTuple):
    data: bytes
    high_watermark: int
    last_stable_offset: int
    aborted: Sequence[tuple[int, int]]
    """Producer id and first offset of each aborted transaction in the data; with ``committed``."""


class PartitionAccess:
    """Owns nothing: ``cluster`` is the caller's, and stays open."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster

    def topic(self, name: str) -> TopicInfo | None:
        """Returns None when a broker reports the topic missing. Some brokers may not know a new topic yet."""
        try:
            return call_with_retries(self.cluster, f"topic '{name}'", lambda: describe_topics(self.cluster, [name]))[
                name
            ]
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return None

    def topic_ids(self, names: Sequence[str]) -> dict[str, UUID]:
        """Returns the ids of those topics that exist."""
        try:
            found = list(
                call_with_retries(self.cluster, "topics", lambda: describe_topics(self.cluster, names)).values()
            )
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            # The error is of one topic. Which others are missing takes a request for each.
            found = [info for info in map(self.topic, names) if info is not None]
        return {info.name: info.topic_id for info in found}

    def ids_known(self, name: str) -> set[UUID]:
        """Returns the ids under which any broker knows a topic of this name. Every broker must respond."""

        def ask() -> set[UUID]:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            found = [
                topic
                for node in self.cluster.nodes()
                for topic in self.cluster.ask_node(node, METADATA, body).topics
                if topic.error_code is not ErrorCode.unknown_topic_or_partition
            ]
            return {id_of(topic) for topic in found}

        return call_with_retries(self.cluster, f"topic '{name}'", ask)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Creates the topic if it does not exist; waits for brokers that its replicas need.

        Returns when Metadata has it: only the broker that created it knows it at once.
        """

        def find() -> None:
            if self.topic(name) is None:
                raise KafkaError(ErrorCode.leader_not_available, f"topic '{name}' is not known yet")

        call_with_retries(
            self.cluster,
            f"creating topic '{name}'",
            lambda: create_topic(self.cluster, name, partitions, configs),
            retriable=RETRIABLE_FOR_CREATE,
        )
        call_with_retries(self.cluster, f"topic '{name}'", find)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the log start offset and the log end offset, of records that are committed or not."""
        return self.log_start_offset(topic, partition), self._offset(topic, partition, LATEST)

    def log_start_offset(self, topic: str, partition: int) -> int:
        return self._offset(topic, partition, EARLIEST)

    def last_stable_offset(self, topic: str, partition: int) -> int:
        return self._offset(topic, partition, LATEST, committed=True)

    def _offset(self, topic: str, partition: int, which: int, *, committed: bool = False) -> int:
        key = TopicPartition(topic, partition)

        def attempt() -> int:
            try:
                return list_offsets(self.cluster, {key: which}, committed=committed)[key] or 0
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition or not self.ids_known(topic):
                    raise
                # Replaced by a code that is retried: the broker that was asked has not received the new topic yet.
                raise KafkaError(
                    ErrorCode.leader_not_available, f"not every broker knows topic '{topic}' yet"
                ) from None

        return call_with_retries(self.cluster, f"ListOffsets of {key}", attempt)

    def fetch(self, topic: str, partition: int, offset: int, *, committed: bool, max_bytes: int) -> Fetched:
        """Returns at least one batch, if there is one. Raises OFFSET_OUT_OF_RANGE as KafkaError."""

        def fetch(leader: Node, topic_id: UUID) -> Any:
            return fetch_partition(
                self.cluster,
                leader,
                topic,
                topic_id,
                partition,
                offset,
                max_bytes=max_bytes,
                committed=committed,
                max_wait_ms=_MAX_WAIT_MS,
            )

        found = self._ask_leader(topic, partition, "Fetch", fetch)
        return Fetched(bytes(found.records), found.high_watermark, found.last_stable_offset, found.aborted)

    def produce(self, topic: str, partition: int, batch: bytes, transactional_id: str) -> int | None:
        """Returns the offset of the first record when all in-sync replicas have the batch. Returns None when an earlier
        attempt wrote the batch and the broker no longer knows its offset."""
        body = {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": _PRODUCE_TIMEOUT,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        }

        def produce(leader: Node, topic_id: UUID) -> Any:
            return (
                self.cluster.ask_node(leader, BEFORE_TRANSACTIONS_V2[PRODUCE], body).responses[0].partition_responses[0]
            )

        try:
            return int(self._ask_leader(topic, partition, "Produce", produce).base_offset)
        except KafkaError as error:
            # The response to the first attempt was lost, and later sequence numbers have been written since.
            if error.code is not ErrorCode.duplicate_sequence_number:
                raise
            return None

    def _ask_leader(self, topic: str, partition: int, what: str, ask: Callable[[Node, UUID], Any]) -> Any:
        """Returns the partition's result without an error code; raises KafkaError for a code that is not retriable."""

        def attempt() -> Any:
            topic_id, leader = find_leader(self.cluster, topic, partition)
            if leader is None:
                raise KafkaError(ErrorCode.leader_not_available, f"{topic}-{partition} has no leader")
            result = ask(leader, topic_id)
            code = result.error_code
            if code is ErrorCode.not_leader_or_follower:
                self.cluster.switch_metadata_broker()
            if code is ErrorCode.unknown_topic_or_partition:
                # Replaced by a code that is retried, because the leader may not know the topic yet. If the topic was
                # deleted, ``find_leader`` raises UNKNOWN_TOPIC_OR_PARTITION in the next attempt.
                raise KafkaError(
                    ErrorCode.leader_not_available, f"the leader of {topic}-{partition} does not know it yet"
                )
            if code is not ErrorCode.none:
                raise KafkaError(code, f"{what} of {topic}-{partition}: {code.name}")
            return result

        return call_with_retries(self.cluster, f"{what} of {topic}-{partition}", attempt)
