"""Transactions of stock clients: committed, aborted, fenced, timed out, and cut short by the death of the broker."""

import asyncio
import contextlib
import threading

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S, confluent_consumer, confluent_producer, take
from tests.waiting import wait_until

READ_COMMITTED = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}


def transactional(servers: str, transactional_id: str, **options: object) -> confluent_kafka.Producer:
    producer = confluent_producer(servers, **{"transactional.id": transactional_id, **options})
    producer.init_transactions(PATIENCE_S)
    return producer


def produce(producer: confluent_kafka.Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def committed(servers: str, topic: str, count: int) -> list[bytes]:
    """The first ``count`` values that a read_committed reader sees."""
    consumer = confluent_consumer(servers, **READ_COMMITTED)
    consumer.assign([TopicPartition(topic, 0, 0)])
    with contextlib.closing(consumer):
        return [message.value() for message in take(consumer, count)]


def last_stable_offset(servers: str, topic: str) -> int:
    consumer = confluent_consumer(servers, **READ_COMMITTED)
    with contextlib.closing(consumer):
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    return high


def test_confluent_commits_are_seen_and_aborts_are_not(servers: str, topic: str):
    producer = transactional(servers, f"id-of-{topic}")
    for number in range(6):
        producer.begin_transaction()
        produce(producer, topic, b"%d-a" % number, b"%d-b" % number)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    assert committed(servers, topic, 6) == [b"0-a", b"0-b", b"2-a", b"2-b", b"4-a", b"4-b"]


def test_kafka_python_commits_are_seen_and_aborts_are_not(servers: str, topic: str):
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=f"id-of-{topic}")
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number, partition=0).get(PATIENCE_S)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    with contextlib.closing(consumer):
        assert [next(consumer).value for _ in range(2)] == [b"0", b"2"]


def test_aiokafka_commits_are_seen_and_aborts_are_not(servers: str, topic: str):
    async def run() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"id-of-{topic}")
        await producer.start()
        for number in range(4):
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"%d" % number, partition=0)
                    _ = 1 // ((number + 1) % 2)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            return [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == [b"0", b"2"]


def test_a_reader_stops_before_a_transaction_that_is_open(servers: str, topic: str):
    producer = transactional(servers, f"id-of-{topic}")
    producer.begin_transaction()
    produce(producer, topic, b"open")
    plain = confluent_producer(servers)
    produce(plain, topic, b"later")
    assert last_stable_offset(servers, topic) == 0
    producer.commit_transaction(PATIENCE_S)
    assert committed(servers, topic, 2) == [b"open", b"later"]


def test_offsets_of_a_transaction_count_when_it_commits(servers: str, topic: str):
    produce(confluent_producer(servers), topic, b"in-0", b"in-1", b"in-2")
    consumer = confluent_consumer(servers, **{"group.id": f"group-of-{topic}", **READ_COMMITTED})
    consumer.subscribe([topic])
    producer = transactional(servers, f"id-of-{topic}")
    with contextlib.closing(consumer):
        read = take(consumer, 3)
        assert [message.value() for message in read] == [b"in-0", b"in-1", b"in-2"]
        for offset, is_committed, expected in ((1, False, -1001), (2, True, 2), (3, False, 2), (3, True, 3)):
            producer.begin_transaction()
            produce(producer, f"{topic}-out", b"%d" % offset)
            producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), PATIENCE_S
            )
            if is_committed:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
            [found] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
            assert found.offset == expected
    assert committed(servers, f"{topic}-out", 2) == [b"2", b"3"]


def test_kafka_python_and_aiokafka_commit_offsets_in_transactions_too(servers: str, topic: str):
    group = f"group-of-{topic}"
    place = kafka.TopicPartition(topic, 0)
    produce(confluent_producer(servers), topic, b"in-0", b"in-1")
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=f"kafka-python-{topic}")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(f"{topic}-out", b"one", partition=0)
    producer.send_offsets_to_transaction({place: kafka.structs.OffsetAndMetadata(1, "", -1)}, group)
    producer.commit_transaction()
    producer.close()

    async def run() -> int:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"aiokafka-{topic}")
        await producer.start()
        async with producer.transaction():
            await producer.send(f"{topic}-out", b"two", partition=0)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): 2}, group)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return await consumer.committed(aiokafka.TopicPartition(topic, 0)) or -1
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == 2
    assert committed(servers, f"{topic}-out", 2) == [b"one", b"two"]


