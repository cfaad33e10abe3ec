"""Members of a group that note every commit they were told of, one with each client."""

from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer
from kafka.errors import KafkaError as KafkaPythonError

TOPIC = "orders"


class Rider(Protocol):
    """A member that reads everything and commits what it has read."""

    def read_and_commit(self) -> dict[int, int]:
        """What the coordinator has just said is committed, by partition; nothing when it said so of nothing."""
        ...

    def close(self) -> None: ...


class ConfluentRider:
    def __init__(self, servers: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC])

    def read_and_commit(self) -> dict[int, int]:
        messages = [message for message in self._consumer.consume(100, timeout=0.1) if message.error() is None]
        if not messages:
            return {}
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return {}  # not told: it may be committed or not
        return {offset.partition: offset.offset for offset in committed if offset.error is None and offset.offset >= 0}

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonRider:
    def __init__(self, servers: str, group: str) -> None:
        self._consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=servers.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            request_timeout_ms=10_000,
            metadata_max_age_ms=1_000,
        )

    def read_and_commit(self) -> dict[int, int]:
        if not self._consumer.poll(timeout_ms=100):
            return {}
        positions = {one.partition: self._consumer.position(one) for one in self._consumer.assignment()}
        try:
            self._consumer.commit()
        except KafkaPythonError:
            return {}
        return positions

    def close(self) -> None:
        self._consumer.close()


RIDERS: dict[str, Callable[[str, str], Rider]] = {"confluent": ConfluentRider, "kafka-python": KafkaPythonRider}
