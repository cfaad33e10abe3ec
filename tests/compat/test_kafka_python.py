"""kafka-python: producer, consumer without a group, admin client."""

import time
from collections.abc import Iterator

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic, OffsetSpec
from kafka.errors import InvalidReplicationFactorError, MessageSizeTooLargeError, TopicAlreadyExistsError

from tests.compat.clients import PATIENCE_S

PATIENCE_MS = PATIENCE_S * 1000


@pytest.fixture
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture
def consumer(servers: str) -> Iterator[kafka.KafkaConsumer]:
    client = kafka.KafkaConsumer(
        bootstrap_servers=servers, group_id=None, consumer_timeout_ms=PATIENCE_MS, auto_offset_reset="earliest"
    )
    yield client
    client.close()


def send(servers: str, topic: str, values: list[bytes], **options: object) -> list[int]:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, **options)
    try:
        futures = [producer.send(topic, value, partition=0) for value in values]
        return [future.get(timeout=PATIENCE_S).offset for future in futures]
    finally:
        producer.close()


def take(consumer: kafka.KafkaConsumer, count: int) -> list[bytes]:
    return [next(consumer).value for _ in range(count)]


VALUES = [b"%d" % n for n in range(300)]


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 0, "enable_idempotence": False},
        {"acks": 1, "enable_idempotence": False},
        {"acks": "all", "enable_idempotence": False},
        {"enable_idempotence": True},
    ],
    ids=["acks 0", "acks 1", "acks all", "idempotent"],
)
def test_a_producer_writes_in_order(
    servers: str, consumer: kafka.KafkaConsumer, topic: str, options: dict[str, object]
) -> None:
    offsets = send(servers, topic, VALUES, **options)
    if options.get("acks") != 0:
        assert offsets == list(range(len(VALUES)))
    consumer.assign([kafka.TopicPartition(topic, 0)])
    assert take(consumer, len(VALUES)) == VALUES


def test_a_message_too_large_is_an_error(servers: str, admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "1000"})])
    with pytest.raises(MessageSizeTooLargeError):
        send(servers, topic, [b"x" * 2000])


def test_seek_pause_and_offsets(servers: str, consumer: kafka.KafkaConsumer, topic: str) -> None:
    send(servers, topic, VALUES)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: len(VALUES)}
    consumer.seek(partition, 297)
    assert take(consumer, 3) == VALUES[297:]
    assert consumer.position(partition) == 300
    consumer.pause(partition)
    consumer.seek(partition, 10)
    assert consumer.poll(timeout_ms=100) == {}
    consumer.resume(partition)
    assert take(consumer, 1) == [b"10"]


def test_offsets_for_times_are_exact(servers: str, consumer: kafka.KafkaConsumer, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, compression_type="gzip", linger_ms=50)
    base = int(time.time() * 1000) - 60_000
    for n in range(50):
        producer.send(topic, b"x", partition=0, timestamp_ms=base + 10 * n)
    producer.close()
    partition = kafka.TopicPartition(topic, 0)
    found = consumer.offsets_for_times({partition: base + 101})[partition]
    assert (found.offset, found.timestamp) == (11, base + 110)
    assert consumer.offsets_for_times({partition: base + 1000})[partition] is None


def test_read_committed_reads_everything_where_there_are_no_transactions(servers: str, topic: str) -> None:
    send(servers, topic, VALUES)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", consumer_timeout_ms=PATIENCE_MS
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    assert take(consumer, len(VALUES)) == VALUES
    consumer.close()


def test_topics_are_administered(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    assert topic in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics([NewTopic(f"{topic}-2", 2, 3)])
    admin.create_partitions({topic: 5})
    [described] = admin.describe_topics([topic])
    assert len(described["partitions"]) == 5
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_configs_are_administered(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])

    def value_of(option: str) -> str:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        [configs] = [by_name[topic] for by_name in described.values()]
        return str(configs[option]["value"])

    assert value_of("retention.ms") == "604800000"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1234"})])
    assert value_of("retention.ms") == "1234"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": ("DELETE", None)})])
    assert value_of("retention.ms") == "604800000"


def test_records_offsets_and_the_cluster_are_administered(servers: str, admin: KafkaAdminClient, topic: str) -> None:
    send(servers, topic, VALUES)
    partition = kafka.TopicPartition(topic, 0)
    admin.delete_records({partition: 100})
    for spec, offset in ((OffsetSpec.EARLIEST, 100), (OffsetSpec.LATEST, 300), (OffsetSpec.EARLIEST_LOCAL, 100)):
        assert admin.list_partition_offsets({partition: spec})[partition].offset == offset
    cluster = admin.describe_cluster()
    assert cluster["controller_id"] == 1
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [servers]
    assert topic in str(admin.describe_log_dirs())
