"""Metadata: which topics are answered, how, and which come into being by being asked for."""

import asyncio
from uuid import UUID

import pytest

from skep.base.errors import ErrorCode, StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch
from skep.broker import authorized_operations
from skep.broker.cluster.departed_brokers import STILL_LISTED_S
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.wire.apis import METADATA
from skep.wire.codec import decode_request

EVERY_VERSION = range(METADATA.oldest, METADATA.newest + 1)


def named(*names):
    return [{"name": name} for name in names]


def codes(response):
    return {topic.name: topic.error_code for topic in response.topics}


def test_all_topics_are_asked_for_with_null_and_in_version_0_with_none(broker):
    broker.create("a")
    broker.create("b", 3)
    for version in EVERY_VERSION:
        response = broker.ask(METADATA, version, topics=[] if version == 0 else None)
        assert sorted(topic.name for topic in response.topics) == ["a", "b"], version
        assert [len(topic.partitions) for topic in response.topics if topic.name == "b"] == [3]


def test_librdkafka_asks_for_all_topics_with_three_bytes_too_many():
    # As confluent-kafka 2.16 sends it: null, then the rest of the four bytes that it had kept for the count. Kafka
    # reads what it expects and does not mind what follows.
    body = decode_request(METADATA.key, 13, memoryview(bytes.fromhex("00 000000 010000")), 0)
    assert body.topics is None


def test_an_empty_list_asks_for_no_topic_from_version_1_on(broker):
    broker.create("a")
    assert [broker.ask(METADATA, version, topics=[]).topics for version in EVERY_VERSION[1:]] == [()] * 13


def test_brokers_cluster_id_and_controller_are_told(broker):
    response = broker.ask(METADATA, topics=[])
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (1, "skep.example", 9092, "shed")
    assert response.controller_id == 1
    assert response.cluster_id == broker.image.cluster_id != ""


def test_a_broker_that_lost_its_registration_still_tells_of_itself(broker):
    broker.services.catalog._current.set_image(broker.image.without_broker(BrokerId(1)))
    assert [node.node_id for node in broker.ask(METADATA, topics=[]).brokers] == [1]


def brokers_told(broker, topics):
    return sorted(node.node_id for node in broker.ask(METADATA, topics=topics).brokers)


def test_a_broker_that_left_is_still_named_for_a_moment_to_those_who_ask_for_leaders(broker):
    broker.create("a")
    become, alone, two = broker.services.catalog._current.set_image, broker.image, BrokerRecord(BrokerId(2), "b", 1)
    become(alone.with_broker(two))
    become(alone)
    assert brokers_told(broker, named("a")) == [1, 2]
    assert brokers_told(broker, []) == brokers_told(broker, None) == [1]

    broker.services.clock.advance_ms(int(STILL_LISTED_S * 1000))
    assert brokers_told(broker, named("a")) == [1]


def test_a_broker_that_came_back_or_is_this_one_is_named_once(broker):
    broker.create("a")
    become, alone, two = broker.services.catalog._current.set_image, broker.image, BrokerRecord(BrokerId(2), "b", 1)
    for image in (alone.with_broker(two), alone, alone.with_broker(BrokerRecord(BrokerId(2), "elsewhere", 2))):
        become(image)
    assert [node.host for node in broker.ask(METADATA, topics=named("a")).brokers if node.node_id == 2] == ["elsewhere"]
    become(broker.image.without_broker(BrokerId(1)))
    assert brokers_told(broker, named("a")) == [1, 2]


def test_a_topic_is_found_by_id_and_an_unknown_id_is_told_as_that(broker):
    made = broker.create("a")
    unknown = UUID(int=17)
    response = broker.ask(METADATA, 12, topics=[{"topic_id": made.topic_id}, {"topic_id": unknown}])
    found, missing = response.topics
    assert (found.name, found.topic_id, found.error_code) == ("a", made.topic_id, 0)
    assert (missing.name, missing.topic_id, missing.error_code) == (None, unknown, ErrorCode.unknown_topic_id)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_in_the_two_versions_that_have_the_field_but_not_the_meaning(broker, version):
    made = broker.create("a")
    (topic,) = broker.ask(METADATA, version, topics=[{"topic_id": made.topic_id, "name": None}]).topics
    assert (topic.error_code, topic.name) == (ErrorCode.invalid_request, "")


