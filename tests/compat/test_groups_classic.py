"""Classic groups with stock clients: every assignor, members that come, go, freeze and die, static ones that return."""

import asyncio
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from skep.coordination.group_records import GroupMetadataValue, decode_group_record
from skep.coordination.partitioner import partition_for
from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_consumer, confluent_producer, take
from tests.compat.group_members import Member, members_of, wait_until_read, wait_until_shared
from tests.waiting import wait_until

PARTITIONS = 6
OFFSETS_PARTITIONS = 50
ASSIGNORS = [
    ("confluent", "range"),
    ("confluent", "roundrobin"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]
CLIENTS = [("confluent", "range"), ("kafka-python", "range"), ("aiokafka", "range")]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Of its own: sessions may be shorter than Kafka lets them be, so that nobody has to wait for the dead for long."""
    with EmbeddedBroker(options={"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def create(servers: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def write(servers: str, topic: str, *values: str, partitions: int = PARTITIONS) -> set[str]:
    producer = confluent_producer(servers)
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0
    return set(values)


@pytest.mark.parametrize(("client", "strategy"), ASSIGNORS)
def test_partitions_are_shared_as_members_come_and_go(servers: str, topic: str, client: str, strategy: str) -> None:
    create(servers, topic)
    values = write(servers, topic, *(f"before {n}" for n in range(30)))
    with members_of(servers, topic, topic, client, strategy) as start:
        first = start()
        wait_until_shared([first], PARTITIONS)
        wait_until_read([first], values)
        second, third = start(), start()
        wait_until_shared([first, second, third], PARTITIONS)
        first.stop()
        wait_until_shared([second, third], PARTITIONS)
        later = write(servers, topic, *(f"after {n}" for n in range(30)))
        wait_until_read([second, third], later)


def test_an_assignor_that_only_the_clients_know_is_obeyed(servers: str, topic: str) -> None:
    create(servers, topic)
    with members_of(servers, topic, topic, "kafka-python", "first-takes-all") as start:
        members = [start(), start()]
        wait_until_shared(members, PARTITIONS, owners=1)
        [owner] = [member for member in members if member.owned]
        owner.stop()
        members.remove(owner)
        wait_until_shared(members, PARTITIONS)


def test_clients_of_three_libraries_share_one_group(servers: str, topic: str) -> None:
    create(servers, topic)
    values = write(servers, topic, *(f"egg {n}" for n in range(60)))
    with members_of(servers, topic, topic, "confluent", "range") as start:
        members = [start(client=client) for client in ("confluent", "kafka-python", "aiokafka")]
        wait_until_shared(members, PARTITIONS)
        wait_until_read(members, values)


@pytest.mark.parametrize(("client", "strategy"), CLIENTS)
def test_a_member_too_many_stands_by_and_takes_over_from_one_that_dies(
    servers: str, topic: str, client: str, strategy: str
) -> None:
    create(servers, topic, 2)
    with members_of(servers, topic, topic, client, strategy) as start:
        members = [start() for _ in range(3)]
        wait_until_shared(members, 2, owners=2)
        wait_until(lambda: all(member.owned is not None for member in members), "the third knows that it has nothing")
        [idle] = [member for member in members if not member.owned]
        busy = [member for member in members if member is not idle]
        busy[0].kill()
        wait_until_shared([busy[1], idle], 2)
        values = write(servers, topic, "one", "two", partitions=2)
        wait_until_read([busy[1], idle], values)


@pytest.mark.parametrize(("client", "strategy"), [*CLIENTS, ("confluent", "cooperative-sticky")])
def test_a_frozen_member_loses_its_partitions_and_gets_some_back_when_it_wakes_up(
    servers: str, topic: str, client: str, strategy: str
) -> None:
    create(servers, topic)
    with members_of(servers, topic, topic, client, strategy) as start:
        frozen, other = start(), start()
        wait_until_shared([frozen, other], PARTITIONS)
        frozen.freeze()
        wait_until_shared([other], PARTITIONS)
        values = write(servers, topic, *(f"meanwhile {n}" for n in range(12)))
        wait_until_read([other], values)
        frozen.thaw()
        wait_until_shared([frozen, other], PARTITIONS)


def test_each_group_gets_everything(servers: str, topic: str) -> None:
    create(servers, topic)
    values = write(servers, topic, *(f"egg {n}" for n in range(30)))
    with members_of(servers, topic, topic, "confluent", "range") as start:
        members = [start(group=f"{topic}-{n}", client=client) for n, (client, _) in enumerate(CLIENTS)]
        for member in members:
            wait_until_shared([member], PARTITIONS)
            wait_until_read([member], values)


def generations(servers: str, group: str) -> list[int]:
    """Those that the log knows of, as they were written."""
    place = confluent_kafka.TopicPartition("__consumer_offsets", partition_for(group, OFFSETS_PARTITIONS), 0)
    reader = confluent_consumer(servers)
    _, end = reader.get_watermark_offsets(place, timeout=PATIENCE_S)
    reader.assign([place])
    records = [decode_group_record(message.key(), message.value()) for message in take(reader, end)]
    reader.close()
    return [
        value.generation
        for key, value in filter(None, records)
        if isinstance(value, GroupMetadataValue) and key.group == group
    ]


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_a_static_member_restarts_without_a_rebalance(servers: str, topic: str, client: str) -> None:
    create(servers, topic)
    with members_of(servers, topic, topic, client, "range") as start:
        session = {"session_ms": 60_000}
        first, second = start(instance="a", **session), start(instance="b", **session)
        wait_until_shared([first, second], PARTITIONS)
        before, seen_by_first, generation = second.owned, list(first.assignments), generations(servers, topic)[-1]
        second.stop()
        again = start(instance="b", **session)
        wait_until(lambda: again.owned == before, f"the member has {before} again: {again.owned}")
        values = write(servers, topic, *(f"after {n}" for n in range(12)))
        wait_until_read([first, again], values)
        assert first.assignments == seen_by_first
        assert generations(servers, topic)[-1] == generation


def test_what_was_read_before_a_member_died_is_not_read_again_once_it_was_committed(servers: str, topic: str) -> None:
    create(servers, topic)
    values = write(servers, topic, *(f"egg {n}" for n in range(60)))
    with members_of(servers, topic, topic, "confluent", "range") as start:
        member = start()
        wait_until_read([member], values)
        wait_until(lambda: committed(servers, topic) == 60, "all offsets are committed")
        member.kill()
        heir = start()
        wait_until_shared([heir], PARTITIONS)
        later = write(servers, topic, "one more")
        wait_until_read([heir], later)
        assert {value for _, _, value in heir.read} == later


def committed(servers: str, group: str) -> int:
    """The sum of the offsets that the group has committed in the topic of its name."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    partitions = [confluent_kafka.TopicPartition(group, number) for number in range(PARTITIONS)]
    offsets = reader.committed(partitions, timeout=PATIENCE_S)
    reader.close()
    return sum(max(0, each.offset) for each in offsets)


def test_a_group_goes_on_after_the_broker_was_killed(topic: str) -> None:
    with EmbeddedBroker(options={"group.min.session.timeout.ms": "500"}) as broker:
        servers = broker.bootstrap_servers
        create(servers, topic)
        with members_of(servers, topic, topic, "confluent", "range") as start:
            members: list[Member] = [start(session_ms=30_000) for _ in range(2)]
            wait_until_shared(members, PARTITIONS)
            before = generations(servers, topic)
            broker.kill()
            broker.restart()
            values = write(servers, topic, *(f"after {n}" for n in range(30)))
            wait_until_read(members, values)
            assert generations(servers, topic) == before, "nobody had to join again"


# Seeking, pausing, committing.


def test_librdkafka_seeks_pauses_and_commits_in_a_group(servers: str, topic: str) -> None:
    create(servers, topic, 1)
    write(servers, topic, *(f"{n}" for n in range(10)), partitions=1)
    config = {
        "bootstrap.servers": servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])
    assert [message.value() for message in take(consumer, 5)] == [b"0", b"1", b"2", b"3", b"4"]
    place = confluent_kafka.TopicPartition(topic, 0)
    consumer.pause([place])
    consumer.seek(confluent_kafka.TopicPartition(topic, 0, 8))
    assert consumer.poll(0.2) is None
    consumer.resume([place])
    assert [message.value() for message in take(consumer, 2)] == [b"8", b"9"]
    [stored] = consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 3)], asynchronous=False)
    assert stored.error is None
    assert consumer.committed([place], timeout=PATIENCE_S)[0].offset == 3
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=True)
    wait_until(lambda: consumer.committed([place], timeout=PATIENCE_S)[0].offset == 7, "the offset is committed")
    consumer.close()
    again = confluent_kafka.Consumer(config)
    again.subscribe([topic])
    assert take(again, 1)[0].value() == b"7"
    again.close()


