"""skep.delete.when.acknowledged in a cluster: leaders and coordinators are on all brokers, and brokers die."""

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import (
    COORDINATOR_PARTITIONS,
    OPTIONS,
    assert_no_bug_was_logged,
    bring_back,
    commit_offsets,
)
from tests.cluster.driving import LONG_SESSIONS, ask
from tests.cluster.scenes import create_topics
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until

TOPIC, RECORDS, PARTITIONS = "orders", 30, 3
GROUPS = [f"group-{number}" for number in range(COORDINATOR_PARTITIONS + 2)]
"""Enough for several coordinators to have one."""


def log_starts(cluster: EmbeddedCluster) -> list[int]:
    found = []
    for partition in range(PARTITIONS):
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -2}
        topics = [{"name": TOPIC, "partitions": [asked]}]
        body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        leader = wait_until(lambda one=partition: leader_of(cluster, one), "there is a leader")  # type: ignore[misc]
        found.append(int(ask(cluster, leader, apis.LIST_OFFSETS, 6, **body).topics[0].partitions[0].offset))
    return found


def leader_of(cluster: EmbeddedCluster, partition: int) -> int | None:
    leader = cluster.leader_of(TOPIC, partition)
    return leader if leader in cluster.running else None


def commit(cluster: EmbeddedCluster, group: str, offset: int) -> None:
    offsets = [TopicPartition(TOPIC, partition, offset) for partition in range(PARTITIONS)]
    commit_offsets(cluster.bootstrap_servers, group, offsets)


def test_the_log_starts_follow_the_slowest_group_when_a_broker_dies() -> None:
    config = {**OPTIONS, **LONG_SESSIONS, "skep.acknowledged.check.interval.ms": "50"}
    with EmbeddedCluster(3, config=config) as cluster:
        create_topics(cluster, NewTopic(TOPIC, PARTITIONS, 3, config={"skep.delete.when.acknowledged": "true"}))
        for partition in range(PARTITIONS):
            with RawClient(cluster.brokers[cluster.leader_of(TOPIC, partition)]) as client:
                for _ in range(RECORDS):
                    client.append(TOPIC, batch_of(b"x"), partition=partition)
        for group in GROUPS:
            commit(cluster, group, 5)
        wait_until(lambda: log_starts(cluster) == [5] * PARTITIONS, "all are at 5")
        cluster.kill(1)
        # The last group holds what the others have finished, wherever its coordinator is meanwhile. A new leader may
        # begin below 5: it was elected before its next fetch would have told it of the deletion.
        for group in GROUPS[:-1]:
            commit(cluster, group, 20)
            assert max(log_starts(cluster)) == 5
        commit(cluster, GROUPS[-1], 15)
        wait_until(lambda: log_starts(cluster) == [15] * PARTITIONS, "all have gone on")
        bring_back(cluster, 1)
        commit(cluster, GROUPS[-1], 20)
        wait_until(lambda: log_starts(cluster) == [20] * PARTITIONS, "all have gone on")
        assert_no_bug_was_logged(cluster)
