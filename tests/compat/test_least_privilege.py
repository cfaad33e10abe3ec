"""Groups of both protocols and transactions over SASL_SSL, each with the fewest rights that Kafka asks for.

What is one right short is refused, so none of those given is superfluous.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.fuzz.doors import PASSWORD
from tests.fuzz.secured import SecuredBroker, create_users, secured_broker

PATIENCE_S = 60.0
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
Right = tuple[ResourceType, str, AclOperation]


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(secured: SecuredBroker) -> AdminClient:
    """On the listener where everybody may do everything."""
    return AdminClient({"bootstrap.servers": secured.broker.bootstrap_servers})


def create(admin: AdminClient, *topics: str) -> None:
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(PATIENCE_S)


def give(admin: AdminClient, user: str, *rights: Right) -> None:
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, name, operation in rights
    ]
    for future in admin.create_acls(bindings).values():
        future.result(PATIENCE_S)


def take(admin: AdminClient, user: str, kind: ResourceType, name: str) -> None:
    everything = AclBindingFilter(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
    )
    for future in admin.delete_acls([everything]).values():
        assert future.result(PATIENCE_S)


def settings(secured: SecuredBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.ssl_bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(secured.authority),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def write(secured: SecuredBroker, topic: str, *values: str) -> None:
    """By somebody who may do everything."""
    producer = Producer({"bootstrap.servers": secured.broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def next_of(consumer: Consumer) -> Any:
    """The next record, or the error that comes instead."""
    for _ in range(int(PATIENCE_S * 10)):
        message = consumer.poll(0.1)
        if message is not None:
            return message
    raise AssertionError("neither a record nor an error")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_needs_to_read_its_topics_and_the_group(
    secured: SecuredBroker, admin: AdminClient, protocol: str
) -> None:
    topic, user = f"eggs-{protocol}", f"reader-{protocol}"
    create(admin, topic)
    create_users(secured.broker.bootstrap_servers, user)
    give(admin, user, (TOPIC, topic, READ), (GROUP, topic, READ))
    write(secured, topic, "one")
    options = settings(secured, user, group_id=topic, group_protocol=protocol, auto_offset_reset="earliest")
    consumer = Consumer({**options, "enable.auto.commit": False})
    consumer.subscribe([topic])
    message = next_of(consumer)
    assert message.error() is None
    assert message.value() == b"one"
    consumer.commit(message, asynchronous=False)
    take(admin, user, GROUP, topic)
    with pytest.raises(KafkaException) as refused:
        consumer.commit(message, asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


def test_a_group_that_may_not_read_its_topic_is_told_so(secured: SecuredBroker, admin: AdminClient) -> None:
    create(admin, "secret-eggs")
    create_users(secured.broker.bootstrap_servers, "curious")
    give(admin, "curious", (GROUP, "curious", READ))
    consumer = Consumer(settings(secured, "curious", group_id="curious"))
    consumer.subscribe(["secret-eggs"])
    assert next_of(consumer).error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    assert "secret-eggs" not in AdminClient(settings(secured, "curious")).list_topics(timeout=PATIENCE_S).topics


def test_an_idempotent_producer_needs_to_write_its_topic(secured: SecuredBroker, admin: AdminClient) -> None:
    """KIP-679: who may write any topic may do so idempotently."""
    create(admin, "letters", "other-letters")
    create_users(secured.broker.bootstrap_servers, "writer")
    give(admin, "writer", (TOPIC, "letters", WRITE))
    failed: list[KafkaError] = []
    producer = Producer(settings(secured, "writer", enable_idempotence=True))
    producer.produce("letters", "a", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failed == [None]
    producer.produce("other-letters", "b", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failed[1].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_transaction_needs_its_id_its_topics_and_its_group(secured: SecuredBroker, admin: AdminClient) -> None:
    """Consume, transform, produce: the least that Kafka's documentation lists for it."""
    create(admin, "raw", "cooked")
    create_users(secured.broker.bootstrap_servers, "cook")
    give(admin, "cook", (TOPIC, "raw", READ), (TOPIC, "cooked", WRITE), (GROUP, "kitchen", READ))
    write(secured, "raw", "egg")
    producer = Producer(settings(secured, "cook", transactional_id="cook-1"))
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    give(admin, "cook", (TRANSACTION, "cook-1", WRITE))
    consumer = Consumer(settings(secured, "cook", group_id="kitchen", auto_offset_reset="earliest"))
    consumer.subscribe(["raw"])
    message = next_of(consumer)
    assert message.error() is None
    producer = Producer(settings(secured, "cook", transactional_id="cook-1"))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("cooked", message.value())
    position = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    assert consumer.committed(consumer.assignment(), PATIENCE_S)[0].offset == 1
    consumer.close()
