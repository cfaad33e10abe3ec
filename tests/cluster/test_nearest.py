"""Reading from the nearest replica (KIP-392): a consumer that says its rack is served there, while that can be."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import (
    FEW_INTERNAL_PARTITIONS,
    ask,
    consumer_settings,
    create,
    read_more,
    send,
    unused_name,
    wait_for_isr,
)
from tests.raw_client import RawClient
from tests.raw_requests import Want, fetch_body
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

RACKS = {1: "a", 2: "b", 3: "c"}
LEADER, NEAR = 1, 2
NOBODY = -1
CONFIG = {
    **FEW_INTERNAL_PARTITIONS,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.lag.time.max.ms": "1000",
    "zookeeper.session.timeout.ms": "120000",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    racks = {i: {"broker.rack": rack} for i, rack in RACKS.items()}
    with EmbeddedCluster(3, config=CONFIG, broker_config=racks) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """Led by the broker of rack a; all brokers are in sync before the test begins."""
    name = unused_name(cluster)
    create(cluster, name, [[1, 2, 3]])
    return name


def fetch(cluster: EmbeddedCluster, i: int, topic: str, rack: str, offset: int = 0) -> Any:
    body = fetch_body([Want(topic, offset)], 12, max_wait_s=0.1)
    [[row]] = [one.partitions for one in ask(cluster, i, apis.FETCH, 12, **body, rack_id=rack).responses]
    return row


class Reader:
    """A consumer of partition 0 from the beginning, and the broker that it reads from by its own statistics."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, **options: Any) -> None:
        self._topic = topic
        self.reads_from = NOBODY
        settings = consumer_settings(cluster, **options)
        self._consumer = Consumer({**settings, "statistics.interval.ms": 50, "stats_cb": self._note})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def _note(self, statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(self._topic, {}).get("partitions", {})
        self.reads_from = partitions.get("0", {}).get("broker", NOBODY)

    def read(self, count: int) -> list[bytes]:
        return read_more(self._consumer, count)

    def wait_until_reading_from(self, *brokers: int) -> None:
        def is_so() -> bool:
            self._consumer.poll(0.05)
            return self.reads_from in brokers

        wait_until(is_so, lambda: f"it reads from {brokers}, not from {self.reads_from}")

    def close(self) -> None:
        self._consumer.close()


def test_the_leader_sends_a_consumer_to_the_replica_in_its_rack(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster, topic, [b"x"] * 3)
    sent_away = sent_to(cluster, topic, NEAR)
    assert sent_away.error_code is ErrorCode.none
    assert not sent_away.records, "it is not read twice"
    near = wait_until(lambda: ready(fetch(cluster, NEAR, topic, "b"), 3), "the follower knows what is committed")
    assert near.preferred_read_replica == NOBODY
    assert near.records, "whoever was sent there is served"
    for rack in ("a", "z", ""):
        here = fetch(cluster, LEADER, topic, rack)
        assert (here.preferred_read_replica, bool(here.records)) == (NOBODY, True)


def sent_to(cluster: EmbeddedCluster, topic: str, broker: int) -> Any:
    """The answer of the leader to a consumer in rack b, when it sends it there.

    A replica that did not run for a second, as on a busy machine, is not in sync for a moment.
    """

    def row() -> Any:
        found = fetch(cluster, LEADER, topic, "b")
        return found if found.preferred_read_replica == broker else None

    return wait_until(row, f"the leader sends the consumer to {broker}")


def ready(row: Any, high_watermark: int) -> Any:
    return row if row.high_watermark == high_watermark else None


def test_a_consumer_with_a_rack_reads_from_its_replica_and_one_without_from_the_leader(
    cluster: EmbeddedCluster, topic: str
) -> None:
    values = [b"%d" % number for number in range(100)]
    send(cluster, topic, values)
    for options, broker in (({"client_rack": "b"}, NEAR), ({"client_rack": "c"}, 3), ({}, LEADER)):
        reader = Reader(cluster, topic, **options)
        try:
            assert reader.read(100) == values
            reader.wait_until_reading_from(broker)
        finally:
            reader.close()


def test_a_consumer_goes_on_when_its_replica_dies_and_returns_when_that_is_back(
    cluster: EmbeddedCluster, topic: str
) -> None:
    send(cluster, topic, [b"0", b"1"])
    reader = Reader(cluster, topic, client_rack="b", reconnect_backoff_max_ms=500, metadata_max_age_ms=1_000)
    try:
        assert reader.read(2) == [b"0", b"1"]
        reader.wait_until_reading_from(NEAR)
        cluster.kill(NEAR)
        wait_for_isr(cluster, topic, {1, 3})
        send(cluster, topic, [b"2", b"3"])
        assert reader.read(2) == [b"2", b"3"], "each of them once, in order"
        reader.wait_until_reading_from(LEADER)
        cluster.restart(NEAR)
        wait_for_isr(cluster, topic, {1, 2, 3})
        send(cluster, topic, [b"4"])
        assert reader.read(1) == [b"4"]
        reader.wait_until_reading_from(NEAR)
    finally:
        reader.close()


def test_nobody_is_sent_to_a_replica_that_is_not_in_sync(cluster: EmbeddedCluster, topic: str) -> None:
    cluster.pause(NEAR)
    try:
        send(cluster, topic, [b"x"], acks=1)
        wait_for_isr(cluster, topic, {1, 3})
        here = fetch(cluster, LEADER, topic, "b")
        assert (here.preferred_read_replica, bool(here.records)) == (NOBODY, True)
    finally:
        cluster.resume(NEAR)
    wait_for_isr(cluster, topic, {1, 2, 3})
    sent_to(cluster, topic, NEAR)


def test_a_position_that_a_follower_does_not_know_yet_is_no_lost_position(cluster: EmbeddedCluster, topic: str) -> None:
    """Told OFFSET_OUT_OF_RANGE, a consumer would begin anew."""
    send(cluster, topic, [b"x"] * 3)
    ahead = wait_until(lambda: ready(fetch(cluster, NEAR, topic, "b"), 3), "the follower has it")
    assert ahead.error_code is ErrorCode.none
    assert fetch(cluster, NEAR, topic, "b", offset=7).error_code is ErrorCode.offset_not_available
    assert fetch(cluster, LEADER, topic, "a", offset=7).error_code is ErrorCode.offset_out_of_range
    assert not fetch(cluster, NEAR, topic, "b", offset=3).records


def test_with_topic_ids_it_is_the_same(cluster: EmbeddedCluster, topic: str) -> None:
    send(cluster, topic, [b"x"])
    sent_to(cluster, topic, NEAR)
    [row] = ask(cluster, LEADER, apis.METADATA, 12, topics=[{"topic_id": None, "name": topic}]).topics
    with RawClient(cluster.brokers[LEADER]) as client:
        body = fetch_body([Want(UUID(int=row.topic_id.int), 0)], 16)
        [[answer]] = [one.partitions for one in client.ask(apis.FETCH, 16, **body, rack_id="b").responses]
    assert answer.preferred_read_replica == NEAR