def test_kafka_python_seeks_pauses_and_commits_in_a_group(servers: str, topic: str) -> None:
    create(servers, topic, 1)
    write(servers, topic, *(f"{n}" for n in range(10)), partitions=1)
    options = {
        "bootstrap_servers": servers,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "consumer_timeout_ms": PATIENCE_S * 1000,
    }
    consumer = kafka.KafkaConsumer(topic, **options)
    place = kafka.TopicPartition(topic, 0)
    assert next(consumer).value == b"0"
    consumer.pause(place)
    assert consumer.poll(timeout_ms=200) == {}
    consumer.resume(place)
    consumer.seek(place, 8)
    assert next(consumer).value == b"8"
    consumer.commit({place: kafka.OffsetAndMetadata(3, "note", -1)})
    assert consumer.committed(place) == 3
    consumer.commit_async({place: kafka.OffsetAndMetadata(7, "", -1)}).add_callback(lambda _: None)
    wait_until(lambda: consumer.poll(timeout_ms=10) is not None and consumer.committed(place) == 7, "7 is committed")
    consumer.close()
    again = kafka.KafkaConsumer(topic, **options)
    assert next(again).value == b"7"
    again.close()


def test_aiokafka_seeks_pauses_and_commits_in_a_group(servers: str, topic: str) -> None:
    create(servers, topic, 1)
    write(servers, topic, *(f"{n}" for n in range(10)), partitions=1)
    options = {
        "bootstrap_servers": servers,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }

    async def consume() -> None:
        place = aiokafka.TopicPartition(topic, 0)
        async with aiokafka.AIOKafkaConsumer(topic, **options) as consumer:
            assert (await consumer.getone()).value == b"0"
            consumer.pause(place)
            assert await consumer.getmany(timeout_ms=200) == {}
            consumer.resume(place)
            consumer.seek(place, 8)
            assert (await consumer.getone()).value == b"8"
            await consumer.commit({place: (3, "note")})
            assert await consumer.committed(place) == 3
            await consumer.commit({place: 7})
        async with aiokafka.AIOKafkaConsumer(topic, **options) as again:
            assert (await again.getone()).value == b"7"

    asyncio.run(asyncio.wait_for(consume(), 2 * PATIENCE_S))


def test_a_group_is_described_with_its_members_and_what_they_have(servers: str, topic: str) -> None:
    create(servers, topic)
    with members_of(servers, topic, topic, "confluent", "range") as start:
        members = [start(), start(client="aiokafka")]
        wait_until_shared(members, PARTITIONS)
        admin = AdminClient({"bootstrap.servers": servers})
        described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    assert {member.host for member in described.members} == {"/127.0.0.1"}
    owned = [each.partition for member in described.members for each in member.assignment.topic_partitions]
    assert sorted(owned) == list(range(PARTITIONS))
