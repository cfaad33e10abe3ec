"""Row share-rabbitmq: records that one client takes and accepts in a second, to RabbitMQ's quorum queues.

Both have the same records waiting, 100 bytes each, and one node. Each client says of every record that it is accepted.

Skep      confluent-kafka's ShareConsumer, explicit acknowledgement of each record, 500 a poll, and a commit after each
          poll, which returns when the broker has confirmed it.
RabbitMQ  pika, a quorum queue, manual acknowledgements, a prefetch of 500, persistent messages. Twice: with an
          acknowledgement for each message, and with one for every 500 (``multiple``); the faster one is the reference.
          The broker does not confirm an acknowledgement.

What the ratio does not say: pika, the usual client in Python, is written in Python, librdkafka in C. And a quorum queue
syncs its log to disk, which Skep, as Kafka, does only for topics that ask for it. The details have the CPU seconds of
both servers.
"""

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import AcknowledgeType, ShareConsumer

from bench.peers import cpu_seconds
from bench.rabbitmq_server import RabbitMissing, rabbitmq
from bench.row import Row, say, spread, take_turns
from bench.share_topics import AT_ONCE, VALUE, Rate, check_all_done, fill, new_group, polled
from skep.testing import EmbeddedBroker

NAMES = ("share-rabbitmq",)

RECORDS = 50_000
ROUNDS = 3
TOPIC = QUEUE = "jobs"
SKEP, EACH, MANY = "skep", "rabbitmq, ack each", f"rabbitmq, ack {AT_ONCE}"


def measure() -> Iterator[Row]:
    try:
        import pika
    except ImportError:
        say("share-rabbitmq is left out: pip install pika")
        return
    try:
        with rabbitmq() as (port, pid), EmbeddedBroker() as broker:
            fill(broker.bootstrap_servers, TOPIC, RECORDS)
            parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
            turns = {
                SKEP: lambda: _skep(broker.bootstrap_servers, broker.pid),
                EACH: lambda: _rabbit(parameters, pid, 1),
                MANY: lambda: _rabbit(parameters, pid, AT_ONCE),
            }
            results = take_turns(turns, str, ROUNDS)
    except RabbitMissing as error:
        say(f"share-rabbitmq is left out: {error}")
        return
    ours, reference = max(results[SKEP]), max(*results[EACH], *results[MANY])
    yield Row(
        "share-rabbitmq",
        "records of 100 B that one client takes and accepts, confluent-kafka, to RabbitMQ's quorum queue with pika",
        5.0,
        "at least",
        ours.rate / reference.rate,
        str(ours),
        str(reference),
        details={
            name: {
                "rate": spread([run.rate for run in runs]),
                "server_cpu_us": spread([run.broker_cpu_us for run in runs], 2),
            }
            for name, runs in results.items()
        },
    )


def _skep(servers: str, pid: int) -> Rate:
    group = new_group(servers)
    settings = {"share.acknowledgement.mode": "explicit", "max.poll.records": AT_ONCE, "log_level": 4}
    consumer = ShareConsumer({"bootstrap.servers": servers, "group.id": group, **settings})
    try:
        consumer.subscribe([TOPIC])
        started = cpu = 0.0
        timed = -1
        for messages in polled(consumer, RECORDS):
            for message in messages:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if failed := [error for error in consumer.commit_sync(60).values() if error is not None]:
                raise RuntimeError(f"a commit failed: {failed[0]}")
            if timed < 0:
                timed, started, cpu = 0, time.perf_counter(), cpu_seconds(pid)
            else:
                timed += len(messages)
        seconds = time.perf_counter() - started
        rate = Rate(timed / seconds, (cpu_seconds(pid) - cpu) / timed * 1e6)
    finally:
        consumer.close()
    check_all_done(servers, group)
    return rate


def _rabbit(parameters: Any, pid: int, at_once: int) -> Rate:
    """Fills the queue, then takes all that is in it."""
    import pika

    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        for _ in range(RECORDS):
            channel.basic_publish("", QUEUE, VALUE, pika.BasicProperties(delivery_mode=2))
        give_up = time.monotonic() + 120
        while channel.queue_declare(QUEUE, passive=True).method.message_count < RECORDS:
            if time.monotonic() > give_up:
                raise RuntimeError("RabbitMQ did not queue all messages within 120 s")
            connection.sleep(0.1)
        count, started, cpu = 0, 0.0, 0.0

        def take(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            nonlocal count, started, cpu
            if count == 0:
                started, cpu = time.perf_counter(), cpu_seconds(pid)
            count += 1
            if count % at_once == 0 or count == RECORDS:
                channel.basic_ack(method.delivery_tag, multiple=at_once > 1)
            if count == RECORDS:
                channel.stop_consuming()

        channel.basic_qos(prefetch_count=max(AT_ONCE, 2 * at_once if at_once > 1 else 0))
        channel.basic_consume(QUEUE, take)
        channel.start_consuming()
        left = channel.queue_declare(QUEUE, passive=True).method.message_count
        seconds = time.perf_counter() - started
        used = cpu_seconds(pid) - cpu
        channel.queue_delete(QUEUE)
    if count != RECORDS or left:
        raise RuntimeError(f"{count} messages were taken and {left} are left")
    return Rate(count / seconds, used / count * 1e6)
