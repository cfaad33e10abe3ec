"""Consumer groups (KIP-848) with librdkafka: members that come, go, freeze and die, both protocols in one group."""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_producer
from tests.compat.group_members import Member, members_of, wait_until_read, wait_until_shared
from tests.waiting import wait_until

PARTITIONS = 6

OPTIONS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "200",
}
"""Shorter than Kafka lets them be, so that nobody has to wait for the dead for long."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def create(admin: AdminClient, topic: str, partitions: int = PARTITIONS) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def write(servers: str, topic: str, *values: str, partitions: int = PARTITIONS) -> set[str]:
    producer = confluent_producer(servers)
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return set(values)


def consumer(servers: str, group: str, **options: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )


def poll_until(consumers: list[confluent_kafka.Consumer], condition: Any, what: str) -> None:
    def is_so() -> bool:
        for each in consumers:
            each.poll(0.02)
        return bool(condition())

    wait_until(is_so, what, PATIENCE_S)


def described(admin: AdminClient, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(PATIENCE_S)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_partitions_are_shared_as_members_come_and_go(
    servers: str, admin: AdminClient, topic: str, assignor: str
) -> None:
    create(admin, topic)
    values = write(servers, topic, *(f"before {n}" for n in range(30)))
    with members_of(servers, topic, topic, "confluent", assignor) as start:
        first = start(protocol="consumer")
        wait_until_shared([first], PARTITIONS)
        wait_until_read([first], values)
        second, third = start(protocol="consumer"), start(protocol="consumer")
        wait_until_shared([first, second, third], PARTITIONS)
        three = (first, second, third)
        wait_until(lambda: {len(member.owned or ()) for member in three} == {2}, lambda: f"two for each: {three}")
        first.stop()
        wait_until_shared([second, third], PARTITIONS)
        later = write(servers, topic, *(f"after {n}" for n in range(30)))
        wait_until_read([second, third], later)
        for member in (second, third):
            read = [(partition, offset) for partition, offset, _ in member.read]
            assert len(read) == len(set(read)), "a member read a record twice"


def test_members_that_freeze_or_die_lose_their_partitions_and_the_frozen_one_comes_back(
    servers: str, admin: AdminClient, topic: str
) -> None:
    create(admin, topic)
    with members_of(servers, topic, topic, "confluent", "uniform") as start:
        members = [start(protocol="consumer") for _ in range(3)]
        wait_until_shared(members, PARTITIONS)
        members[0].freeze()
        wait_until_shared(members[1:], PARTITIONS)
        members[0].thaw()
        wait_until_shared(members, PARTITIONS)
        members[1].kill()
        wait_until_shared([members[0], members[2]], PARTITIONS)


def test_more_members_than_partitions_stand_by_and_take_over(servers: str, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 2)
    with members_of(servers, topic, topic, "confluent", "uniform") as start:
        members = [start(protocol="consumer") for _ in range(3)]
        wait_until_shared(members, 2)
        owner = next(member for member in members if member.owned)
        owner.kill()
        wait_until_shared([member for member in members if member is not owner], 2)


def test_a_static_member_restarts_without_a_rebalance(servers: str, admin: AdminClient, topic: str) -> None:
    create(admin, topic)
    with members_of(servers, topic, topic, "confluent", "uniform") as start:
        static, other = start(protocol="consumer", instance="one"), start(protocol="consumer", instance="two")
        wait_until_shared([static, other], PARTITIONS)
        had, told = static.owned, len(other.assignments)
        static.stop()
        again = start(protocol="consumer", instance="one")
        wait_until_shared([again, other], PARTITIONS)
        assert again.owned == had
        assert len(other.assignments) == told
        assert {member.group_instance_id for member in described(admin, topic).members} == {"one", "two"}


def test_an_expression_finds_topics_that_are_created_later(servers: str, admin: AdminClient, topic: str) -> None:
    create(admin, f"{topic}.eu", 2)
    create(admin, f"not-{topic}.eu", 2)
    reader = consumer(servers, topic)
    try:
        reader.subscribe([f"^{topic}\\..*"])
        poll_until([reader], lambda: len(reader.assignment()) == 2, "both partitions are assigned")
        create(admin, f"{topic}.us", 1)
        poll_until([reader], lambda: len(reader.assignment()) == 3, "the new topic is assigned")
        assert {each.topic for each in reader.assignment()} == {f"{topic}.eu", f"{topic}.us"}
    finally:
        reader.close()


def test_a_bad_expression_is_told_to_the_application(servers: str, topic: str) -> None:
    reader = consumer(servers, topic)
    try:
        reader.subscribe([r"^(a)\1"])  # librdkafka does not mind; the broker does, which cannot look back
        errors: list[str] = []

        def has_failed() -> bool:
            message = reader.poll(0.1)
            if message is not None and message.error() is not None:
                errors.append(message.error().str())
            return bool(errors)

        wait_until(has_failed, "the error reaches the application", PATIENCE_S)
        assert "expression" in errors[0]
    finally:
        reader.close()


def test_partitions_that_are_added_are_read(servers: str, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1)
    reader = consumer(servers, topic)
    try:
        reader.subscribe([topic])
        poll_until([reader], lambda: len(reader.assignment()) == 1, "the partition is assigned")
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
        poll_until([reader], lambda: len(reader.assignment()) == 3, "the new partitions are assigned")
    finally:
        reader.close()


def test_offsets_are_committed_and_found_again(servers: str, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 1)
    write(servers, topic, *map(str, range(10)), partitions=1)
    first = consumer(servers, topic)
    first.subscribe([topic])
    read = []

    def has_read(count: int, reader: confluent_kafka.Consumer) -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            read.append(message.offset())
        return len(read) == count

    wait_until(lambda: has_read(4, first), "four records are read", PATIENCE_S)
    assert first.commit(asynchronous=False)[0].offset == 4
    first.close()
    second = consumer(servers, topic)
    try:
        second.subscribe([topic])
        read.clear()
        wait_until(lambda: has_read(6, second), "the others are read", PATIENCE_S)
        assert read == [4, 5, 6, 7, 8, 9]
        second.seek(TopicPartition(topic, 0, 8))
        read.clear()
        wait_until(lambda: has_read(2, second), "what lies before is read again", PATIENCE_S)
        second.commit(offsets=[TopicPartition(topic, 0, 9, metadata="note")], asynchronous=False)
        (found,) = second.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        assert (found.offset, found.metadata) == (9, "note")
    finally:
        second.close()


def test_an_administrator_sees_the_group_its_members_and_what_they_have(
    servers: str, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 2)
    reader = consumer(servers, topic, client_id="the eater")
    reader.subscribe([topic])
    try:
        poll_until([reader], lambda: len(reader.assignment()) == 2, "the partitions are assigned")
        group = described(admin, topic)
        assert (group.state, group.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        assert group.partition_assignor == "uniform"
        (member,) = group.members
        assert (member.client_id, member.host) == ("the eater", "/127.0.0.1")
        for assignment in (member.assignment, member.target_assignment):
            assert sorted((each.topic, each.partition) for each in assignment.topic_partitions) == [
                (topic, 0),
                (topic, 1),
            ]
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_S)
        assert topic in {each.group_id for each in listed.valid}
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    finally:
        reader.close()
    assert described(admin, topic).state == ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert topic not in {each.group_id for each in listed.valid}


def test_a_group_has_configs_of_its_own(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry("consumer.session.timeout.ms", "3000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    asked = ConfigResource(ResourceType.GROUP, topic)
    configs = admin.describe_configs([asked])[asked].result(PATIENCE_S)
    assert configs["consumer.session.timeout.ms"].value == "3000"
    assert configs["consumer.heartbeat.interval.ms"].value == "200"


def test_a_group_goes_on_where_it_was_when_the_broker_was_killed(topic: str) -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        create(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), topic)
        with members_of(broker.bootstrap_servers, topic, topic, "confluent", "uniform") as start:
            members = [start(protocol="consumer") for _ in range(2)]
            wait_until_shared(members, PARTITIONS)
            had = [member.owned for member in members]
            broker.kill()
            broker.restart()
            values = write(broker.bootstrap_servers, topic, *map(str, range(12)))
            wait_until_read(members, values)
            assert [member.owned for member in members] == had


# Both protocols in one group.


def kinds(admin: AdminClient, group: str) -> ConsumerGroupType:
    kind: ConsumerGroupType = described(admin, group).type
    return kind


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(
    servers: str, admin: AdminClient, topic: str, strategy: str
) -> None:
    create(admin, topic)
    values = write(servers, topic, *(f"before {n}" for n in range(30)))
    with members_of(servers, topic, topic, "confluent", strategy) as start:
        old: list[Member] = [start(), start()]
        wait_until_shared(old, PARTITIONS)
        wait_until_read(old, values)
        assert kinds(admin, topic) is ConsumerGroupType.CLASSIC
        new = [start(protocol="consumer", strategy="uniform")]
        wait_until_shared([*old, *new], PARTITIONS)
        assert kinds(admin, topic) is ConsumerGroupType.CONSUMER
        old[0].stop()
        new.append(start(protocol="consumer", strategy="uniform"))
        wait_until_shared([old[1], *new], PARTITIONS)
        old[1].stop()
        wait_until_shared(new, PARTITIONS)
        wait_until_read(new, write(servers, topic, *(f"between {n}" for n in range(30))))

        back = [start()]
        wait_until_shared([*back, *new], PARTITIONS)
        new[0].stop()
        new[1].stop()
        wait_until_shared(back, PARTITIONS)
        assert kinds(admin, topic) is ConsumerGroupType.CLASSIC
        wait_until_read(back, write(servers, topic, *(f"after {n}" for n in range(30))))


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
def test_clients_that_know_only_the_classic_protocol_share_a_consumer_group(
    servers: str, admin: AdminClient, topic: str, client: str
) -> None:
    create(admin, topic)
    with members_of(servers, topic, topic, client, "range") as start:
        new = start(client="confluent", protocol="consumer", strategy="uniform")
        wait_until_shared([new], PARTITIONS)
        old = start()
        wait_until_shared([new, old], PARTITIONS)
        assert kinds(admin, topic) is ConsumerGroupType.CONSUMER
        wait_until_read([new, old], write(servers, topic, *map(str, range(30))))
        new.kill()
        wait_until_shared([old], PARTITIONS)
        assert kinds(admin, topic) is ConsumerGroupType.CLASSIC
