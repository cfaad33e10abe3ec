"""Groups are not served: clients that want one are told so at once, and those that do not are not held up."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import IncompatibleBrokerVersion

from skep.testing import EmbeddedBroker


def consumer_of(broker: EmbeddedBroker) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})


def test_librdkafka_says_that_it_cannot_subscribe(skep_broker: EmbeddedBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": skep_broker.bootstrap_servers})
    producer.produce(topic, b"there")
    assert producer.flush(30) == 0
    consumer = consumer_of(skep_broker)
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    assert message.error().code() == KafkaError._UNSUPPORTED_FEATURE
    consumer.close()


def test_librdkafka_says_that_it_cannot_commit(skep_broker: EmbeddedBroker, topic: str) -> None:
    consumer = consumer_of(skep_broker)
    consumer.assign([TopicPartition(topic, 0, 0)])
    with pytest.raises(KafkaException) as failure:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    assert failure.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
    consumer.close()


def test_kafka_python_says_that_it_cannot_subscribe(skep_broker: EmbeddedBroker, topic: str) -> None:
    consumer = KafkaConsumer(topic, bootstrap_servers=skep_broker.bootstrap_servers, group_id="g")
    with pytest.raises(IncompatibleBrokerVersion, match="JoinGroup"):
        consumer.poll(30_000)
    consumer.close()
