"""Rows with one node of each: produce, small requests, transactions, synced requests, latency, consume."""

import itertools
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from bench.kafka import clients
from bench.kafka.comparison import KAFKA, SKEP, Comparison, Measurement, Peer
from bench.kafka.nodes import KafkaNodes
from bench.row import Row, percentile
from skep.testing import EmbeddedBroker

NAMES = (
    "produce",
    "produce-idempotent",
    "produce-6-partitions",
    "small-requests",
    "synced-requests",
    "transactions",
    "latency",
    "consume",
)

RECORDS = 1_000_000
SMALL_REQUESTS = 30_000
SYNCED_REQUESTS = 1_000
ALONE = 5_000
PRODUCERS, UNITS, UNIT_RECORDS = 8, 60, 100

_topics = (f"bench-{number}" for number in itertools.count())


def measure(names: set[str], rounds: int) -> Iterator[Row]:
    with EmbeddedBroker() as broker, KafkaNodes(1) as kafka:
        peers = {
            SKEP: Peer(SKEP, broker.bootstrap_servers, [broker.pid]),
            KAFKA: Peer(KAFKA, kafka.bootstrap_servers, kafka.pids),
        }
        for comparison in _comparisons():
            if comparison.name in names:
                comparison.rounds = rounds
                yield comparison.measure(peers)


def _comparisons() -> Iterator[Comparison]:
    million = f"{RECORDS:,} records of 100 B, confluent-kafka, acks=all"
    yield Comparison("produce", f"{million}, one partition", _produce)
    yield Comparison("produce-idempotent", f"{million}, one partition, idempotent producer", _produce_idempotent)
    yield Comparison("produce-6-partitions", f"{million}, six partitions", _produce_six)
    yield Comparison(
        "small-requests", "one-record requests, 128 in flight on one connection", _small, unit="requests/s"
    )
    yield Comparison(
        "synced-requests", "the same, each on the disk before its response", _synced, unit="requests/s", warm_up=3
    )
    yield Comparison("transactions", "8 producers, 100 records and commit_transaction", _transactions)
    yield Comparison("latency", "p50 of one-record requests, one at a time", _latency, "less", "us", 4)
    yield Comparison("consume", f"{RECORDS:,} records of one partition, the same batches in both logs", Consume())


def _new_topic(peer: Peer, partitions: int = 1, **config: str) -> str:
    topic = next(_topics)
    named = {name.replace("_", "."): value for name, value in config.items()}
    clients.create_topic(peer.bootstrap_servers, topic, partitions, config=named)
    return topic


def _produce(peer: Peer) -> Measurement:
    return clients.produce(peer, _new_topic(peer), RECORDS)


def _produce_idempotent(peer: Peer) -> Measurement:
    return clients.produce(peer, _new_topic(peer), RECORDS, options={"enable.idempotence": True})


def _produce_six(peer: Peer) -> Measurement:
    return clients.produce(peer, _new_topic(peer, 6), RECORDS, partitions=6)


def _small(peer: Peer) -> Measurement:
    return clients.pipelined(peer, peer.bootstrap_servers, _new_topic(peer), SMALL_REQUESTS)


def _synced(peer: Peer) -> Measurement:
    topic = _new_topic(peer, flush_messages="1")
    return clients.pipelined(peer, peer.bootstrap_servers, topic, SYNCED_REQUESTS)


def _latency(peer: Peer) -> Measurement:
    cpu = peer.cpu_seconds()
    times = clients.one_at_a_time(peer.bootstrap_servers, _new_topic(peer), ALONE)
    return Measurement(percentile(times, 0.5), peer.cpu_seconds() - cpu)


class Consume:
    """Writes the topic of each peer once."""

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def __call__(self, peer: Peer) -> Measurement:
        if peer.name not in self._topics:
            self._topics[peer.name] = _new_topic(peer)
            clients.write_batches(peer.bootstrap_servers, self._topics[peer.name], RECORDS)
        return clients.consume(peer, self._topics[peer.name], RECORDS)


def _transactions(peer: Peer) -> Measurement:
    topic = _new_topic(peer)
    producers = []
    for _ in range(PRODUCERS):
        options = {"bootstrap.servers": peer.bootstrap_servers, "transactional.id": next(_topics), "log_level": 0}
        producers.append(Producer(options))
        producers[-1].init_transactions(clients.GIVE_UP_S)
        _commit(producers[-1], topic)
    failures: list[BaseException] = []
    threads = [threading.Thread(target=_commit_all, args=(one, topic, failures)) for one in producers]
    cpu, started = peer.cpu_seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if failures:
        raise failures[0]
    return Measurement(PRODUCERS * UNITS * UNIT_RECORDS / seconds, peer.cpu_seconds() - cpu)


def _commit_all(producer: Producer, topic: str, failures: list[BaseException]) -> None:
    try:
        for _ in range(UNITS):
            _commit(producer, topic)
    except BaseException as error:
        failures.append(error)


def _commit(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for _ in range(UNIT_RECORDS):
        producer.produce(topic, clients.VALUE)
    producer.commit_transaction(clients.GIVE_UP_S)
