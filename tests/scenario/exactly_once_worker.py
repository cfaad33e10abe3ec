"""A process that reads, transforms and writes in transactions, until it is killed or meets an error, which ends it.

``python -m tests.scenario.exactly_once_worker <bootstrap servers> <name>``

The group has committed offsets before the first worker starts (``commit_first_offsets``), and ``auto.offset.reset`` is
``error``: a committed offset that is lost, or a position that is out of range, ends the worker with ``OFFSET_LOST``.
With ``earliest`` a worker would hide such a loss. It would also write eggs twice by a fault of librdkafka 2.16: when a
rebalance overtakes the response to its query for the earliest offset, it repeats the query 500 ms later, and goes back
there although the partition is assigned anew by then (rd_kafka_toppar_handle_Offset, "outdated offset response").
"""

import faulthandler
import os
import sys

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

INPUT, OUTPUT, GROUP = "raw-eggs", "boiled-eggs", "kitchen"
AT_ONCE = 40
PATIENCE_S = 5
WATCHDOG_S = 8
OFFSET_LOST = 3
"""The exit code of a worker that has no offset to continue from."""


def commit_first_offsets(servers: str, partitions: int) -> None:
    """Commits offset 0 of every input partition, before the group has members."""
    first = [TopicPartition(INPUT, partition, 0) for partition in range(partitions)]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    [committed] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, first)]).values()
    assert [one.error for one in committed.result().topic_partitions] == [None] * partitions


def boiled(message: Message) -> bytes:
    return b"boiled-" + message.value()


def work(servers: str, name: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "transaction.timeout.ms": 4_000,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(6 * PATIENCE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "client.id": name,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "session.timeout.ms": 1_500,
            "heartbeat.interval.ms": 300,
            "log_level": 0,
        }
    )
    consumer.subscribe([INPUT])
    while True:
        messages = consumer.consume(AT_ONCE, timeout=0.1)
        if any(message.error() for message in messages):
            raise KafkaException(next(message.error() for message in messages if message.error()))
        if messages:
            # After the broker was away, this process has been seen to stay in send_offsets_to_transaction past its
            # timeout: AddOffsetsToTxn was answered, and nothing more was sent. Whose fault that is, is not known; so
            # that the test is about what is read in the end, a watchdog ends such a process.
            faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
            transform(producer, consumer, messages)
            faulthandler.cancel_dump_traceback_later()


def transform(producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
    producer.begin_transaction()
    read: dict[int, int] = {}
    for message in messages:
        producer.produce(OUTPUT, boiled(message), key=message.value())
        read[message.partition()] = max(read.get(message.partition(), 0), message.offset() + 1)
    offsets = [TopicPartition(INPUT, partition, offset) for partition, offset in read.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)


if __name__ == "__main__":
    try:
        work(*sys.argv[1:])
    except KafkaException as error:
        # Whether the transaction was committed may not be known; the one who takes over reads on from its offsets.
        print(f"{sys.argv[2]}: {error}", file=sys.stderr)
        os._exit(OFFSET_LOST if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET else 1)
