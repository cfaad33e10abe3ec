"""Makes ``old_data.tar.gz``: a data directory with its metadata store, as the broker of an earlier commit leaves them.

``test_old_data.py`` opens it with the code of today. Run this with the code of the commit whose format is to be kept,
never with that of today::

    git worktree add --detach ../then f5f7ba1
    PYTHONPATH=../then/src python tests/scenario/make_old_data.py tests/scenario/old_data.tar.gz

It uses nothing but Kafka clients and ``skep.testing``, so that it runs with any commit. What is written is described by
the constants and functions below, and the test says what of it has to be found.
"""

import sys
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.testing import EmbeddedBroker, EmbeddedCluster

OPTIONS = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "200",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
FOR_EVER = {"retention.ms": "-1", "segment.bytes": "2000", "index.interval.bytes": "100"}
TOPICS = {
    "orders": (2, FOR_EVER | {"flush.messages": "1", "message.timestamp.type": "CreateTime"}),
    "ledger": (1, FOR_EVER),
    "prices": (1, FOR_EVER | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "300"}),
}
BASE_MS = 1_700_000_000_000
PATIENCE_S = 150


def main(target: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "data")
        with EmbeddedBroker(data_dir=data, options=OPTIONS) as broker:
            address = broker.bootstrap_servers
            create_topics(address)
            produce_orders(address, range(60))
            delete_orders(address)
            write_ledger(address)
            write_prices(address, data)
            broker.kill()
            broker.restart()
            produce_orders(broker.bootstrap_servers, range(60, 80))
            commit_offset(broker.bootstrap_servers)
        write_copies(Path(directory, "cluster"))
        with tarfile.open(target, "w:gz", compresslevel=9) as archive:
            archive.add(data, "data")
            archive.add(Path(directory, "cluster"), "cluster")


def create_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    new = [NewTopic(name, partitions, 1, config=config) for name, (partitions, config) in TOPICS.items()]
    for created in admin.create_topics(new).values():
        created.result()


def produce_orders(address: str, numbers: range) -> None:
    """An idempotent producer; every order in a batch of its own, in turn in either partition, with every codec."""
    for number in numbers:
        codec = ("none", "gzip", "snappy", "lz4", "zstd")[number // 2 % 5]
        producer = producer_of(address, **{"enable.idempotence": True, "compression.type": codec})
        producer.produce(
            "orders",
            key=f"order-{number}",
            value=f"{number} " * 20,
            partition=number % 2,
            timestamp=BASE_MS + number,
            headers=[("number", str(number).encode())],
        )
        assert producer.flush(30) == 0


def delete_orders(address: str) -> None:
    """The first seven of partition 1."""
    admin = AdminClient({"bootstrap.servers": address})
    for deleted in admin.delete_records([TopicPartition("orders", 1, 7)]).values():
        deleted.result()


def write_ledger(address: str) -> None:
    """Of five transactions, each with three records, the second and the fourth are aborted."""
    producer = producer_of(address, **{"transactional.id": "ledger"})
    producer.init_transactions(30)
    for number in range(5):
        producer.begin_transaction()
        for entry in range(3):
            producer.produce("ledger", key=f"{number}", value=f"{number}.{entry} " * 40, timestamp=BASE_MS)
            producer.flush(30)
        producer.abort_transaction(30) if number in (1, 3) else producer.commit_transaction(30)


def write_prices(address: str, data: Path) -> None:
    """Ten keys forty times over, the last of them deleted; returns when most of it has been compacted away."""
    producer = producer_of(address)
    for number in range(400):
        value = None if number == 399 else f"{number} " * 5
        producer.produce("prices", key=f"key-{number % 10}", value=value, timestamp=BASE_MS + number)
        if number % 10 == 9:
            producer.flush(30)
    deadline = time.monotonic() + PATIENCE_S
    while sum(path.stat().st_size for path in data.joinpath("prices-0").glob("*.log")) > 2500:
        assert time.monotonic() < deadline, "the topic is not compacted"
        time.sleep(0.5)
    for number in range(400, 404):
        producer.produce("prices", key=f"key-{number % 10}", value=f"{number} " * 5, timestamp=BASE_MS + number)
        producer.flush(30)


def write_copies(data: Path) -> None:
    """Two replicas: each broker leads in turn, so that the log has several leader epochs."""
    with EmbeddedCluster(2, data_dir=data, config={"min.insync.replicas": "1"}) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("copies", 1, 2, config=FOR_EVER)])["copies"].result()
        for _ in range(3):
            producer = producer_of(cluster.bootstrap_servers, acks="all")
            for number in range(5):
                producer.produce("copies", value=f"{number} " * 20, timestamp=BASE_MS)
                assert producer.flush(30) == 0
            leader = cluster.leader_of("copies")
            cluster.stop(leader)
            cluster.restart(leader)
            cluster.wait_until_in_sync()


def commit_offset(address: str) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("orders", 0, 25, metadata="so far")], asynchronous=False)
    consumer.close()


def producer_of(address: str, **config: object) -> Producer:
    return Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0, **config})


if __name__ == "__main__":
    main(sys.argv[1])
