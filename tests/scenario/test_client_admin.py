"""Topics, configs and committed offsets through the blocking client."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import commit_group_offsets, create_topic, topic_configs
from skep.client.cluster_client import ClusterClient
from skep.client.topic_info import describe_topics
from skep.testing import EmbeddedBroker
from tests.waiting import wait_until


@pytest.fixture
def cluster(skep_broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(skep_broker.bootstrap_servers) as cluster:
        yield cluster


def test_a_topic_is_made_once_with_its_partitions_and_configs(cluster: ClusterClient, topic: str) -> None:
    assert create_topic(cluster, topic, 3, {"cleanup.policy": "compact"})
    assert not create_topic(cluster, topic, 5)
    assert describe_topics(cluster, [topic])[topic].partition_count == 3
    configs = topic_configs(cluster, topic)
    assert configs["cleanup.policy"] == "compact"
    assert configs["max.message.bytes"] == "1048588"


def test_a_topic_that_cannot_be_made_is_said_in_the_brokers_words(cluster: ClusterClient, topic: str) -> None:
    with pytest.raises(KafkaError, match=f"topic '{topic}': .*no.such.config") as refused:
        create_topic(cluster, topic, 1, {"no.such.config": "1"})
    assert refused.value.code is ErrorCode.invalid_config
    with pytest.raises(KafkaError) as missing:
        topic_configs(cluster, topic)
    assert missing.value.code is ErrorCode.unknown_topic_or_partition


def test_offsets_of_a_group_are_seen_by_others(cluster: ClusterClient, skep_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(cluster, topic, 2)
    commit_group_offsets(cluster, topic, {})
    commit_group_offsets(cluster, topic, {(topic, 0): 5, (topic, 1): 7})
    commit_group_offsets(cluster, topic, {(topic, 0): 6})
    consumer = Consumer({"bootstrap.servers": skep_broker.bootstrap_servers, "group.id": topic})
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert [place.offset for place in consumer.committed(partitions, 30)] == [6, 7]
    consumer.close()


def test_offsets_of_a_group_with_members_are_theirs(
    cluster: ClusterClient, skep_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(cluster, topic, 1)
    consumer = Consumer({"bootstrap.servers": skep_broker.bootstrap_servers, "group.id": topic})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.05) or consumer.assignment(), "the consumer is a member")
    with pytest.raises(KafkaError, match=f"group '{topic}'") as refused:
        commit_group_offsets(cluster, topic, {(topic, 0): 5})
    assert refused.value.code is ErrorCode.unknown_member_id
    consumer.close()
