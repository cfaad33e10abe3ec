"""Sending records through a producer, and noticing that one was refused.

librdkafka is told to report failures only: a callback per delivered record would take more time than the record.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from skep.cli import output
from skep.cli.connection import ANSWER_WITHIN_S, Cluster, unknown_topic
from skep.cli.failures import CommandError, UsageError, reason
from skep.cli.records.line_format import OutgoingRecord

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

ANY_PARTITION = -1
CREATED_WITHIN_S = 3.0
"""How long the leaders of a topic that the cluster creates by itself may take to be there."""
POLL_EVERY_S = 0.1
"""How long a refused record may go unnoticed while others are sent; asking after every one would cost as much again."""
_NOT_YET = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)


class Sender:
    """Owns a producer for one topic.

    Between calls ``sent`` counts the records that it took. What was delivered is known after ``flush`` only, which
    leaving the sender's ``with`` does.
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
                | {"delivery.report.only.error": True, "on_delivery": self._ended}
            )
        except KafkaException as error:
            raise UsageError(reason(error)) from None
        found = self._existing_topic(before)
        if partition != ANY_PARTITION and partition not in found.partitions:
            raise CommandError(f"topic '{topic}' has no partition {partition}, its last is {len(found.partitions) - 1}")
        self._started = self._next_poll = time.monotonic()

    def _existing_topic(self, before: "Mapping[str, TopicMetadata]") -> "TopicMetadata":
        """The topic, created by the cluster if that is how it is set. Without this check the first record would wait
        30 s before librdkafka gave up on a topic that is not there."""
        if self._topic in before:
            return before[self._topic]
        give_up = time.monotonic() + CREATED_WITHIN_S
        while True:
            topic: TopicMetadata = self._producer.list_topics(self._topic, timeout=ANSWER_WITHIN_S).topics[self._topic]
            if topic.error is None and topic.partitions:
                partitions = output.count(len(topic.partitions), "partition")
                output.note(f"Topic {self._topic} was not there; the cluster created it with {partitions}.")
                return topic
            if topic.error is not None and topic.error.code() not in _NOT_YET:
                raise CommandError(f"topic '{self._topic}': {reason(topic.error)}")
            if time.monotonic() > give_up:
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
                # librdkafka holds as many records as it may: wait until some of them are delivered. Shortly, because
                # only a failure would end the wait early.
                self._producer.poll(0.005)
                self._raise_failure()
            except KafkaException as error:
                raise CommandError(f"record {self.sent + 1} is not sent: {reason(error)}") from None
        self.sent += 1
        self.sent_bytes += len(value or b"") + len(key or b"")
        if (now := time.monotonic()) >= self._next_poll:
            self._next_poll = now + POLL_EVERY_S
            self._producer.poll(0)
            self._raise_failure()

    def flush(self) -> None:
        """Wait until everything sent is delivered or has failed."""
        self._producer.flush()
        self._raise_failure()

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Also when something failed: what the producer has taken and not sent would be lost with it.
        self.flush()

    def _ended(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise CommandError(f"a record for topic '{self._topic}' is not delivered: {reason(self._failure)}")
