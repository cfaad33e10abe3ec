"""Compaction where transactions are: read_committed readers in the middle, and the coordinators' own topics."""

import contextlib
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

PATIENCE_S = 150.0
"""The first pass after an installation compiles its kernels, which takes its time on a busy machine."""
SEGMENT_BYTES = 6000
OPTIONS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "200",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(SEGMENT_BYTES),
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": str(SEGMENT_BYTES),
}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "20000", "segment.ms": "300"}
LAST = "the last"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data_dir=tmp_path, options=OPTIONS) as broker:
        yield broker


def create(broker: EmbeddedBroker, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result()


def transactional_producer(broker: EmbeddedBroker, name: str) -> Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": 900_000, "linger.ms": 0, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    producer.init_transactions(30)
    return producer


def passes_over(broker: EmbeddedBroker, log: str) -> int:
    return broker.log.count(f"{log}-0: compacted")


class TableWriter:
    """Writes transactions of ten records, every third of which is aborted; ``committed`` is what readers should get."""

    def __init__(self, broker: EmbeddedBroker, topic: str) -> None:
        self.topic = topic
        self.committed: dict[str, str] = {}
        self._producer = transactional_producer(broker, f"writer of {topic}")
        self._numbers = count()

    def write(self, transactions: int) -> None:
        for number in islice(self._numbers, transactions):
            is_aborted = number % 3 == 0
            value = f"{'aborted' if is_aborted else 'committed'} {number} " + "x" * 80
            pairs = {f"key-{(number + n) % 40}": value for n in range(10)}
            self._transaction(pairs, is_aborted=is_aborted)

    def finish(self) -> None:
        self._transaction({LAST: "record"}, is_aborted=False)

    def _transaction(self, pairs: dict[str, str], *, is_aborted: bool) -> None:
        self._producer.begin_transaction()
        for key, value in pairs.items():
            self._producer.produce(self.topic, key=key, value=value)
        assert self._producer.flush(30) == 0
        if is_aborted:
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)
            self.committed |= pairs


class TableReader:
    """Reads committed records in small pieces, and checks that they only go forward."""

    def __init__(self, broker: EmbeddedBroker, topic: str) -> None:
        self.seen: dict[str, str] = {}
        self.offset = -1
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "slow",
                "isolation.level": "read_committed",
                "fetch.message.max.bytes": 2000,
                "queued.max.messages.kbytes": 1,
                "check.crcs": True,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def read(self, most: int = 1 << 60) -> int:
        """So many records, or up to the last; how many there were."""
        for number in range(most):
            if LAST in self.seen:
                return number
            message = self._consumer.poll(30)
            assert message is not None, f"nothing came after offset {self.offset}"
            assert not message.error(), message.error()
            assert message.offset() > self.offset
            value = message.value().decode()
            assert "aborted" not in value
            self.offset = message.offset()
            self.seen[message.key().decode()] = value
        return most

    def close(self) -> None:
        self._consumer.close()


def test_a_reader_of_committed_records_in_the_middle_gets_them_all_and_no_others(
    broker: EmbeddedBroker, topic: str
) -> None:
    """Segments with aborted transactions are replaced under it."""
    create(broker, topic, **COMPACTED)
    writer, reader = TableWriter(broker, topic), TableReader(broker, topic)
    writer.write(60)
    files = Path(broker.data_dir) / f"{topic}-0"
    assert any(path.stat().st_size for path in files.glob("*.txnindex"))
    for _ in range(4):
        assert reader.read(20) == 20
        before = passes_over(broker, topic)

        def has_been_replaced(before: int = before) -> bool:
            writer.write(15)
            return passes_over(broker, topic) > before

        wait_until(has_been_replaced, "segments are replaced while the reader stands still", timeout_s=PATIENCE_S)
    writer.finish()
    reader.read()
    reader.close()
    assert reader.seen == writer.committed, "whatever was left out had a newer value"
    again = TableReader(broker, topic)
    again.read()
    again.close()
    assert again.seen == writer.committed


