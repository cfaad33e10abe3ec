"""Kafka's own Java share consumers and ``kafka-share-groups`` work with Skep's share groups (KIP-932).

Needs Apache Kafka's jars, which Maven downloads: ``make test-kafka``. ``make test`` leaves this out.
"""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.kafka.nodes import jars
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.zookeeper_server import find_java
from tests.raw_client import RawClient
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

RECORDS = 20_000
PARTITIONS = 3


@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
def test_two_java_consumers_acknowledge_each_record_once(mode: str, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("jobs", PARTITIONS)
        _check_shared(broker.bootstrap_servers, mode, tmp_path)


def test_the_share_coordinators_may_be_on_other_brokers(tmp_path: Path) -> None:
    with EmbeddedCluster(3) as cluster:
        with RawClient(cluster.brokers[1]) as client:
            client.create_topic("jobs", PARTITIONS)
        cluster.wait_until_in_sync()
        _check_shared(cluster.bootstrap_servers, "sync", tmp_path)


def _check_shared(servers: str, mode: str, folder: Path) -> None:
    outputs = [folder / "one", folder / "two"]
    consumers = [_consumer(servers, mode, output) for output in outputs]
    try:
        # Members first: one that comes later would find nothing left.
        wait_until(lambda: _printed(servers, "--members").count("consumer-") == 2, "both are members")
        _produce(servers)
        wait_until(lambda: _lags(servers) == [0] * PARTITIONS, lambda: f"all is acknowledged: {_lags(servers)}")
    finally:
        for consumer in consumers:
            consumer.terminate()
        for consumer in consumers:
            consumer.wait(60)
    shares = [_acknowledged(output.read_text()) for output in outputs]
    acknowledged = Counter(shares[0] + shares[1])
    assert len(acknowledged) == RECORDS
    assert set(acknowledged.values()) == {1}
    assert all(shares)


def _tool(name: str, *flags: str) -> list[str]:
    return [find_java(), "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{name}", *flags]


def _consumer(servers: str, mode: str, output: Path) -> "subprocess.Popen[bytes]":
    flags = ["--topic", "jobs", "--group-id", "workers", "--offset-reset-strategy", "earliest"]
    command = _tool("VerifiableShareConsumer", "--bootstrap-server", servers, *flags, "--acknowledgement-mode", mode)
    # It prints every offset, and would wait for whoever does not read a pipe.
    with output.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)


def _produce(servers: str) -> None:
    # Many small batches, so that both consumers have some.
    producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 50})
    for number in range(RECORDS):
        producer.produce("jobs", str(number).encode(), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def _printed(servers: str, *flags: str) -> str:
    command = _tool("consumer.group.ShareGroupCommand", "--bootstrap-server", servers, "--describe", "--group")
    return subprocess.run([*command, "workers", *flags], capture_output=True, text=True, timeout=60).stdout


def _lags(servers: str) -> list[int]:
    rows = [line.split() for line in _printed(servers).splitlines() if line.startswith("workers")]
    return [int(row[4]) for row in rows if row[4] != "-"]


def _acknowledged(output: str) -> list[tuple[int, int]]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [
        (partition["partition"], offset)
        for event in events
        if event["name"] == "offsets_acknowledged"
        for partition in event["partitions"]
        for offset in partition["offsets"]
    ]
