"""skep.share.order=key with librdkafka: many members, random failures, and each key stays in order."""

import random
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_producer
from tests.compat.test_share_consumer import OPTIONS, configure, create
from tests.waiting import wait_until

MEMBERS, KEYS, RECORDS, PARTITIONS = 6, 20, 1500, 2


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


class Worker(threading.Thread):
    """A member that fails now and then: it releases a record, or begins again without a word about those it has."""

    def __init__(self, servers: str, group: str, history: "History", seed: int) -> None:
        super().__init__(daemon=True)
        self.settings = {
            "bootstrap.servers": servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
        self.group, self.history, self.random = group, history, random.Random(seed)
        self.must_stop = threading.Event()

    def run(self) -> None:
        while not self.must_stop.is_set():
            with ShareConsumer(self.settings) as consumer:
                consumer.subscribe([self.group])
                while not self.must_stop.is_set() and self.poll(consumer):
                    pass

    def poll(self, consumer: ShareConsumer) -> bool:
        """Returns False if the consumer is to be closed without saying what became of its records."""
        accepted, messages = [], consumer.poll(0.1)
        for message in messages:
            self.history.delivered(message)
        if self.random.random() < 0.02:
            for message in messages:
                self.history.given_back(message)
            return False
        for message in messages:
            if self.random.random() < 0.1:
                self.history.given_back(message)
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                accepted.append(message)
        # Before the acceptance is sent: from then on the next record of the key may come, to another member.
        for message in accepted:
            self.history.accepted(message)
        for error in consumer.commit_sync().values():
            assert error is None, error
        return True


class History:
    """What members have seen. A record is accepted once its member decides so."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.in_flight: dict[tuple[int, str], int] = {}
        self.wrong: list[str] = []

    def delivered(self, message: object) -> None:
        with self.lock:
            key, offset = place(message)
            if (other := self.in_flight.get(key)) not in (None, offset):
                self.wrong.append(f"{offset} was delivered while {other} of the same key {key} is in flight")
            if self.done[key] and offset <= self.done[key][-1]:
                self.wrong.append(f"{offset} of key {key} was delivered after {self.done[key][-1]} was accepted")
            self.in_flight[key] = offset

    def given_back(self, message: object) -> None:
        with self.lock:
            self.in_flight.pop(place(message)[0], None)

    def accepted(self, message: object) -> None:
        with self.lock:
            key, offset = place(message)
            self.in_flight.pop(key, None)
            self.done[key].append(offset)

    def count(self) -> int:
        with self.lock:
            return sum(map(len, self.done.values()))


def place(message: object) -> tuple[tuple[int, str], int]:
    key = message.key()  # type: ignore[attr-defined]
    return (message.partition(), key.decode()), message.offset()  # type: ignore[attr-defined]


def test_each_key_is_delivered_in_order_through_failures(broker: EmbeddedBroker, topic: str) -> None:
    servers = broker.bootstrap_servers
    create(servers, topic, PARTITIONS)
    configure(servers, topic, "skep.share.order", "key")
    configure(servers, topic, "skep.share.retry.backoff", "20ms,50ms")
    # None of them fails so often.
    configure(servers, topic, "share.delivery.count.limit", "10")
    producer = confluent_producer(servers, **{"linger.ms": 5, "compression.type": "lz4"})
    expected = defaultdict(list)
    numbers = random.Random(7)
    for number in range(RECORDS):
        key = numbers.randrange(KEYS)
        expected[key % PARTITIONS, f"key {key}"].append(number)
        producer.produce(topic, b"%d" % number, f"key {key}".encode(), partition=key % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    history = History()
    workers = [Worker(servers, topic, history, seed) for seed in range(MEMBERS)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: history.count() >= RECORDS or history.wrong, lambda: f"{history.count()} of {RECORDS}")
    finally:
        for worker in workers:
            worker.must_stop.set()
        for worker in workers:
            worker.join(PATIENCE_S)
    assert history.wrong == []
    assert {key: len(offsets) for key, offsets in history.done.items()} == {
        key: len(values) for key, values in expected.items()
    }
    assert all(offsets == sorted(set(offsets)) for offsets in history.done.values())
