"""Real clients with exactly the ACLs that they need, over SASL, and what happens without one of them."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from skep.testing import EmbeddedBroker
from skep.testing.embedded_security import EmbeddedSecurity
from tests.waiting import wait_until

ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
WORKER = {"sasl.username": "worker", "sasl.password": "work"}

Grant = Callable[..., None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    security = EmbeddedSecurity("sasl_plaintext")
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    login = security.options({})[name].rstrip(";") + ' user_worker="work";'
    audit = str(tmp_path_factory.mktemp("audit") / "audit.jsonl")
    options = {
        name: login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "skep.audit.log": audit,
        "group.initial.rebalance.delay.ms": "0",
    }
    with EmbeddedBroker(security=security, options=options) as running:
        yield running
    security.close()


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient(broker.client_config)


@pytest.fixture
def grant(admin: AdminClient) -> Iterator[Grant]:
    """Allows the worker something; after the test nothing is allowed any more."""

    def allow(kind: ResourceType, name: str, *operations: AclOperation) -> None:
        for operation in operations:
            binding = AclBinding(
                kind, name, ResourcePatternType.LITERAL, "User:worker", "*", operation, AclPermissionType.ALLOW
            )
            [result] = admin.create_acls([binding]).values()
            result.result(30)

    yield allow
    [deleted] = admin.delete_acls([ANY]).values()
    deleted.result(30)


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    [created] = admin.create_topics([NewTopic(name, 1, 1)]).values()
    created.result(30)
    return name


def of_worker(broker: EmbeddedBroker, **settings: Any) -> dict[str, Any]:
    return {**broker.client_config, **WORKER, **{name.replace("_", "."): value for name, value in settings.items()}}


def produce(producer: Producer, topic: str, count: int = 3) -> list[KafkaError | None]:
    errors: list[KafkaError | None] = []
    for number in range(count):
        producer.produce(topic, str(number), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors


def read(consumer: Consumer, count: int) -> list[bytes]:
    """Returns so many records. Raises KafkaException for an error."""
    found: list[bytes] = []

    def all_there() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message.value())
        return len(found) >= count

    wait_until(all_there, lambda: f"{count} records, only {len(found)}")
    return found


def test_an_idempotent_producer_needs_write_on_its_topic(broker: EmbeddedBroker, grant: Grant, topic: str) -> None:
    grant(TOPIC, topic, WRITE)
    assert produce(Producer(of_worker(broker, enable_idempotence=True)), topic) == [None] * 3


def test_a_producer_without_write_is_refused(
    broker: EmbeddedBroker, admin: AdminClient, grant: Grant, topic: str
) -> None:
    grant(TOPIC, topic, READ)
    [error, *_] = produce(Producer(of_worker(broker, enable_idempotence=False)), topic, 1)
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    place = TopicPartition(topic, 0)
    consumer = Consumer({**broker.client_config, "group.id": "admin"})
    assert consumer.get_watermark_offsets(place, timeout=30) == (0, 0)
    consumer.close()
    records = [json.loads(line) for line in Path(broker.options["skep.audit.log"]).read_text().splitlines()]
    assert any(
        (one["principal"], one["resource"], one["operation"], one["decision"])
        == ("User:worker", topic, "WRITE", "denied")
        for one in records
        if one["event"] == "access"
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_of_a_group_needs_read_on_group_and_topic(
    broker: EmbeddedBroker, grant: Grant, topic: str, protocol: str
) -> None:
    group = f"group-{topic}"
    grant(TOPIC, topic, READ)
    grant(GROUP, group, READ)
    produce(Producer(broker.client_config), topic)
    consumer = Consumer(
        of_worker(
            broker, group_id=group, group_protocol=protocol, auto_offset_reset="earliest", enable_auto_commit=False
        )
    )
    consumer.subscribe([topic])
    assert read(consumer, 3) == [b"0", b"1", b"2"]
    consumer.commit(asynchronous=False)
    assert consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset == 3
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_without_the_group_is_refused(broker: EmbeddedBroker, grant: Grant, topic: str, protocol: str) -> None:
    grant(TOPIC, topic, READ)
    consumer = Consumer(of_worker(broker, group_id=f"group-{topic}", group_protocol=protocol))
    consumer.subscribe([topic])
    with pytest.raises(KafkaException) as caught:
        read(consumer, 1)
    assert caught.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_expression_matches_only_topics_that_its_member_may_describe(
    broker: EmbeddedBroker, admin: AdminClient, grant: Grant, topic: str, protocol: str
) -> None:
    hidden = f"{topic}-hidden"
    [created] = admin.create_topics([NewTopic(hidden, 1, 1)]).values()
    created.result(30)
    group = f"group-{topic}"
    grant(TOPIC, topic, READ)
    grant(GROUP, group, READ)
    producer = Producer(broker.client_config)
    produce(producer, hidden)
    produce(producer, topic)
    consumer = Consumer(of_worker(broker, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"))
    consumer.subscribe([f"^{topic}.*"])
    assert len(read(consumer, 3)) == 3
    assert {place.topic for place in consumer.assignment()} == {topic}
    consumer.close()


def shared(broker: EmbeddedBroker, group: str, topic: str, count: int) -> list[bytes]:
    """Returns so many records of a share group. Raises KafkaException for an error."""
    consumer = ShareConsumer(of_worker(broker, group_id=group))
    consumer.subscribe([topic])
    found: list[bytes] = []

    def all_there() -> bool:
        for message in consumer.poll(0.5):
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message.value())
        return len(found) >= count

    try:
        wait_until(all_there, lambda: f"{count} records, only {len(found)}")
    finally:
        consumer.close()
    return found


def test_a_member_of_a_share_group_needs_read_on_group_and_topic(
    broker: EmbeddedBroker, admin: AdminClient, grant: Grant, topic: str
) -> None:
    group = f"share-{topic}"
    setting = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[setting])
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(30)
    produce(Producer(broker.client_config), topic)
    grant(TOPIC, topic, READ)
    with pytest.raises(KafkaException) as caught:
        shared(broker, group, topic, 1)
    assert caught.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    grant(GROUP, group, READ)
    assert sorted(shared(broker, group, topic, 3)) == [b"0", b"1", b"2"]


def test_a_transaction_needs_its_id_its_topic_and_the_group(broker: EmbeddedBroker, grant: Grant, topic: str) -> None:
    group, name = f"group-{topic}", f"payer-{topic}"
    grant(TOPIC, topic, READ, WRITE)
    grant(GROUP, group, READ)
    grant(ID, name, WRITE)
    consumer = Consumer(of_worker(broker, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False))
    produce(Producer(broker.client_config), topic)
    consumer.subscribe([topic])
    read(consumer, 3)
    producer = Producer(of_worker(broker, transactional_id=name))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"paid")
    place = TopicPartition(topic, 0, 3)
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    assert consumer.committed([place], timeout=30)[0].offset == 3
    consumer.close()


def test_another_transactional_id_is_refused(broker: EmbeddedBroker, grant: Grant, topic: str) -> None:
    grant(TOPIC, topic, WRITE)
    grant(ID, f"payer-{topic}", WRITE)
    producer = Producer(of_worker(broker, transactional_id=f"thief-{topic}"))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(30)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_right_that_is_revoked_ends_an_open_consumer(
    broker: EmbeddedBroker, admin: AdminClient, grant: Grant, topic: str
) -> None:
    grant(TOPIC, topic, READ)
    grant(GROUP, "open", READ)
    producer = Producer(broker.client_config)
    produce(producer, topic)
    consumer = Consumer(of_worker(broker, group_id="open", auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(read(consumer, 3)) == 3
    of_topics = AclBindingFilter(
        TOPIC, topic, ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    [deleted] = admin.delete_acls([of_topics]).values()
    assert [acl.name for acl in deleted.result(30)] == [topic]
    produce(producer, topic)
    with pytest.raises(KafkaException) as caught:
        read(consumer, 1)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()


def test_a_client_sees_the_topics_that_it_may_describe(broker: EmbeddedBroker, grant: Grant, topic: str) -> None:
    worker = AdminClient(of_worker(broker))
    assert topic not in worker.list_topics(timeout=30).topics
    grant(TOPIC, topic, DESCRIBE)
    wait_until(lambda: topic in worker.list_topics(timeout=30).topics, "the topic was not listed")


def test_a_held_topic_needs_write_on_its_target(broker: EmbeddedBroker, grant: Grant, topic: str) -> None:
    """The broker releases held records with its own rights, so nobody may aim them at a topic of others."""
    worker, later = AdminClient(of_worker(broker)), f"{topic}-later"
    grant(TOPIC, later, AclOperation.CREATE, AclOperation.ALTER_CONFIGS, WRITE)
    held = NewTopic(later, 1, 1, config={"skep.held.target": topic})
    with pytest.raises(KafkaException) as refused:
        worker.create_topics([held])[later].result(30)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    worker.create_topics([NewTopic(later, 1, 1, config={"cleanup.policy": "compact"})])[later].result(30)
    target = ConfigEntry("skep.held.target", topic, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, later, incremental_configs=[target])
    with pytest.raises(KafkaException) as refused:
        worker.incremental_alter_configs([change])[change].result(30)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    grant(TOPIC, topic, WRITE)
    worker.incremental_alter_configs([change])[change].result(30)
