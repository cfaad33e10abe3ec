"""Clients of a fault run: idempotent producers that want every replica in sync, readers that read along, and the end.

confluent-kafka, as applications use it. A record is ``producer:number`` and padding, so that batches have some size.
"""

import random
import threading
import time
from collections.abc import Callable, Container, Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.cluster.history import History, identity
from tests.waiting import wait_until

TOPIC = "orders"
SYNCED_TOPIC = "audit"
"""Synced before each acknowledgement."""
PADDING = b"." * 90
MOST_UNDER_WAY = 2_000
PRODUCERS = (1, 2)
ONE_AT_A_TIME = (1,)
"""Producers with one request under way; the others have librdkafka's five."""
PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    # A record is given up only after all faults are over: so nearly every result is known.
    "message.timeout.ms": 900_000,
    "request.timeout.ms": 5_000,
    "socket.timeout.ms": 6_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
READER = {
    "group.id": "readers-of-a-fault-run",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 200,
    "socket.timeout.ms": 6_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
ELECTING = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
"""While a partition has a new leader, and not all brokers and clients know of it."""
_NEVER_SENT = {KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE}
_LOSS = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}


class Clients:
    """Owns the threads of the producers and of the readers. ``finish`` ends them, and leaves nothing under way."""

    def __init__(
        self, bootstrap_servers: str, topic: str, history: History, partitions: int, *, rate: float, seed: int
    ) -> None:
        """``rate`` is records a second for each of the two producers."""
        self._servers = bootstrap_servers
        self._topic = topic
        self._history = history
        self._partitions = partitions
        self._rate = rate
        self._seed = seed
        self._began = time.monotonic()
        self._last_acknowledged = self._began
        self.longest_silence_s = 0.0
        self._no_more = threading.Event()
        self._read_no_more = threading.Event()
        self._failures: list[str] = []
        self._producers = [self._thread(self._produce, number) for number in PRODUCERS]
        self._readers = [self._thread(self._read_on, 1), self._thread(self._read_again, 2)]

    def _thread(self, work: Callable[[int], None], number: int) -> threading.Thread:
        def guarded() -> None:
            try:
                work(number)
            except Exception as error:
                self._failures.append(f"{work.__name__} {number}: {error!r}")

        thread = threading.Thread(target=guarded, name=f"{work.__name__}-{number}", daemon=True)
        thread.start()
        return thread

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    # Producing.

    def _produce(self, number: int) -> None:
        in_flight = 1 if number in ONE_AT_A_TIME else 5
        producer = Producer({"bootstrap.servers": self._servers, "max.in.flight": in_flight, **PRODUCER})
        count = 0
        while not self._no_more.is_set():
            due = int(self._now * self._rate)
            # What could not be sent while nothing was acknowledged is not made up for.
            for _ in range(min(due - count, 200) if len(producer) < MOST_UNDER_WAY else 0):
                count += 1
                self._send(producer, number, count)
            count = max(count, due - 200)
            producer.poll(0.01)
        left = producer.flush(120)
        if left:
            self._failures.append(f"producer {number}: {left} records have no result 120 s after the last fault")

    def _send(self, producer: Producer, number: int, count: int) -> None:
        record, partition = identity(number, count), count % self._partitions

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._acknowledged(record, partition, message.offset())
            elif error.code() in _NEVER_SENT:
                self._history.failed(record)
            else:
                self._history.unknown()

        self._history.sent()
        producer.produce(self._topic, b"%d:%d%s" % (number, count, PADDING), partition=partition, on_delivery=told)

    def _acknowledged(self, record: int, partition: int, offset: int | None) -> None:
        now = time.monotonic()
        self.longest_silence_s = max(self.longest_silence_s, now - self._last_acknowledged)
        self._last_acknowledged = now
        if offset is None or offset < 0:
            self._history.acknowledged_somewhere(record, partition)
        else:
            self._history.acknowledged(record, partition, offset, self._now)

    # Reading.

    def _read_on(self, number: int) -> None:
        self._read(number, lambda consumer, positions: None)

    def _read_again(self, number: int) -> None:
        """Goes back a little now and then: where records were replaced, that is where it shows."""
        chance, next_at = random.Random(self._seed), 0.0

        def go_back(consumer: Consumer, positions: dict[int, int]) -> None:
            nonlocal next_at
            if self._now < next_at:
                return
            next_at = self._now + 1
            partition = chance.randrange(self._partitions)
            offset = max(0, positions[partition] - chance.randrange(5_000))
            # Told before: a record that was fetched already is dropped by the client when it seeks.
            try:
                consumer.seek(TopicPartition(self._topic, partition, offset))
            except Exception:  # it has no leader at the moment
                return
            self._history.moved(number, partition, offset)
            positions[partition] = offset

        self._read(number, go_back)

    def _read(self, number: int, now_and_then: Callable[[Consumer, dict[int, int]], None]) -> None:
        consumer = Consumer({"bootstrap.servers": self._servers, **READER})
        consumer.assign([TopicPartition(self._topic, each, 0) for each in range(self._partitions)])
        positions = dict.fromkeys(range(self._partitions), 0)
        try:
            while not self._read_no_more.is_set():
                for message in consumer.consume(500, timeout=0.1):
                    if (error := message.error()) is not None:
                        if error.code() in _LOSS:
                            self._history.told_of_loss(number, str(error))
                        continue
                    positions[message.partition()] = message.offset() + 1
                    record = record_of(message)
                    self._history.read(number, message.partition(), message.offset(), record, self._now)
                now_and_then(consumer, positions)
        finally:
            consumer.close()

    def finish(self) -> list[str]:
        """Stops sending, waits for all results, then stops reading; what went wrong with the clients themselves."""
        self._no_more.set()
        for thread in self._producers:
            thread.join()
        self._read_no_more.set()
        for thread in self._readers:
            thread.join()
        return self._failures


def record_of(message: Message) -> int:
    producer, _, number = message.value().rstrip(b".").partition(b":")
    return identity(int(producer), int(number))


def read_whole(
    bootstrap_servers: str, topic: str, partition: int, timeout_s: float = 60.0
) -> Iterator[tuple[int, int]]:
    """(offset, record) of all that the partition holds now, from its beginning; AssertionError when it cannot be."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **READER})
    try:
        end = high_watermark(bootstrap_servers, topic, partition)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        position, deadline = 0, time.monotonic() + timeout_s
        while position < end:
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is None:
                    position, deadline = message.offset() + 1, time.monotonic() + timeout_s
                    yield message.offset(), record_of(message)
            assert time.monotonic() < deadline, f"{topic}-{partition} cannot be read at {position}, it ends at {end}"
    finally:
        consumer.close()


def may_pass(error: KafkaException, codes: Container[int]) -> bool:
    """Whether the broker responded with one of the codes, or the client gave up before a broker responded."""
    code = error.args[0].code()
    return code in codes or code < KafkaError.UNKNOWN


def high_watermark(bootstrap_servers: str, topic: str, partition: int) -> int:
    """As soon as a leader knows it: one that was just elected has to hear from its followers, and clients of it."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **READER})
    failures: list[KafkaException] = []

    def found() -> list[int]:
        try:
            return [consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]]
        except KafkaException as error:
            if not may_pass(error, ELECTING):
                raise
            failures.append(error)
            return []

    try:
        [end] = wait_until(
            found, lambda: f"the leader of {topic}-{partition} knows what is committed: {failures[-1]}", 90
        )
        return end
    finally:
        consumer.close()
