"""Sending records with a producer, and detecting failed deliveries.

librdkafka reports failures only: a callback for each delivered record would cost more than sending it.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from skep.cli import output
from skep.cli.connection import CONNECT_TIMEOUT_S, Cluster, unknown_topic
from skep.cli.failures import CommandError, UsageError, reason
from skep.cli.partition_selection import unknown_partition
from skep.cli.records.line_format import OutgoingRecord

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

ANY_PARTITION = -1
CREATION_TIMEOUT_S = 3.0
"""How long an automatically created topic may take to get its leaders."""
POLL_INTERVAL_S = 0.1
"""How often failures are polled for while records are sent; polling after each record would double its cost."""
_BEING_CREATED = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)


class Sender:
    """Owns a producer for one topic.

    ``sent`` counts the records given to the producer. Whether all of them were delivered is known only after
    ``flush``, which the end of the ``with`` block calls.
    """

    def __init__(
        self, cluster: Cluster, topic: str, settings: Mapping[str, Any], partition: int = ANY_PARTITION
    ) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self._topic = topic
        self._partition = partition
        self._failure: KafkaError | None = None
        before = cluster.metadata().topics
        try:
            self._producer = Producer(
                cluster.config({"message.timeout.ms": 30_000, **settings})
                | {"delivery.report.only.error": True, "on_delivery": self._delivery_ended}
            )
        except KafkaException as error:
            raise UsageError(reason(error)) from None
        found = self._existing_topic(before)
        if partition != ANY_PARTITION and partition not in found.partitions:
            raise unknown_partition(topic, partition, found.partitions)
        self._started = self._next_poll = time.monotonic()

    def _existing_topic(self, before: "Mapping[str, TopicMetadata]") -> "TopicMetadata":
        """Returns the topic; the request creates it if the cluster is configured to.

        Without this check librdkafka would wait 30 s with the first record before it gives up on a missing topic.
        """
        if self._topic in before:
            return before[self._topic]
        deadline = time.monotonic() + CREATION_TIMEOUT_S
        while True:
            topic: TopicMetadata = self._producer.list_topics(self._topic, timeout=CONNECT_TIMEOUT_S).topics[
                self._topic
            ]
            if topic.error is None and topic.partitions:
                partitions = output.count(len(topic.partitions), "partition")
                output.note(f"Topic {self._topic} did not exist; the cluster created it with {partitions}.")
                return topic
            if topic.error is not None and topic.error.code() not in _BEING_CREATED:
                raise CommandError(f"topic '{self._topic}': {reason(topic.error)}")
            if time.monotonic() > deadline:
                raise unknown_topic(self._topic, before)
            self._producer.poll(0.1)

    def send(self, record: OutgoingRecord) -> None:
        key, value, headers = record
        while True:
            try:
                if headers:
                    self._producer.produce(self._topic, value, key, self._partition, headers=headers)
                else:
                    self._producer.produce(self._topic, value, key, self._partition)
                break
            except BufferError:
                # librdkafka's queue is full: wait until some records are delivered. The wait is short because a
                # delivery does not end it early, only a failure does.
                self._producer.poll(0.005)
                self._raise_failure()
            except KafkaException as error:
                raise CommandError(f"cannot send record {self.sent + 1}: {reason(error)}") from None
        self.sent += 1
        self.sent_bytes += len(value or b"") + len(key or b"")
        if (now := time.monotonic()) >= self._next_poll:
            self._next_poll = now + POLL_INTERVAL_S
            self._producer.poll(0)
            self._raise_failure()

    def flush(self) -> None:
        """Waits until every record is delivered or has failed. Raises CommandError for the first failure."""
        self._producer.flush()
        self._raise_failure()

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Also after an error: records that the producer holds would be lost with it.
        self.flush()

    def _delivery_ended(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise CommandError(f"cannot deliver a record to topic '{self._topic}': {reason(self._failure)}")