def test_a_second_producer_of_the_id_fences_the_first_and_aborts_its_transaction(servers: str, topic: str):
    zombie = transactional(servers, f"id-of-{topic}")
    zombie.begin_transaction()
    produce(zombie, topic, b"zombie")
    successor = transactional(servers, f"id-of-{topic}")
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    successor.begin_transaction()
    produce(successor, topic, b"successor")
    successor.commit_transaction(PATIENCE_S)
    assert committed(servers, topic, 1) == [b"successor"]


def test_a_transaction_past_its_timeout_is_aborted_and_readers_go_on(topic: str):
    cleanup = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with EmbeddedBroker(options=cleanup) as broker:
        servers = broker.bootstrap_servers
        silent = transactional(servers, "silent", **{"transaction.timeout.ms": 1_000})
        silent.begin_transaction()
        produce(silent, topic, b"forgotten")
        produce(confluent_producer(servers), topic, b"plain")
        assert committed(servers, topic, 1) == [b"plain"]
        with pytest.raises(KafkaException):
            silent.commit_transaction(PATIENCE_S)


def test_what_was_committed_stays_so_when_the_broker_dies_right_after(topic: str):
    """Also before the markers are written: those that were not are written after the restart."""
    with EmbeddedBroker() as broker:
        servers = broker.bootstrap_servers
        expected = []
        for number in range(8):
            producer = transactional(servers, "dying")
            producer.begin_transaction()
            produce(producer, topic, b"%d" % number)
            if number % 2:
                producer.commit_transaction(PATIENCE_S)
                expected.append(b"%d" % number)
            broker.kill()
            broker.start()
        last = transactional(servers, "dying")
        last.begin_transaction()
        produce(last, topic, b"last")
        last.commit_transaction(PATIENCE_S)
        assert committed(servers, topic, len(expected) + 1) == [*expected, b"last"]
        assert "Traceback" not in broker.log


def test_a_commit_during_which_the_broker_dies_is_whole_or_not_there(topic: str):
    partitions = 5
    with EmbeddedBroker(options={"num.partitions": str(partitions)}) as broker:
        servers = broker.bootstrap_servers
        for number in range(6):
            producer = transactional(servers, "cut-short")
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(topic, b"%d" % number, partition=partition)
            assert producer.flush(PATIENCE_S) == 0
            death = threading.Timer(0.0005 * number, broker.kill)
            death.start()
            with contextlib.suppress(KafkaException):
                producer.commit_transaction(0.2)
            death.join()
            broker.start()
        # A new producer first ends what the old one left.
        last = transactional(servers, "cut-short")
        last.begin_transaction()
        for partition in range(partitions):
            last.produce(topic, b"last", partition=partition)
        last.commit_transaction(PATIENCE_S)
        seen = [values_up_to_last(servers, topic, partition) for partition in range(partitions)]
        assert seen == [seen[0]] * partitions
        assert len(set(seen[0])) == len(seen[0])


def values_up_to_last(servers: str, topic: str, partition: int) -> list[bytes]:
    consumer = confluent_consumer(servers, **READ_COMMITTED)
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    with contextlib.closing(consumer):
        while not values or values[-1] != b"last":
            values.append(take(consumer, 1)[0].value())
    return values


def test_a_timeout_above_the_brokers_limit_is_refused(servers: str, topic: str):
    producer = confluent_producer(servers, **{"transactional.id": f"id-of-{topic}", "transaction.timeout.ms": 900_001})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(PATIENCE_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_the_admin_of_kafka_python_lists_and_describes_transactions(servers: str, topic: str):
    producer = transactional(servers, f"id-of-{topic}")
    producer.begin_transaction()
    produce(producer, topic, b"open")
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    with contextlib.closing(admin):
        described = wait_until(lambda: admin.describe_transactions([f"id-of-{topic}"]), "the transaction is described")
        assert "Ongoing" in str(described)
        assert topic in str(described)
        assert f"id-of-{topic}" in str(admin.list_transactions())
    producer.abort_transaction(PATIENCE_S)
