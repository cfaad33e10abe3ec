"""Rows with three nodes of each, three replicas, acks=all, min.insync.replicas=2.

All of it shares the processors of one machine: three nodes do the work of three machines there.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from confluent_kafka import KafkaError, Producer

from bench.kafka import clients
from bench.kafka.comparison import KAFKA, SKEP, Comparison, Measurement, Peer
from bench.kafka.nodes import KafkaNodes
from bench.row import Row, percentile, say, spread
from skep.testing import EmbeddedCluster

NAMES = (
    "replicated-produce",
    "replicated-consume",
    "replicated-p50",
    "replicated-p99",
    "replicated-long",
    "failover",
)

RECORDS = 500_000
LONG_RECORDS, BLOCK = 10_000_000, 500_000
PARTITIONS = 3
ALONE = 2_000
KILLS = 3

_topics = (f"bench-{number}" for number in itertools.count())


def measure(names: set[str], rounds: int) -> Iterator[Row]:
    with EmbeddedCluster(brokers=3) as skep, KafkaNodes(3) as kafka:
        peers = {
            SKEP: Peer(SKEP, skep.bootstrap_servers, [skep.broker(i).pid for i in skep.running]),
            KAFKA: Peer(KAFKA, kafka.bootstrap_servers, kafka.pids),
        }
        for comparison in _comparisons():
            if comparison.name in names:
                comparison.rounds = rounds
                yield comparison.measure(peers)
        if "replicated-long" in names:
            yield long_run(peers)
        if "failover" in names:
            yield _failover(skep, kafka)


def _comparisons() -> Iterator[Comparison]:
    many = f"{RECORDS:,} records of 100 B, three partitions with three replicas, confluent-kafka"
    yield Comparison("replicated-produce", f"{many}, acks=all", _produce)
    what = f"{RECORDS:,} records of one partition with three replicas, the same batches in both logs"
    yield Comparison("replicated-consume", what, Consume())
    yield Comparison("replicated-p50", "one-record requests with three replicas, one at a time", _p50, "less", "us", 6)
    yield Comparison("replicated-p99", "p99 of the same", _p99, "less", "us", 1)


def _new_topic(peer: Peer, partitions: int = PARTITIONS) -> str:
    topic = next(_topics)
    config = {"min.insync.replicas": "2"}
    clients.create_topic(peer.bootstrap_servers, topic, partitions, 3, config)
    clients.leader_address(peer.bootstrap_servers, topic)
    return topic


def _produce(peer: Peer) -> Measurement:
    return clients.produce(peer, _new_topic(peer), RECORDS, partitions=PARTITIONS)


class Consume:
    """Writes the topic of each peer once; one partition, because the raw frames go to one leader."""

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def __call__(self, peer: Peer) -> Measurement:
        if peer.name not in self._topics:
            topic = self._topics[peer.name] = _new_topic(peer, 1)
            clients.write_batches(clients.leader_address(peer.bootstrap_servers, topic), topic, RECORDS)
        return clients.consume(peer, self._topics[peer.name], RECORDS)


def _p50(peer: Peer) -> Measurement:
    return _latency(peer, 0.5)


def _p99(peer: Peer) -> Measurement:
    return _latency(peer, 0.99)


def _latency(peer: Peer, part: float) -> Measurement:
    topic = _new_topic(peer, 1)
    address = clients.leader_address(peer.bootstrap_servers, topic)
    cpu = peer.cpu_seconds()
    times = clients.one_at_a_time(address, topic, ALONE)
    return Measurement(percentile(times, part), peer.cpu_seconds() - cpu)


def long_run(peers: dict[str, Peer], records: int = LONG_RECORDS) -> Row:
    """Ten million records without a pause: the last million's rate to the first million's, and the brokers' CPU."""
    rates: dict[str, list[float]] = {}
    for name, peer in peers.items():
        rates[name], cpu = blocks(peer, records)
        said = ", ".join(f"{rate / 1e6:.2f}" for rate in rates[name])
        say(f"replicated-long, {name}: M records/s in blocks of {BLOCK:,}: {said}")
        say(f"replicated-long, {name}: CPU s of the brokers: {', '.join(f'{used:.2f}' for used in cpu)}")
    kept = {name: statistics.mean(found[-2:]) / statistics.mean(found[:2]) for name, found in rates.items()}
    return Row(
        "replicated-long",
        f"{records:,} records with three replicas: the rate of the last million to that of the first",
        None,
        "at least",
        kept[SKEP],
        f"{statistics.median(rates[SKEP]):,.0f} records/s",
        f"{statistics.median(rates[KAFKA]):,.0f} records/s" if KAFKA in rates else "",
        median=statistics.median(rates[SKEP]) / statistics.median(rates[KAFKA]) if KAFKA in rates else None,
        details={name: spread(found, 0) for name, found in rates.items()} | {"kept": kept},
    )


