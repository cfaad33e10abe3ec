"""Topics with skep.delete.when.acknowledged: the log start follows the slowest group, and segments go with it."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until

OPTIONS = {
    "skep.acknowledged.check.interval.ms": "50",
    "log.retention.check.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
}
SEGMENT_BYTES = 10_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def create(broker: EmbeddedBroker, topic: str, partitions: int = 1, *, asks: bool = True) -> None:
    config = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
    if asks:
        config["skep.delete.when.acknowledged"] = "true"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def configure(broker: EmbeddedBroker, group: str, **options: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in options.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce(client: RawClient, topic: str, count: int, partition: int = 0) -> None:
    """Batches of one record of 1000 bytes."""
    for _ in range(count):
        client.append(topic, batch_of(b"x" * 1000), partition=partition)


def log_start(client: RawClient, topic: str, partition: int = 0) -> int:
    asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -2}
    topics = [{"name": topic, "partitions": [asked]}]
    response = client.ask(apis.LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=topics)
    return int(response.topics[0].partitions[0].offset)


def commit(broker: EmbeddedBroker, group: str, topic: str, offset: int, partition: int = 0) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def checked(broker: EmbeddedBroker, client: RawClient) -> None:
    """Returns when everything that could be deleted is deleted, and a check has found nothing more: another topic, made
    for this, was deleted from after it was asked for."""
    probe = f"probe-{uuid.uuid4().hex[:8]}"
    create(broker, probe)
    produce(client, probe, 3)
    for offset in (1, 2):
        commit(broker, probe, probe, offset)
        wait_until(lambda offset=offset: log_start(client, probe) == offset, "a check has deleted")  # type: ignore[misc]


def segments(broker: EmbeddedBroker, topic: str) -> int:
    return len(list(Path(broker.data_dir).glob(f"{topic}-0/*.log")))


def test_the_log_start_and_the_disk_follow_the_slowest_group(
    broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    create(broker, topic)
    produce(client, topic, 50)
    assert segments(broker, topic) >= 5
    commit(broker, f"{topic}-fast", topic, 45)
    wait_until(lambda: log_start(client, topic) == 45, "the only group's offset")
    wait_until(lambda: segments(broker, topic) <= 2, "segments are deleted")
    # A second group, which starts later, is the slowest from then on.
    commit(broker, f"{topic}-slow", topic, 46)
    commit(broker, f"{topic}-fast", topic, 50)
    wait_until(lambda: log_start(client, topic) == 46, "the slowest group's offset")
    checked(broker, client)
    assert log_start(client, topic) == 46
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_consumer_groups([f"{topic}-slow"])[f"{topic}-slow"].result(30)
    wait_until(lambda: log_start(client, topic) == 50, "the deleted group does not count")
    # The active segment has to be replaced, which the check of retention does.
    wait_until(lambda: segments(broker, topic) == 1, "nothing is left")
    produce(client, topic, 2)
    checked(broker, client)
    assert log_start(client, topic) == 50


def test_topics_without_groups_and_topics_that_do_not_ask_keep_everything(
    broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    quiet = f"{topic}-quiet"
    create(broker, topic)
    create(broker, quiet, asks=False)
    for name in (topic, quiet):
        produce(client, name, 20)
    commit(broker, f"{topic}-g", quiet, 20)
    checked(broker, client)
    assert (log_start(client, topic), log_start(client, quiet)) == (0, 0)


def test_a_partition_that_a_group_has_no_offset_for_is_kept(
    broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    create(broker, topic, partitions=2)
    for partition in range(2):
        produce(client, topic, 20, partition)
    commit(broker, f"{topic}-a", topic, 15, partition=0)
    for partition in range(2):
        commit(broker, f"{topic}-b", topic, 20, partition)
    wait_until(lambda: log_start(client, topic, 0) == 15, "both groups have an offset")
    checked(broker, client)
    assert log_start(client, topic, 1) == 0


def test_a_share_group_holds_what_it_has_not_finished(broker: EmbeddedBroker, client: RawClient, topic: str) -> None:
    create(broker, topic)
    produce(client, topic, 30)
    group = f"{topic}-workers"
    # What the worker holds must not go to it again while the test looks at the log.
    configure(broker, group, share_auto_offset_reset="earliest", share_record_lock_duration_ms="60000")
    commit(broker, f"{topic}-reader", topic, 30)
    wait_until(lambda: log_start(client, topic) == 30, "the only group's offset")
    produce(client, topic, 30)
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 10,
    }
    with ShareConsumer(settings) as worker:
        worker.subscribe([topic])
        messages = wait_until(lambda: worker.poll(0.2), "the worker has records")
        first = messages[0].offset()
        assert first == 30
        commit(broker, f"{topic}-reader", topic, 60)
        checked(broker, client)
        assert log_start(client, topic) == 30
        for message in messages[:5]:
            worker.acknowledge(message)
        worker.commit_sync()
        wait_until(lambda: log_start(client, topic) == 35, "what the worker has finished is deleted")
        for message in messages[6:]:
            worker.acknowledge(message)
        worker.commit_sync()
        checked(broker, client)
        assert log_start(client, topic) == 35
