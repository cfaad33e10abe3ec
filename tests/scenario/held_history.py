"""Held topics under a test: writing to them, finding their worker, and a check of what the two logs say in the end.

The check knows nothing of how releases are made. In the held topic, of each key, a version of a user's that is followed
by a record of the worker's was released; one that is followed by another of a user's was not. The target must have the
first once each, none of the others, and none before its time.
"""

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import PATIENCE_S, wait_until

HELD, TARGET = "orders.later", "orders"
RELEASED = "released-offset"
DUE_AT = "due-at"
"""In what is released at a time; a message that was committed has none."""


def create_held(servers: str, *, partitions: int = 1, replicas: int = 1, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"skep.held.target": TARGET, **(config or {})}
    topics = [
        NewTopic(TARGET, 2, replicas),
        NewTopic(HELD, partitions, replicas, config=config),
    ]
    for created in admin.create_topics(topics).values():
        created.result()


def worker_pid(broker_pid: int) -> int | None:
    """The worker of a broker, if it has one."""
    try:
        children = psutil.Process(broker_pid).children()
        return next((child.pid for child in children if "skep.worker" in child.cmdline()), None)
    except psutil.Error:
        return None


class Writer:
    """An idempotent producer that waits while brokers are away. ``left`` counts what is not acknowledged."""

    def __init__(self, servers: str, topic: str = HELD) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self.failures: list[KafkaError] = []

    def write(self, key: str, value: bytes | None, **headers: object) -> None:
        pairs: list[Any] = [(name.replace("_", "-"), str(text).encode()) for name, text in headers.items()]
        self._producer.produce(self._topic, value, key.encode(), headers=pairs, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failures.append(error)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0
        assert self.failures == []


class Reader:
    """Reads the committed records of a topic as they come."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": servers, **settings})
        self._partitions = [TopicPartition(topic, index, 0) for index in range(partitions)]
        self._consumer.assign(self._partitions)
        self._read_up_to = dict.fromkeys(range(partitions), -1)
        self.messages: list[Message] = []

    def read(self, seconds: float = 0.1) -> None:
        for message in self._consumer.consume(10_000, seconds):
            if (error := message.error()) is None:
                self.messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._read_up_to[message.partition()] = message.offset()

    def read_to_the_end(self) -> None:
        """Reads all that is committed by now. That no record comes for a while is no sign of it."""
        ends = {
            place.partition: self._consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1]
            for place in self._partitions
        }
        self.until(
            lambda _: all(self._read_up_to[partition] >= end for partition, end in ends.items()),
            lambda: f"the end is read: {self._read_up_to} of {ends}",
        )

    def close(self) -> None:
        self._consumer.close()

    def until(self, condition: Any, what: str | Callable[[], str]) -> None:
        def is_true() -> bool:
            self.read()
            return bool(condition(self.messages))

        def missing() -> str:
            return f"{what if isinstance(what, str) else what()}; {len(self.messages)} records were read"

        wait_until(is_true, missing)


def random_writes(writer: Writer, dice: random.Random, count: int, longest_ms: int, now_ms: int) -> None:
    """Schedules ``count`` messages at random times; some get another time or are recalled, perhaps too late."""
    for number in range(count):
        due = now_ms + dice.randrange(longest_ms)
        writer.write(f"key {number}", b"%d first" % number, deliver_at=due)
        if number % 10 == 3:
            writer.write(f"key {number}", b"%d second" % number, deliver_at=now_ms + dice.randrange(longest_ms))
        if number % 10 == 6:
            writer.write(f"key {number - 5}", None)


def is_decided(held: list[Message], keys: int) -> bool:
    """Whether nothing waits under any of so many keys."""
    newest = {message.key(): message for message in held}
    return len(newest) == keys and all(message.value() is None for message in newest.values())


def check_history(held: list[Message], target: list[Message]) -> list[int]:
    """Returns how late each record with a time was released, in milliseconds. Raises AssertionError.

    Commits of half messages must have values.
    """
    versions: dict[tuple[int, bytes], list[Message]] = defaultdict(list)
    for message in held:
        versions[message.partition(), message.key()].append(message)
    expected: Counter[bytes] = Counter()
    waiting = []
    for of_key in versions.values():
        for message, following in zip(of_key, [*of_key[1:], None], strict=True):
            if _is_workers(message):
                assert following is None or not _is_workers(following), f"{message.key()} was released twice"
            elif message.value() is not None:
                if following is None:
                    waiting.append(message.value())
                elif _is_workers(following):
                    assert dict(following.headers())[RELEASED] == b"%d" % message.offset()
                    expected[message.value()] += 1
    assert waiting == [], f"{len(waiting)} are still waiting"
    assert Counter(message.value() for message in target) == expected
    timed = [message for message in target if any(name == DUE_AT for name, _ in message.headers() or ())]
    late = [message.timestamp()[1] - int(dict(message.headers())[DUE_AT]) for message in timed]
    assert min(late, default=0) >= 0, "something was released before its time"
    return late


def _is_workers(message: Message) -> bool:
    return any(name == RELEASED for name, _ in message.headers() or ())


def print_lateness(late: list[int]) -> None:
    if len(late) > 1:
        cuts = statistics.quantiles(late, n=100)
        print(
            f"{len(late)} released; ms late: median {cuts[49]:.0f}, 90 % {cuts[89]:.0f}, 99 % {cuts[98]:.0f}, "
            f"most {max(late)}"
        )
