"""aiokafka: producer, idempotent producer, consumer without a group, admin client. It sends the oldest versions."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

from skep.testing import EmbeddedBroker
from tests.compat.clients import PATIENCE_S

VALUES = [b"%d" % n for n in range(300)]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 2 * PATIENCE_S)

    asyncio.run(bounded())


async def send(servers: str, topic: str, values: list[bytes], **options: object) -> list[int]:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, **options) as producer:
        futures = [await producer.send(topic, value, partition=0) for value in values]
        reports = await asyncio.gather(*futures)
    return [-1 if report is None else report.offset for report in reports]


async def read(servers: str, topic: str, count: int, **options: object) -> list[bytes | None]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest", **options
    )
    consumer.assign([aiokafka.TopicPartition(topic, 0)])
    async with consumer:
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.parametrize(
    "options",
    [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}],
    ids=["acks 0", "acks 1", "acks all", "idempotent"],
)
def test_a_producer_writes_in_order(servers: str, topic: str, options: dict[str, object]) -> None:
    async def test() -> None:
        offsets = await send(servers, topic, VALUES, **options)
        if options.get("acks") != 0:
            assert offsets == list(range(len(VALUES)))
        assert await read(servers, topic, len(VALUES)) == VALUES
        assert await read(servers, topic, len(VALUES), isolation_level="read_committed") == VALUES

    run(test)


def test_an_idempotent_producer_goes_on_over_a_kill(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker

    async def test() -> None:
        servers = broker.bootstrap_servers
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
            for value in VALUES[:100]:
                await producer.send_and_wait(topic, value, partition=0)
            futures = [await producer.send(topic, value, partition=0) for value in VALUES[100:]]
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await asyncio.gather(*futures)
        assert await read(servers, topic, len(VALUES)) == VALUES

    run(test)


def test_seek_offsets_and_times(servers: str, topic: str) -> None:
    async def test() -> None:
        base = int(time.time() * 1000) - 60_000
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, compression_type="lz4") as producer:
            batch = producer.create_batch()
            for n in range(50):
                batch.append(key=None, value=b"%d" % n, timestamp=base + 10 * n)
            await (await producer.send_batch(batch, topic, partition=0))
        partition = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=None)
        consumer.assign([partition])
        async with consumer:
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 50}
            found = (await consumer.offsets_for_times({partition: base + 101}))[partition]
            assert (found.offset, found.timestamp) == (11, base + 110)
            consumer.seek(partition, 48)
            assert [(await consumer.getone()).value for _ in range(2)] == [b"48", b"49"]
            assert await consumer.position(partition) == 50
            assert consumer.highwater(partition) == 50

    run(test)


def test_a_waiting_consumer_gets_what_comes(servers: str, topic: str) -> None:
    async def test() -> None:
        await send(servers, topic, [b"first"])
        partition = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=None, fetch_max_wait_ms=30_000)
        consumer.assign([partition])
        async with consumer:
            consumer.seek(partition, 1)
            waiting = asyncio.ensure_future(consumer.getone())
            began = time.monotonic()
            await send(servers, topic, [b"second"])
            assert (await waiting).value == b"second"
            assert time.monotonic() - began < 20

    run(test)


def test_topics_are_administered(servers: str, topic: str) -> None:
    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "1000"})])
            again = await admin.create_topics([NewTopic(topic, 1, 1)])
            assert again.topic_errors[0][1] == TopicAlreadyExistsError.errno
            await admin.create_partitions({topic: NewPartitions(3)})
            [described] = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3
            with pytest.raises(MessageSizeTooLargeError):
                await send(servers, topic, [b"x" * 2000])
            await send(servers, topic, [b"0", b"1", b"2"])
            partition = aiokafka.TopicPartition(topic, 0)
            deleted = await admin.delete_records({partition: aiokafka.admin.RecordsToDelete(before_offset=2)})
            assert deleted == {partition: 2}
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    run(test)