def commit_in_transactions(broker: EmbeddedBroker, topic: str, producer: Producer, group: str, last: int) -> None:
    """Records and offsets; a third of the transactions is aborted, the last one is not."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    metadata = consumer.consumer_group_metadata()
    for offset in range(1, last + 1):
        producer.begin_transaction()
        producer.produce(topic, key=group, value=str(offset))
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, 30)
        if offset % 3 == 0 and offset < last:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    consumer.close()


def commit_often(broker: EmbeddedBroker, topic: str, group: str, last: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    for offset in range(1, last + 1):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def groups_of(broker: EmbeddedBroker) -> dict[str, Any]:
    """All groups with their offsets; none while the coordinator is loading them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups(request_timeout=30).result()
    if listed.errors:
        return {}
    found = {}
    for group in sorted(one.group_id for one in listed.valid):
        wanted = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
        found[group] = [(one.topic, one.partition, one.offset) for one in wanted.topic_partitions]
    return found


def transactions_of(broker: EmbeddedBroker, names: list[str]) -> list[tuple[Any, ...]]:
    with RawClient(broker.bootstrap_servers) as client:
        states = client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names).transaction_states
        return [
            (s.error_code, s.transactional_id, s.transaction_state, s.producer_id, s.producer_epoch, list(s.topics))
            for s in states
        ]


def next_epoch_of(broker: EmbeddedBroker, name: str) -> tuple[int, int]:
    """The producer id and the epoch that a successor of the transactional id is given."""
    with RawClient(broker.bootstrap_servers) as client:
        wanted = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1}
        response = client.ask(apis.INIT_PRODUCER_ID, 4, transaction_timeout=seconds(60), **wanted)
        assert response.error_code is ErrorCode.none
        return response.producer_id, response.producer_epoch


def size_of(broker: EmbeddedBroker, topic: str) -> int:
    sizes = 0
    for path in (Path(broker.data_dir) / f"{topic}-0").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
            sizes += path.stat().st_size
    return sizes


@pytest.mark.parametrize("way", ["kill", "restart"])
def test_what_the_coordinators_know_outlives_the_compaction_of_their_topics(
    broker: EmbeddedBroker, topic: str, way: str
) -> None:
    create(broker, topic)
    names = [f"id-{n}" for n in range(3)]
    for n, name in enumerate(names):
        commit_in_transactions(broker, topic, transactional_producer(broker, name), f"transactional-{n}", 25 + n)
    for n in range(4):
        commit_often(broker, topic, f"plain-{n}", 40 + n)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_consumer_groups(["plain-3"])["plain-3"].result()
    ongoing = transactional_producer(broker, "ongoing")
    names.append("ongoing")
    ongoing.begin_transaction()
    ongoing.produce(topic, key="ongoing", value="in the middle")
    assert ongoing.flush(30) == 0
    for internal in ("__consumer_offsets", "__transaction_state"):
        wait_until(
            lambda internal=internal: passes_over(broker, internal) and size_of(broker, internal) < 2.5 * SEGMENT_BYTES,
            lambda internal=internal: f"{internal} has {size_of(broker, internal)} bytes",
            timeout_s=PATIENCE_S,
        )

    groups, transactions = groups_of(broker), transactions_of(broker, names)
    assert groups == {
        **{f"plain-{n}": [(topic, 0, 40 + n)] for n in range(3)},
        **{f"transactional-{n}": [(topic, 0, 25 + n)] for n in range(3)},
    }
    assert [state[2] for state in transactions] == ["CompleteCommit"] * 3 + ["Ongoing"]
    if way == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    wait_until(lambda: groups_of(broker) == groups, lambda: f"{groups_of(broker)}")
    wait_until(
        lambda: transactions_of(broker, names) == transactions,
        lambda: f"{transactions_of(broker, names)} {transactions}",
    )
    ongoing.commit_transaction(60)
    assert transactions_of(broker, ["ongoing"])[0][2] in ("PrepareCommit", "CompleteCommit")
    assert next_epoch_of(broker, names[0]) == (transactions[0][3], transactions[0][4] + 1), "the same producer"
