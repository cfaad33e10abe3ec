"""A cluster whose coordinators are on every broker, and which of them coordinates what."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from skep.coordination.partitioner import partition_for
from skep.testing import EmbeddedCluster
from tests.cluster.scenes import create_topics
from tests.cluster.workload import may_pass
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
    KafkaError.REQUEST_TIMED_OUT,
)
PATIENCE_S = 120


@contextlib.contextmanager
def running_cluster(metadata: str, *topics: str, config: Mapping[str, str] | None = None) -> Iterator[EmbeddedCluster]:
    """Three brokers with topics of ``PARTITIONS`` partitions, a replica of each on every broker."""
    with EmbeddedCluster(3, metadata=metadata, config={**OPTIONS, **(config or {})}) as cluster:
        create_topics(cluster, *(NewTopic(name, PARTITIONS, len(cluster.brokers)) for name in topics))
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
    return _until_done(lambda: consumer.committed(partitions, timeout=30), "the coordinator says what is committed")


def commit_offsets(servers: str, group: str, offsets: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Commits them for a group without members, and again while its coordinator moves."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    with contextlib.closing(consumer):
        return _until_done(
            lambda: consumer.commit(offsets=list(offsets), asynchronous=False), f"the offsets of {group} are committed"
        )


def _until_done(work: Callable[[], list[TopicPartition]], what: str) -> list[TopicPartition]:
    failures: list[KafkaException] = []

    def result() -> list[TopicPartition]:
        try:
            return list(work())
        except KafkaException as error:
            if not may_pass(error, MOVING):
                raise
            failures.append(error)
            return []

    return wait_until(result, lambda: f"{what}: {failures[-1]}", PATIENCE_S)


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
