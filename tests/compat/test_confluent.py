"""confluent-kafka (librdkafka): producer and consumer."""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TIMESTAMP_LOG_APPEND_TIME, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_consumer, confluent_producer, take


def create(servers: str, topic: str, partitions: int = 1, **config: str) -> None:
    options = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, config=options)])[topic].result(PATIENCE_S)


def send(servers: str, topic: str, values: list[bytes], partition: int = 0, **options: Any) -> list[Any]:
    """The delivery reports, each an error or a message, in the order in which they came."""
    reports: list[Any] = []
    producer = confluent_producer(servers, **options)
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda e, m: reports.append(e or m))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return reports


VALUES = [b"%d" % n for n in range(500)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_producer_with_any_acks_writes_in_order(servers: str, topic: str, acks: str) -> None:
    create(servers, topic)
    reports = send(servers, topic, VALUES, acks=acks)
    assert [report.error() for report in reports] == [None] * len(VALUES)
    if acks != "0":
        assert [report.offset() for report in reports] == list(range(len(VALUES)))
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in take(consumer, len(VALUES))] == VALUES
    consumer.close()


def test_an_idempotent_producer_writes_each_record_once_over_a_kill(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    broker = skep_fresh_broker
    create(broker.bootstrap_servers, topic, flush_messages="1")
    producer = confluent_producer(
        broker.bootstrap_servers, **{"enable.idempotence": True, "linger.ms": 0, "reconnect.backoff.max.ms": 100}
    )
    delivered = threading.Event()
    failures: list[Any] = []

    def report(error: Any, _message: Any) -> None:
        delivered.set()
        if error is not None:
            failures.append(error)

    for number, value in enumerate(VALUES):
        producer.produce(topic, value, partition=0, on_delivery=report)
        producer.poll(0)
        if number == 250:
            producer.poll(PATIENCE_S)
            assert delivered.is_set()
            broker.kill()
            broker.restart()
    assert producer.flush(2 * PATIENCE_S) == 0
    assert failures == []
    consumer = confluent_consumer(broker.bootstrap_servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in take(consumer, len(VALUES))] == VALUES
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, len(VALUES))
    consumer.close()


def test_a_message_too_large_is_the_delivery_reports_error(servers: str, topic: str) -> None:
    create(servers, topic, max_message_bytes="1000")
    [report] = send(servers, topic, [b"x" * 2000])
    assert report.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_missing_topic_is_created_by_the_producer_that_asks_for_it(servers: str, topic: str) -> None:
    [report] = send(servers, topic, [b"egg"])
    assert (report.error(), report.offset()) == (None, 0)


def test_headers_keys_nulls_and_timestamps_come_back_as_they_went(servers: str, topic: str) -> None:
    create(servers, topic)
    producer = confluent_producer(servers)
    now_ms = int(time.time() * 1000)
    sent = [
        (b"k", b"v", [("a", b"1"), ("a", b"2")], now_ms - 5000),
        (None, b"", [("null", None)], now_ms - 4000),
        (b"", None, [], now_ms - 3000),
    ]
    for key, value, headers, timestamp in sent:
        producer.produce(topic, value, key, headers=headers, timestamp=timestamp, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = [(m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in take(consumer, 3)]
    consumer.close()
    assert read == sent


def test_log_append_time_reaches_the_consumer(servers: str, topic: str) -> None:
    create(servers, topic, message_timestamp_type="LogAppendTime")
    send(servers, topic, [b"egg"])
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    [message] = take(consumer, 1)
    consumer.close()
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert abs(timestamp - time.time() * 1000) < 60_000


def test_seek_pause_and_resume(servers: str, topic: str) -> None:
    create(servers, topic, 2)
    for partition in (0, 1):
        send(servers, topic, [b"%d-%d" % (partition, n) for n in range(100)], partition)
    consumer = confluent_consumer(servers)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING), TopicPartition(topic, 1, 90)])
    assert len(take(consumer, 110)) == 110
    consumer.seek(TopicPartition(topic, 0, 95))
    assert [message.offset() for message in take(consumer, 5)] == [95, 96, 97, 98, 99]
    consumer.pause([TopicPartition(topic, 0)])
    for partition in (0, 1):
        send(servers, topic, [b"late-%d" % partition], partition)
    assert [message.value() for message in take(consumer, 1)] == [b"late-1"]
    consumer.resume([TopicPartition(topic, 0)])
    assert [message.value() for message in take(consumer, 1)] == [b"late-0"]
    assert [position.offset for position in consumer.position([TopicPartition(topic, n) for n in (0, 1)])] == [101, 101]
    consumer.close()


def test_offsets_for_times_and_watermarks(servers: str, topic: str) -> None:
    create(servers, topic)
    base = int(time.time() * 1000) - 100_000
    producer = confluent_producer(servers, **{"compression.type": "zstd"})
    for n in range(100):
        producer.produce(topic, b"x", timestamp=base + 10 * n, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_consumer(servers)
    for time_ms, offset in ((base, 0), (base + 1, 1), (base + 500, 50), (base + 990, 99), (base + 991, OFFSET_END)):
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=PATIENCE_S)
        assert found.offset == offset
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 100)
    consumer.close()


def test_a_position_out_of_range_is_reset(servers: str, topic: str) -> None:
    create(servers, topic)
    send(servers, topic, [b"0", b"1"])
    consumer = confluent_consumer(servers, **{"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 1000)])
    assert [message.offset() for message in take(consumer, 2)] == [0, 1]
    consumer.close()


def test_a_consumer_waits_for_what_comes_next(servers: str, topic: str) -> None:
    create(servers, topic)
    consumer = confluent_consumer(servers, **{"fetch.wait.max.ms": 40_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None
    began = time.monotonic()
    send(servers, topic, [b"egg"])
    assert [message.value() for message in take(consumer, 1)] == [b"egg"]
    assert time.monotonic() - began < 30, "the long poll ended with its time and not with the data"
    consumer.close()


def test_a_consumer_is_told_of_the_end(servers: str, topic: str) -> None:
    create(servers, topic)
    send(servers, topic, [b"egg"])
    consumer = confluent_consumer(servers, **{"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in take(consumer, 1)] == [b"egg"]
    end = consumer.poll(PATIENCE_S)
    assert end is not None
    assert (end.error().code(), end.offset()) == (KafkaError._PARTITION_EOF, 1)
    consumer.close()


def test_a_consumer_goes_on_after_the_broker_was_killed(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker
    servers = broker.bootstrap_servers
    create(servers, topic, flush_messages="1")
    send(servers, topic, [b"before"])
    consumer = confluent_consumer(servers, **{"reconnect.backoff.max.ms": 100})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in take(consumer, 1)] == [b"before"]
    broker.kill()
    broker.restart()
    send(servers, topic, [b"after"])
    deadline = time.monotonic() + PATIENCE_S
    values: list[Any] = []
    while not values and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"after"]
