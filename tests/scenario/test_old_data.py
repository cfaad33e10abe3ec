"""Data that an earlier commit wrote still opens: every kind of file in a data directory, and the metadata store.

``old_data.tar.gz`` holds the data directory of a broker that was killed once and then stopped, and those of two brokers
of a cluster. ``make_old_data.py`` made it with the code of commit f5f7ba1 and describes what is in it.
"""

import tarfile
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from skep.base.clock import SystemClock
from skep.base.config.topic_config import TopicConfig
from skep.base.files.os_files import OsFiles
from skep.base.ids import LeaderEpoch, Offset
from skep.base.ids import TopicPartition as Partition
from skep.records.record import records_in
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.testing import EmbeddedBroker
from tests.waiting import PATIENCE_S, wait_until

ARCHIVE = Path(__file__).with_name("old_data.tar.gz")
BASE_MS = 1_700_000_000_000
# The archive grows old: nothing of it may expire while a test reads it.
OPTIONS = {
    "offsets.retention.minutes": "100000000",
    "transactional.id.expiration.ms": "2147483647",
    "producer.id.expiration.ms": "2147483647",
}
CONFIG = TopicConfig(segment_bytes=2000, index_interval_bytes=100, retention_ms=-1)
SYNCED = TopicConfig(segment_bytes=2000, index_interval_bytes=100, retention_ms=-1, flush_messages=1)
COMPACTED = TopicConfig(segment_bytes=2000, index_interval_bytes=100, cleanup_policy=("compact",))


@pytest.fixture
def old_data(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_broker_serves_old_data(old_data: Path) -> None:
    with EmbeddedBroker(data_dir=old_data / "data", options=OPTIONS) as broker:
        address = broker.bootstrap_servers
        for partition, first in ((0, 0), (1, 7)):
            found = consume(address, "orders", partition)
            assert [offset for offset, *_ in found] == list(range(first, 40))
            for offset, key, value, timestamp in found:
                number = 2 * offset + partition
                assert (key, value, timestamp) == (f"order-{number}", f"{number} " * 20, BASE_MS + number)
        committed = [value for _, _, value, _ in consume(address, "ledger", 0)]
        assert committed == [f"{number}.{entry} " * 40 for number in (0, 2, 4) for entry in range(3)]
        everything = consume(address, "ledger", 0, **{"isolation.level": "read_uncommitted"})
        assert [key for _, key, _, _ in everything] == [str(number) for number in range(5) for _ in range(3)]
        prices = {key: value for _, key, value, _ in consume(address, "prices", 0)}
        newest = {f"key-{number % 10}": f"{number} " * 5 for number in (*range(394, 399), *range(400, 404))}
        assert prices | {"key-9": None} == newest | {"key-9": None}


def test_a_broker_knows_topics_configs_and_groups_of_old_metadata(old_data: Path) -> None:
    with EmbeddedBroker(data_dir=old_data / "data", options=OPTIONS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = admin.list_topics(timeout=PATIENCE_S).topics
        assert {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")} == {
            "orders": 2,
            "ledger": 1,
            "prices": 1,
        }
        assert set_configs(admin, "orders") == {
            "retention.ms": "-1",
            "segment.bytes": "2000",
            "index.interval.bytes": "100",
            "flush.messages": "1",
            "message.timestamp.type": "CreateTime",
        }
        asked = [ConsumerGroupTopicPartitions("readers")]
        [offset] = admin.list_consumer_group_offsets(asked)["readers"].result(PATIENCE_S).topic_partitions
        assert (offset.topic, offset.partition, offset.offset, offset.metadata) == ("orders", 0, 25, "so far")


def test_a_broker_writes_on_where_old_data_ends(old_data: Path) -> None:
    with EmbeddedBroker(data_dir=old_data / "data", options=OPTIONS) as broker:
        for _ in range(2):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "ledger"})
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            producer.produce("ledger", key="new", value="new")
            producer.produce("orders", key="new", value="new", partition=0)
            producer.commit_transaction(PATIENCE_S)
            broker.restart()
        address = broker.bootstrap_servers
        wait_until(lambda: keys(address, "ledger")[-3:] == ["4", "new", "new"], lambda: str(keys(address, "ledger")))
        wait_until(lambda: keys(address, "orders")[-2:] == ["new", "new"], lambda: str(keys(address, "orders")))
        # The marker of the first transaction is between the two. A coordinator that stops before the sync of the marker
        # has ended writes it once more when it starts.
        *_, last_old, first, second = [offset for offset, *_ in consume(address, "orders", 0)]
        assert (last_old, first) == (39, 40)
        assert second in (42, 43)