def blocks(peer: Peer, records: int) -> tuple[list[float], list[float]]:
    """The rate of each block of one long run, and the CPU seconds of the brokers in it.

    The client has at most one block queued, so a block ends when the one before it is nearly acknowledged.
    """
    topic = _new_topic(peer)
    options = {
        "bootstrap.servers": peer.bootstrap_servers,
        "acks": "all",
        "log_level": 0,
        "queue.buffering.max.messages": BLOCK,
        "queue.buffering.max.kbytes": 1 << 20,
        "delivery.report.only.error": True,
    }
    producer = Producer(options)
    for partition in range(PARTITIONS):
        producer.produce(topic, clients.VALUE, partition=partition)
    producer.flush(clients.GIVE_UP_S)
    rates, cpu = [], []
    for _ in range(records // BLOCK):
        used, started = peer.cpu_seconds(), time.perf_counter()
        for number in range(BLOCK):
            while True:
                try:
                    producer.produce(topic, clients.VALUE, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.001)
        while len(producer) > BLOCK // 10:
            producer.poll(0.001)
        rates.append(BLOCK / (time.perf_counter() - started))
        cpu.append(peer.cpu_seconds() - used)
    if producer.flush(clients.GIVE_UP_S):
        raise RuntimeError("not all records were acknowledged")
    return rates, cpu


def _failover(skep: EmbeddedCluster, kafka: KafkaNodes) -> Row:
    """From kill -9 of a leader to the next acknowledged send. Each with its own default of how a death is noticed."""
    times: dict[str, list[float]] = {SKEP: [], KAFKA: []}
    for _ in range(KILLS):
        topic = next(_topics)
        clients.create_topic(skep.bootstrap_servers, topic, 1, 3)
        skep.wait_until_in_sync()
        leader = skep.leader_of(topic)
        times[SKEP].append(_time_to_acknowledgement(skep.bootstrap_servers, topic, partial(skep.kill, leader)))
        skep.restart(leader)
        topic = next(_topics)
        clients.create_topic(kafka.bootstrap_servers, topic, 1, 3)
        address = clients.leader_address(kafka.bootstrap_servers, topic)
        (leader,) = (i for i, one in kafka.addresses.items() if one == address)
        times[KAFKA].append(_time_to_acknowledgement(kafka.bootstrap_servers, topic, partial(kafka.kill, leader)))
        kafka.start(leader)
        kafka.wait_until_ready()
        say(f"failover: skep {times[SKEP][-1]:.2f} s, kafka {times[KAFKA][-1]:.2f} s")
    return Row(
        "failover",
        "from kill -9 of a leader to the next acknowledged send, seconds",
        1.0,
        "at most",
        min(times[SKEP]) / min(times[KAFKA]),
        f"{min(times[SKEP]):.2f} s",
        f"{min(times[KAFKA]):.2f} s",
        median=statistics.median(times[SKEP]) / statistics.median(times[KAFKA]),
        details={name: spread(found, 2) for name, found in times.items()},
    )


def _time_to_acknowledgement(servers: str, topic: str, kill: Callable[[], None]) -> float:
    acknowledged: list[float] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0, "linger.ms": 0})
    producer.produce(topic, b"before", on_delivery=delivered)
    producer.flush(clients.GIVE_UP_S)
    acknowledged.clear()
    kill()
    killed = time.perf_counter()
    while not acknowledged:
        producer.produce(topic, b"after", on_delivery=delivered)
        producer.poll(0.01)
        if time.perf_counter() - killed > clients.GIVE_UP_S:
            raise RuntimeError("no send was acknowledged any more")
    producer.flush(clients.GIVE_UP_S)
    return acknowledged[0] - killed
