"""A cluster whose first client was there before its second broker: the coordinators' topics get their replicas."""

from confluent_kafka import Consumer, TopicPartition

from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import commit_offsets, committed_offsets
from tests.cluster.driving import LONG_SESSIONS, create, wait_for_isr

PARTITIONS = 3
GROUP = "early"
OPTIONS = {**LONG_SESSIONS, "offsets.topic.num.partitions": str(PARTITIONS)}
PLACE = TopicPartition("eggs", 0, 42)


def member(cluster: EmbeddedCluster) -> Consumer:
    options = {"group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
    return Consumer({"bootstrap.servers": cluster.bootstrap_servers, **options})


def test_what_was_committed_with_one_broker_survives_its_death_in_the_cluster_it_became() -> None:
    with EmbeddedCluster(1, config=OPTIONS) as cluster:
        create(cluster, "eggs", [[1]])
        commit_offsets(cluster.bootstrap_servers, GROUP, [PLACE])
        for _ in range(2):
            cluster.add()
        cluster.wait_until_ready()
        for index in range(PARTITIONS):
            wait_for_isr(cluster, "__consumer_offsets", {1, 2, 3}, partition=index)
        cluster.kill(1)
        late = member(cluster)
        [found] = committed_offsets(late, [PLACE])
        late.close()
        assert found.error is None
        assert found.offset == 42
