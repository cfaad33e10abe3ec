"""Topics over several brokers: where their replicas go, and brokers that were away while something happened."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import (
    FEW_INTERNAL_PARTITIONS,
    ask,
    create,
    create_only,
    leftovers,
    read,
    send,
    state,
    unused_name,
    wait_for_isr,
    wait_until_equal,
)
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, seconds
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
PATIENT = ("zookeeper.session.timeout.ms", "replica.lag.time.max.ms")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    racks = {i: {"broker.rack": rack} for i, rack in RACKS.items()}
    # One that is frozen is neither given up nor does it leave an ISR; one that is killed is noticed at once.
    config = {**FEW_INTERNAL_PARTITIONS, **dict.fromkeys(PATIENT, "120000")}
    with EmbeddedCluster(4, config=config, broker_config=racks) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """A name that no test has used; all brokers are there before the test begins."""
    return unused_name(cluster)


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def make(cluster: EmbeddedCluster, admin: AdminClient, topic: str, partitions: int, factor: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, factor)])[topic].result(60)
    wait_until(lambda: all(state(cluster, topic, seen_by=i) for i in cluster.running), f"all know {topic}")


def delete(cluster: EmbeddedCluster, topic: str) -> None:
    # Of a broker that runs; the library asks the controller, which may be the one that is frozen.
    with RawClient(cluster.brokers[cluster.running[0]]) as client:
        client.delete_topic(topic)
    wait_until(lambda: not any(state(cluster, topic, seen_by=i) for i in cluster.running), f"{topic} is gone")


def placed(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    [row] = ask(cluster, cluster.running[0], apis.METADATA, 9, topics=[{"name": topic}]).topics
    return sorted(row.partitions, key=lambda one: one.partition_index)


# Placement.


def test_replicas_and_leaders_are_spread_and_no_broker_has_two_of_one_partition(
    cluster: EmbeddedCluster, admin: AdminClient, topic: str
) -> None:
    make(cluster, admin, topic, 8, 3)
    partitions = placed(cluster, topic)
    assert all(len(set(one.replica_nodes)) == 3 for one in partitions)
    assert Counter(one.leader_id for one in partitions) == dict.fromkeys(RACKS, 2)
    assert Counter(broker for one in partitions for broker in one.replica_nodes) == dict.fromkeys(RACKS, 6)


def test_copies_are_in_different_racks(cluster: EmbeddedCluster, admin: AdminClient, topic: str) -> None:
    make(cluster, admin, topic, 8, 2)
    for one in placed(cluster, topic):
        assert {RACKS[broker] for broker in one.replica_nodes} == {"a", "b"}
    # That of a broker is told to those who ask, too.
    assert {one.node_id: one.rack for one in ask(cluster, 1, apis.METADATA, 9, topics=[]).brokers} == RACKS


def test_more_replicas_than_brokers_are_refused(cluster: EmbeddedCluster, admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException) as raised:
        make(cluster, admin, topic, 1, 5)
    assert raised.value.args[0].name() == "INVALID_REPLICATION_FACTOR"
    cluster.kill(4)
    wait_until(
        lambda: all(len(ask(cluster, i, apis.METADATA, 9, topics=[]).brokers) == 3 for i in cluster.running),
        "all know that one is away",
    )
    with pytest.raises(KafkaException) as raised:
        make(cluster, admin, topic, 1, 4)
    assert raised.value.args[0].name() == "INVALID_REPLICATION_FACTOR"
    make(cluster, admin, topic, 4, 3)
    assert all(4 not in one.replica_nodes for one in placed(cluster, topic)), "one that is away gets nothing"


def test_partitions_that_are_added_are_spread_and_can_be_written_to(
    cluster: EmbeddedCluster, admin: AdminClient, topic: str
) -> None:
    make(cluster, admin, topic, 2, 2)
    before = [list(one.replica_nodes) for one in placed(cluster, topic)]
    admin.create_partitions([NewPartitions(topic, 8)])[topic].result(60)
    wait_until(lambda: all(state(cluster, topic, 7, seen_by=i) for i in cluster.running), "all know of them")
    partitions = placed(cluster, topic)
    assert [list(one.replica_nodes) for one in partitions[:2]] == before
    for one in partitions[2:]:
        assert {RACKS[broker] for broker in one.replica_nodes} == {"a", "b"}
    assert set(Counter(one.leader_id for one in partitions[2:])) == set(RACKS), "six new ones, led by all four"
    for index in range(8):
        assert send(cluster, topic, [b"%d" % index], partition=index) == [0]
        assert read(cluster, topic, 1, partition=index) == [b"%d" % index]


# A broker is away.


def test_a_broker_that_was_away_while_a_topic_was_deleted_removes_its_files(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3], [3, 1, 2]])
    for partition in (0, 1):
        send(cluster, topic, [b"x"], partition=partition)
        wait_until_equal(cluster, topic, (1, 2, 3), end=1, partition=partition)
    cluster.kill(3)
    delete(cluster, topic)
    for i in (1, 2):
        wait_until(lambda i=i: not leftovers(cluster, i, topic), f"broker {i} has removed its files")
    assert leftovers(cluster, 3, topic) == [f"{topic}-0", f"{topic}-1"]
    cluster.restart(3)
    wait_until(lambda: not leftovers(cluster, 3, topic), lambda: f"they go: {leftovers(cluster, 3, topic)}")
    assert state(cluster, topic, seen_by=3) is None


def test_a_topic_that_was_made_anew_meanwhile_has_nothing_of_the_old_one(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"old"] * 10)
    wait_until_equal(cluster, topic, (1, 2, 3), end=10)
    cluster.kill(3)
    delete(cluster, topic)
    create(cluster, topic, [[1, 2]])
    assert send(cluster, topic, [b"new"] * 3) == [0, 1, 2]
    cluster.restart(3)
    wait_until(lambda: not leftovers(cluster, 3, topic), lambda: f"old files go: {leftovers(cluster, 3, topic)}")
    move = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [3, 1, 2]}]}
    cluster.wait_until_ready()
    answer = ask(cluster, 1, apis.ALTER_PARTITION_REASSIGNMENTS, 0, topics=[move], timeout=seconds(30))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=3)


def test_a_topic_that_was_made_anew_while_a_broker_was_frozen_is_the_new_one_there_too(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[3, 1, 2]])
    send(cluster, topic, [b"old"] * 10)
    wait_until_equal(cluster, topic, (1, 2, 3), end=10)
    cluster.pause(3)
    try:
        delete(cluster, topic)
        create_only(cluster, topic, [[1, 2, 3]])
        wait_until(lambda: (seen := state(cluster, topic)) and seen.leader == 1, "the new one is led by another")
        with RawClient(cluster.brokers[1]) as client:
            # Refused, for clients to try again, until the files of the earlier one are out of the way.
            sent = batch_of(b"new", b"new", b"new")
            wait_until(lambda: client.produce(topic, sent, acks=1).base_offset == 0, "the new one is written to")
    finally:
        cluster.resume(3)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=3)
    for i in (1, 2, 3):
        wait_until(
            lambda i=i: leftovers(cluster, i, topic) == [f"{topic}-0"],
            lambda i=i: f"broker {i} has only the new one: {leftovers(cluster, i, topic)}",
        )
    assert read(cluster, topic, 3) == [b"new"] * 3


def test_topics_can_be_made_deleted_and_grown_while_a_broker_is_away_which_then_knows(
    cluster: EmbeddedCluster, admin: AdminClient, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    cluster.kill(3)
    wait_for_isr(cluster, topic, {1, 2})
    grown = NewPartitions(topic, 2, replica_assignment=[[2, 1, 4]])
    admin.create_partitions([grown])[topic].result(60)
    create(cluster, f"{topic}-other", [[1, 2]])
    delete(cluster, f"{topic}-other")
    wait_for_isr(cluster, topic, {1, 2, 4}, partition=1)
    send(cluster, topic, [b"x"], partition=1)
    cluster.restart(3)
    wait_for_isr(cluster, topic, {1, 2, 3})
    assert state(cluster, topic, 1, seen_by=3) == state(cluster, topic, 1, seen_by=1) is not None
    assert read(cluster, topic, 1, partition=1) == [b"x"]