def keys(address: str, topic: str) -> list[str]:
    return [key for _, key, _, _ in consume(address, topic, 0)]


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_the_files_of_old_logs_are_understood(old_data: Path, is_clean: bool) -> None:
    directory = opened(old_data / "data", is_clean)
    assert directory.was_clean == is_clean
    assert not directory.may_have_lost_synced_data
    for partition, log_start in ((0, 0), (1, 7)):
        orders = log_of(directory, "orders", partition, SYNCED)
        assert (orders.log_start_offset, orders.log_end_offset, orders.flushed_offset) == (log_start, 40, 40)
        assert [segment.base_offset for segment in orders.segments] == [0, 17, 34]
        assert [len(segment.offset_index.entries()) for segment in orders.segments] == [13, 12, 4]
        assert orders.segments[1].time_index.last() == (BASE_MS + 66 + partition, 33)
        assert len(orders.producers) == 40
        assert orders.was_synced
        found = orders.offset_for_timestamp(BASE_MS + 50, up_to=orders.log_end_offset)
        assert found is not None
        assert found.offset == 25
    ledger = log_of(directory, "ledger", 0, CONFIG)
    aborted = ledger.aborted_transactions(Offset(0), ledger.log_end_offset)
    assert [(one.first_offset, one.last_offset, one.last_stable_offset) for one in aborted] == [(4, 7, 8), (12, 15, 16)]
    [producer] = ledger.producers.states()
    assert (producer.epoch, producer.last_sequence, producer.transaction_first_offset) == (0, 14, -1)
    prices = log_of(directory, "prices", 0, COMPACTED)
    assert (prices.log_end_offset, directory.cleaned_up_to(prices.topic_partition)) == (404, 404)
    assert prices.segments[0].size < 1000, "it was compacted"
    assert set(directory.high_watermarks.values()) == {1, 16, 20, 40, 404}
    assert not any(log.lost_data or log.failure for log in directory.logs.values())
    directory.close()


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("broker", [1, 2])
def test_the_leader_epochs_of_an_old_replica_are_known(old_data: Path, broker: int, is_clean: bool) -> None:
    directory = opened(old_data / "cluster" / f"broker-{broker}", is_clean)
    log = log_of(directory, "copies", 0, CONFIG)
    ends = [log.end_offset_for_epoch(LeaderEpoch(epoch)) for epoch in range(2)]
    assert (ends, log.last_batch_epoch, log.log_end_offset) == ([(0, 5), (1, 10)], 2, 15)
    piece = log.read(Offset(0), 1 << 20, up_to=log.log_end_offset, at_least_one=True)
    assert piece.file is not None
    records = list(records_in(piece.file.read(piece.position, piece.size)))
    assert [record.value for record in records] == [f"{number % 5} ".encode() * 20 for number in range(15)]
    directory.close()


def opened(path: Path, is_clean: bool) -> LogDirectory:
    if not is_clean:
        path.joinpath(".kafka_cleanshutdown").unlink()
        # A crash of the process alone: the machine is still the one that wrote the data.
    directory = LogDirectory(OsFiles(), str(path), SystemClock(), boot_id=path.joinpath("boot-id").read_text())
    directory.open()
    return directory


def log_of(directory: LogDirectory, topic: str, number: int, config: TopicConfig) -> Log:
    partition = Partition(topic, number)
    topic_id = directory.topic_id_of(partition)
    assert topic_id is not None
    return directory.log(partition, config, topic_id)


def consume(address: str, topic: str, partition: int, **config: str) -> list[tuple[int, str, str | None, int]]:
    """Offset, key, value and timestamp of all that is there."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.partition.eof": True, **config})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            consumer.close()
            return found
        value = message.value()
        text = None if value is None else value.decode()
        found.append((message.offset(), message.key().decode(), text, message.timestamp()[1]))


def set_configs(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return {name: entry.value for name, entry in entries.items() if not entry.is_default}
