"""A function as a worker, and asking, while leaders of a cluster die."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import skep
from skep.testing import EmbeddedCluster
from tests.cluster.driving import LONG_SESSIONS, wait_until_configured
from tests.scenario.queue_topics import OPTIONS, PATIENCE_S, configure, jobs, text
from tests.waiting import wait_until

PARTITIONS = 3
pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(config={**OPTIONS, **LONG_SESSIONS}) as cluster:
        yield cluster


def test_nothing_is_lost_when_leaders_are_killed(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("jobs", PARTITIONS, 3)])["jobs"].result(PATIENCE_S)
    configure(servers, "jobs", "share.auto.offset.reset", "earliest")
    wait_until_configured(cluster, "jobs", "share.auto.offset.reset", "earliest")
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number, job in enumerate(jobs(300)):
        producer.produce("jobs", job, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    seen: Counter[str] = Counter()
    lock = threading.Lock()
    pace = threading.Semaphore(0)

    def handle(message: skep.Message) -> bytes:
        assert pace.acquire(timeout=PATIENCE_S)
        with lock:
            seen[text(message)] += 1
        return b"done"

    with skep.consume("jobs", handle, group="jobs", concurrency=6, bootstrap_servers=servers) as consumer:
        pace.release(100)
        wait_until(lambda: sum(seen.values()) == 100, lambda: str(consumer.statistics))
        victim = cluster.leader_of("jobs", 0)
        cluster.kill(victim)
        pace.release(10_000)
        wait_until(lambda: len(seen) == 300, lambda: f"{len(seen)} {consumer.statistics}")
        cluster.restart(victim)
        wait_until(lambda: consumer.statistics.running == 0, "all handlers have ended")
    assert sum(seen.values()) <= 300 + 2 * 6, "only what was in work comes twice"
    # The group goes on where it was: nothing but the last one is left.
    again: list[str] = []
    producer.produce("jobs", "last", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    with skep.consume("jobs", lambda message: again.append(text(message)), group="jobs", bootstrap_servers=servers):
        wait_until(lambda: "last" in again, lambda: str(again))
    assert len(again) <= 1 + consumer.statistics.refused


def test_asking_goes_on_with_new_leaders(cluster: EmbeddedCluster) -> None:
    servers = cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("prices", 1, 3)])["prices"].result(PATIENCE_S)
    with (
        skep.answer("prices", lambda message: text(message).upper(), bootstrap_servers=servers),
        skep.Asker(servers) as asker,
    ):
        assert asker.ask("prices", "a", timeout=PATIENCE_S) == b"A"
        for topic in ("prices", "prices.replies"):
            victim = cluster.leader_of(topic)
            cluster.kill(victim)
            assert asker.ask("prices", topic, timeout=PATIENCE_S) == topic.upper().encode()
            cluster.restart(victim)
