"""Kafka's own Java producer uses transactions v2 with Skep (KIP-890): an epoch for each transaction.

Needs Apache Kafka's jars, which Maven downloads: ``make test-kafka``. ``make test`` leaves this out.
"""

import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.kafka.nodes import jars
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.wire import apis
from skep.zookeeper_server import find_java
from tests.raw_client import RawClient

pytestmark = pytest.mark.kafka

RECORDS = 5_000


def test_a_java_producer_has_an_epoch_for_each_transaction() -> None:
    with EmbeddedBroker() as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("orders", 3)
        _check_transactions(broker.bootstrap_servers)


def test_coordinators_on_other_brokers_add_partitions_for_java_producers() -> None:
    with EmbeddedCluster(3) as cluster:
        with RawClient(cluster.brokers[1]) as client:
            client.create_topic("orders", 3)
        cluster.wait_until_in_sync()
        _check_transactions(cluster.bootstrap_servers)


def _check_transactions(servers: str) -> None:
    _produce_in_transactions(servers, "till-1")
    assert _read_committed(servers) == RECORDS
    with RawClient(servers.split(",")[0]) as client:
        [coordinator] = client.ask(apis.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["till-1"]).coordinators
    with RawClient(f"{coordinator.host}:{coordinator.port}") as client:
        [state] = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["till-1"]).transaction_states
    assert state.transaction_state == "CompleteCommit"
    # Some fifty transactions of 20 ms; before v2 the epoch would be that of InitProducerId, 0.
    assert state.producer_epoch > 5


def _produce_in_transactions(servers: str, transactional_id: str) -> None:
    tool = [find_java(), "-cp", f"{jars()}/*", "org.apache.kafka.tools.ProducerPerformance"]
    flags = ["--topic", "orders", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "5000"]
    transactions = ["--transactional-id", transactional_id, "--transaction-duration-ms", "20"]
    properties = ["--producer-props", f"bootstrap.servers={servers}"]
    ended = subprocess.run([*tool, *flags, *transactions, *properties], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{RECORDS} records sent" in ended.stdout, ended.stdout + ended.stderr


def _read_committed(servers: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", partition, 0) for partition in range(3)])
    records = ends = 0
    while ends < 3:
        for message in consumer.consume(1_000, timeout=1):
            records += message.error() is None
            ends += message.error() is not None
    consumer.close()
    return records