def test_a_missing_topic_is_created_with_the_defaults_and_answered_at_once_in_every_version(start_broker):
    broker = start_broker({"num.partitions": "4"})
    for version in EVERY_VERSION:
        (topic,) = broker.ask(METADATA, version, topics=named(f"t{version}"), allow_auto_topic_creation=True).topics
        assert (topic.name, topic.error_code) == (f"t{version}", ErrorCode.none)
        assert [(p.partition_index, p.leader_id, p.error_code) for p in topic.partitions] == [
            (index, 1, 0) for index in range(4)
        ]
    assert len(broker.image.topics) == len(EVERY_VERSION)


def test_nothing_is_created_when_the_request_does_not_want_it(broker):
    response = broker.ask(METADATA, topics=named("a"), allow_auto_topic_creation=False)
    assert codes(response) == {"a": ErrorCode.unknown_topic_or_partition}
    assert not broker.image.topics


def test_nothing_is_created_when_the_broker_does_not_want_it(start_broker):
    broker = start_broker({"auto.create.topics.enable": "false"})
    assert codes(broker.ask(METADATA, 3, topics=named("a"))) == {"a": ErrorCode.unknown_topic_or_partition}
    assert not broker.image.topics


@pytest.mark.parametrize("allowed", [True, False])
def test_a_bad_name_is_refused_and_not_created(broker, allowed):
    response = broker.ask(METADATA, topics=named("a/b", "..", "x" * 250, "good"), allow_auto_topic_creation=allowed)
    assert [topic.error_code for topic in response.topics][:3] == [ErrorCode.invalid_topic_exception] * 3
    assert list(broker.image.topics) == (["good"] if allowed else [])


def test_a_name_that_collides_in_metrics_is_not_created(broker):
    broker.create("a.b")
    assert codes(broker.ask(METADATA, topics=named("a_b"))) == {"a_b": ErrorCode.invalid_topic_exception}


def test_internal_topics_are_not_created_by_being_asked_for(broker):
    (topic,) = broker.ask(METADATA, topics=named("__consumer_offsets")).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.unknown_topic_or_partition, True)


def test_two_clients_that_ask_at_once_both_get_the_one_topic(broker):
    async def both():
        return await asyncio.gather(*(broker.ask_async(METADATA, topics=named("a")) for _ in range(2)))

    first, second = broker.run(both())
    assert codes(first) == codes(second) == {"a": ErrorCode.none}
    assert first.topics[0].topic_id == second.topics[0].topic_id


def test_auto_creation_ends_at_the_most_partitions_that_the_broker_may_hold(start_broker):
    broker = start_broker({"skep.max.partitions": "2"})
    response = broker.ask(METADATA, topics=named("a", "b", "c"))
    assert codes(response) == {"a": 0, "b": 0, "c": ErrorCode.policy_violation}


def test_while_the_metadata_store_fails_the_client_is_told_to_ask_again(broker, monkeypatch):
    async def unavailable(*args, **kwargs):
        raise StoreUnavailable("disk full")

    monkeypatch.setattr(broker.services.catalog, "create_topic", unavailable)
    assert codes(broker.ask(METADATA, topics=named("a"))) == {"a": ErrorCode.leader_not_available}


def test_a_topic_named_many_times_is_answered_once(broker):
    broker.create("a")
    assert len(broker.ask(METADATA, topics=named(*["a"] * 1000)).topics) == 1


def test_authorized_operations_are_told_when_asked_for(broker):
    broker.create("a")
    response = broker.ask(METADATA, 8, topics=named("a"))
    assert response.cluster_authorized_operations == response.topics[0].topic_authorized_operations == -(2**31)
    response = broker.ask(
        METADATA,
        8,
        topics=named("a"),
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000 == authorized_operations.ON_TOPIC
    assert response.cluster_authorized_operations == 0b1_1111_1010_0000 == authorized_operations.ON_CLUSTER


def test_a_partition_whose_leader_is_not_there_says_so(broker):
    broker.create("a")
    gone = BrokerId(9)
    topic = broker.image.topics["a"]
    partition = PartitionRecord((BrokerId(1), gone), (gone,), gone, LeaderEpoch(4))
    changed = type(topic)(topic.name, topic.topic_id, (partition,))
    broker.services.catalog._current.set_image(broker.image.with_topic(changed))
    (told,) = broker.ask(METADATA, topics=named("a")).topics[0].partitions
    assert (told.error_code, told.leader_id, told.leader_epoch) == (ErrorCode.leader_not_available, -1, 4)
    assert (told.replica_nodes, told.isr_nodes, told.offline_replicas) == ((1, 9), (9,), (9,))
