"""confluent-kafka's AdminClient: topics, partitions, configs, records, offsets, the cluster."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.clients import PATIENCE_S, confluent_producer


@pytest.fixture
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def result_of(futures: dict[Any, Any]) -> Any:
    [future] = futures.values()
    return future.result(PATIENCE_S)


def error_of(futures: dict[Any, Any]) -> Any:
    with pytest.raises(KafkaException) as raised:
        result_of(futures)
    return raised.value.args[0]


def configs_of(admin: AdminClient, kind: ResourceType, name: str) -> Any:
    return result_of(admin.describe_configs([ConfigResource(kind, name)]))


def write(servers: str, topic: str, count: int) -> None:
    producer = confluent_producer(servers)
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def test_topics_are_created_listed_and_deleted(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "5000"})]))
    described = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    assert described.error is None
    assert sorted(described.partitions) == [0, 1, 2]
    assert {partition.leader for partition in described.partitions.values()} == {1}
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics
    again = error_of(admin.create_topics([NewTopic(topic, 1)]))
    assert again.code() == KafkaError.TOPIC_ALREADY_EXISTS
    result_of(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    assert error_of(admin.delete_topics([topic])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_refusals_say_what_is_wrong(admin: AdminClient, topic: str) -> None:
    for wanted, code, words in (
        (NewTopic(topic, 1, 3), KafkaError.INVALID_REPLICATION_FACTOR, "1 broker(s)"),
        (NewTopic(topic, 1, config={"color": "red"}), KafkaError.INVALID_CONFIG, "color"),
        (NewTopic(topic, 1, config={"retention.ms": "x"}), KafkaError.INVALID_CONFIG, "retention.ms"),
        (NewTopic("a/b", 1), KafkaError.TOPIC_EXCEPTION, "a/b"),
    ):
        error = error_of(admin.create_topics([wanted]))
        assert error.code() == code
        assert words in error.str()


def test_validate_only_creates_nothing(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)], validate_only=True))
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics


def test_partitions_are_added(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)]))
    result_of(admin.create_partitions([NewPartitions(topic, 4)]))
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 4
    fewer = error_of(admin.create_partitions([NewPartitions(topic, 2)]))
    assert fewer.code() == KafkaError.INVALID_PARTITIONS


def test_configs_are_described_and_altered_incrementally(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)]))
    before = configs_of(admin, ResourceType.TOPIC, topic)
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].is_default
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    result_of(admin.incremental_alter_configs([resource]))
    after = configs_of(admin, ResourceType.TOPIC, topic)
    assert (after["retention.ms"].value, after["retention.ms"].is_default) == ("1000", False)
    undo = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[undo])
    result_of(admin.incremental_alter_configs([resource]))
    assert configs_of(admin, ResourceType.TOPIC, topic)["retention.ms"].value == "604800000"


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_configs_are_replaced_by_the_older_call(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "5000"})]))
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "100000"})
    result_of(admin.alter_configs([resource]))
    configs = configs_of(admin, ResourceType.TOPIC, topic)
    assert configs["segment.bytes"].value == "100000"
    assert configs["retention.ms"].is_default


def test_the_brokers_configs_are_described(admin: AdminClient, servers: str) -> None:
    configs = configs_of(admin, ResourceType.BROKER, "1")
    assert configs["advertised.listeners"].value == servers
    assert configs["log.dirs"].is_read_only
    assert configs["log.segment.bytes"].value == str(1 << 30)


def test_records_are_deleted_and_offsets_listed(admin: AdminClient, servers: str, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)]))
    write(servers, topic, 10)
    deleted = result_of(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4

    def offset(spec: OffsetSpec) -> int:
        return int(result_of(admin.list_offsets({TopicPartition(topic, 0): spec})).offset)

    assert offset(OffsetSpec.earliest()) == 4
    assert offset(OffsetSpec.latest()) == 10
    assert 4 <= offset(OffsetSpec.max_timestamp()) <= 9
    assert offset(OffsetSpec.for_timestamp(1)) == 4
    too_far = error_of(admin.delete_records([TopicPartition(topic, 0, 11)]))
    assert too_far.code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_the_cluster_and_topics_are_described(admin: AdminClient, servers: str, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 2)]))
    cluster = admin.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [servers]
    assert cluster.controller.id == 1
    described = result_of(admin.describe_topics(TopicCollection([topic]), request_timeout=PATIENCE_S))
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 2, False)
    assert [node.id for node in described.partitions[0].isr] == [1]
    missing = error_of(admin.describe_topics(TopicCollection([f"{topic}-none"]), request_timeout=PATIENCE_S))
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
