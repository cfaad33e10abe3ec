"""Members of a group that note every commit they were told of.

Not with kafka-python: a poll that ends between its JoinGroup and its SyncGroup can lose the join, and the member is
then without partitions for good, whichever broker coordinates.
"""

from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Consumer, KafkaException

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


RIDERS: dict[str, Callable[[str, str], Rider]] = {"confluent": ConfluentRider}
