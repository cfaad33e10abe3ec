"""A cluster whose coordinators are on every broker, and which of them coordinates what."""

import contextlib
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.coordination.partitioner import partition_for
from skep.testing import EmbeddedCluster
from tests.waiting import wait_until

COORDINATOR_PARTITIONS = 4
PARTITIONS = 3
OPTIONS = {
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "min.insync.replicas": "2",
}
MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


@contextlib.contextmanager
def running_cluster(metadata: str, *topics: str) -> Iterator[EmbeddedCluster]:
    """Three brokers with topics of ``PARTITIONS`` partitions, a replica of each on every broker."""
    with EmbeddedCluster(3, metadata=metadata, config=OPTIONS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        wanted = [NewTopic(name, PARTITIONS, len(cluster.brokers)) for name in topics]
        for made in admin.create_topics(wanted).values():
            made.result()
        yield cluster


def coordinator_of(cluster: EmbeddedCluster, group: str) -> int:
    """The broker that coordinates the group at the moment; -1 when none does."""
    return cluster.leader_of("__consumer_offsets", partition_for(group, COORDINATOR_PARTITIONS))


def transaction_coordinator_of(cluster: EmbeddedCluster, transactional_id: str) -> int:
    """The same for transactions."""
    return cluster.leader_of("__transaction_state", partition_for(transactional_id, COORDINATOR_PARTITIONS))


def committed_offsets(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """What the group has committed, asked for again while its coordinator moves.

    librdkafka retries OffsetFetch by itself only after COORDINATOR_LOAD_IN_PROGRESS, and then at the same broker. After
    the codes with which Kafka sends clients to another coordinator, ``committed`` looks for it and raises.
    """

    def response() -> list[TopicPartition]:
        try:
            return list(consumer.committed(partitions, timeout=30))
        except KafkaException as error:
            if error.args[0].code() not in MOVING:
                raise
            return []

    return wait_until(response, "the coordinator says what is committed", 60)


def bring_back(cluster: EmbeddedCluster, lost: int) -> None:
    """The broker takes part again, whether it was frozen, stopped or killed."""
    if cluster.broker(lost).is_running:
        cluster.resume(lost)
    else:
        cluster.restart(lost)
    cluster.wait_until_ready()


def assert_no_bug_was_logged(cluster: EmbeddedCluster) -> None:
    for i in cluster.brokers:
        assert "Traceback" not in cluster.log(i)
