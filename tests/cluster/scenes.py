"""What tests of a cluster do again and again: a topic, records into it, and whether all copies of it are the same."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.broker_process import command, first_line
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.replica_bytes import differences
from tests.cluster.workload import high_watermark
from tests.raw_client import RawClient
from tests.waiting import wait_until

TIMEOUT_S = 60
MAY_SUCCEED_LATER = (
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 1, **config: str) -> None:
    named = {name.replace("_", "."): text for name, text in config.items()}
    create_topics(cluster, NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=named))


def create_topics(cluster: EmbeddedCluster, *topics: NewTopic) -> None:
    """Creates them, and returns when all replicas are in sync.

    Tries again while a broker has lost its session, as on a busy machine, or has no connection to ZooKeeper.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    left = {topic.topic: topic for topic in topics}
    failures: list[KafkaException] = []

    def are_created() -> bool:
        for name, made in admin.create_topics(list(left.values()), operation_timeout=TIMEOUT_S).items():
            try:
                made.result(2 * TIMEOUT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code not in MAY_SUCCEED_LATER and not (failures and code == KafkaError.TOPIC_ALREADY_EXISTS):
                    raise
                failures.append(error)
                if code in MAY_SUCCEED_LATER:
                    continue
            del left[name]
        return not left

    wait_until(are_created, lambda: f"{list(left)} are created: {failures}", 2 * TIMEOUT_S)
    for topic in topics:
        wait_until_known(cluster, topic.topic)
    cluster.wait_until_in_sync()


def wait_until_known(cluster: EmbeddedCluster, topic: str) -> None:
    """Until every broker knows who leads the topic's first partition; who has just created it is the first to."""
    wait_until(lambda: -1 not in leaders(cluster, topic, cluster.running), f"all know {topic}")


def leaders(cluster: EmbeddedCluster, topic: str, brokers: Iterable[int]) -> set[int]:
    """Who leads the first partition, by the words of these brokers; -1 among them when one does not know."""
    known = set()
    for i in brokers:
        with RawClient(cluster.brokers[i]) as client:
            [found] = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        known.add(found.partitions[0].leader_id if found.partitions else -1)
    return known


def new_producer(cluster: EmbeddedCluster, first: int = 0) -> Producer:
    """Idempotent, acks=all, and a batch for each record. ``first`` is the broker it begins with; 0: any."""
    options = {"enable.idempotence": True, "message.timeout.ms": TIMEOUT_S * 1000, "batch.num.messages": 1}
    servers = cluster.brokers[first] if first else cluster.bootstrap_servers
    return Producer({"bootstrap.servers": servers, "log_level": 0, **options})


def send(
    cluster: EmbeddedCluster,
    topic: str,
    count: int,
    *,
    size: int = 100,
    partition: int = 0,
    producer: Producer | None = None,
) -> int:
    """How many of so many records were acknowledged. Without a producer a new one is made."""
    told: list[object] = []
    producer = producer or new_producer(cluster)
    for _ in range(count):
        value = os.urandom(size)
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: told.append(error))
    producer.flush(TIMEOUT_S)
    return told.count(None)


def end_of(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> int:
    """The high watermark, as soon as the leader knows it: one that was just elected has to hear from its followers."""
    return high_watermark(cluster.bootstrap_servers, topic, partition)


def read_all(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> list[bytes]:
    end = end_of(cluster, topic, partition)
    options = {"group.id": "none", "auto.offset.reset": "error", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **options})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(values) < end and time.monotonic() < deadline:
            values += [message.value() for message in consumer.consume(500, 0.5) if message.error() is None]
        return values
    finally:
        consumer.close()


def copies(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> dict[int, Path]:
    return {i: cluster.broker(i).data_dir / f"{topic}-{partition}" for i in cluster.brokers}


def wait_until_equal(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> None:
    """Until every broker has all that is committed, to the byte."""
    cluster.wait_until_in_sync()
    end, paths = end_of(cluster, topic, partition), copies(cluster, topic, partition)
    wait_until(lambda: not differences(paths, end), lambda: "; ".join(differences(paths, end)))


def creation_error(cluster: EmbeddedCluster, topic: str) -> str | None:
    """Why a topic cannot be created, as the broker says it; None when it was, also by an earlier attempt."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    try:
        admin.create_topics([NewTopic(topic, 1, -1)], operation_timeout=10)[topic].result(2 * TIMEOUT_S)
        return None
    except KafkaException as error:
        return None if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS else str(error)


def run_broker(options: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """A broker that is expected to end by itself: its exit code and all that it logged."""
    process = subprocess.Popen(
        command(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(first_line(options))
        log = process.stderr.read().decode()
        return process.wait(timeout_s), log
    finally:
        process.kill()
        process.communicate()
