"""``read_arrow`` and the reader below it, against real brokers: codecs, gaps, transactions, restarts, lost topics."""

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skep
from skep.base.errors import ErrorCode, KafkaError
from skep.base.extras import how_to_install
from skep.base.ids import show_topic_id
from skep.client.cluster_client import ClusterClient, shared_cluster
from skep.client.errors import ClientError, OffsetOutOfRange, TimedOut, TopicGone, TopicRecreated
from skep.client.fetch.partition_reader import PartitionReader
from skep.client.list_offsets import EARLIEST, LATEST, list_offsets
from skep.client.topic_info import NO_ID, describe_topics, list_topics
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, now_ms, produce_body, seconds
from tests.waiting import wait_until

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
PLAIN = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


@pytest.fixture
def cluster(skep_broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(skep_broker.bootstrap_servers) as cluster:
        yield cluster


def fill(client: RawClient, topic: str, count: int, *, partition: int = 0, size: int = 100) -> None:
    """So many records whose value begins with their number, in batches of a thousand."""
    for first in range(0, count, 1000):
        values = [(b"%d." % number).ljust(size, b"x") for number in range(first, min(first + 1000, count))]
        client.append(topic, batch_of(*values), partition=partition)


def numbers(table: Any) -> list[int]:
    return [int(value.split(b".")[0]) for value in table.column("value").to_pylist()]


def offsets(table: Any) -> list[int]:
    return list(table.column("offset").to_pylist())


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_codec_with_keys_nulls_and_headers(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str, codec: Codec
) -> None:
    client.create_topic(topic)
    moment = now_ms()
    records = [
        NewRecord(b"k", b"v" * 1000, moment, [("h", b"1"), ("n", None)]),
        NewRecord(None, b"", moment + 1),
        NewRecord(b"", None, moment + 2, [("e", b"")]),
    ]
    client.append(topic, build_batch(records, codec=codec))
    table = skep.read_arrow(skep_broker.bootstrap_servers, topic, headers=True)
    assert table.column_names == [*PLAIN, "headers"]
    assert table.column("key").to_pylist() == [b"k", None, b""]
    assert table.column("value").to_pylist() == [b"v" * 1000, b"", None]
    assert table.column("topic").to_pylist() == [topic] * 3
    assert table.column("partition").to_pylist() == [0] * 3
    assert offsets(table) == [0, 1, 2]
    times = [round(time.timestamp() * 1000) for time in table.column("timestamp").to_pylist()]
    assert times == [moment, moment + 1, moment + 2]
    assert table.column("headers").to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
        None,
        [{"key": "e", "value": b""}],
    ]
    assert skep.read_arrow(skep_broker.bootstrap_servers, topic).column_names == PLAIN


def test_partitions_starts_and_ends_are_those_asked_for(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    bootstrap = skep_broker.bootstrap_servers
    client.create_topic(topic, partitions=3)
    for partition in (0, 2):
        for number in range(5):
            client.append(topic, batch_of(b"%d" % number, timestamp=1_000_000 + number), partition=partition)

    def read(**options: Any) -> list[tuple[int, int]]:
        table = skep.read_arrow(bootstrap, topic, **options)
        return list(zip(table.column("partition").to_pylist(), offsets(table), strict=True))

    both = [(partition, offset) for partition in (0, 2) for offset in range(5)]
    assert read() == both
    assert read(partitions=[2, 0]) == both[5:] + both[:5]
    assert read(partitions=[1]) == []
    assert read(partitions=[0], start=3) == [(0, 3), (0, 4)]
    assert read(partitions=[0], start=1, end=3) == [(0, 1), (0, 2)]
    assert read(start={0: 4}, end={2: 1, 1: "latest"}) == [(0, 4), (2, 0)]
    assert read(start="latest") == []
    third = datetime.datetime.fromtimestamp(1000.002, datetime.UTC)
    assert read(partitions=[0], start=third) == [(0, 2), (0, 3), (0, 4)]
    assert read(partitions=[0], end=third) == [(0, 0), (0, 1)]
    late = datetime.datetime.now(datetime.UTC)
    assert read(start=late) == []
    assert read(end=late) == both
    with pytest.raises(ClientError, match="partitions 0 to 2, not 3"):
        read(partitions=[3])
    with pytest.raises(ClientError, match="start has partition 1, which is not read"):
        read(partitions=[0], start={1: 0})
    assert read(start=5) == []
    with pytest.raises(ClientError, match=f"^offset 6 is past the end of topic '{topic}': its log end offset is 5$"):
        read(start=6)
    with pytest.raises(ClientError, match=f"^offset 3 is past the end of partition {topic}-1: its log end offset is 0"):
        read(start={1: 3})
    with pytest.raises(ClientError, match="'begin' is not a position"):
        read(start="begin")
    with pytest.raises(ClientError, match="isolation must be read_committed or read_uncommitted, not 'dirty'"):
        read(isolation="dirty")


def test_a_missing_topic_and_a_broker_that_is_away_are_said_in_one_line(skep_broker: EmbeddedBroker) -> None:
    with pytest.raises(KafkaError, match=r"^there is no topic 'nowhere'$") as missing:
        skep.read_arrow(skep_broker.bootstrap_servers, "nowhere")
    assert missing.value.code is ErrorCode.unknown_topic_or_partition
    with pytest.raises(TimedOut, match=r"no broker answers at 127\.0\.0\.1:1"):
        skep.read_arrow("127.0.0.1:1", "t", timeout_s=0.2)


def test_batches_are_bounded_and_come_while_the_rest_is_not_read(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic, 20_000)
    reader = skep.read_batches(skep_broker.bootstrap_servers, topic, max_rows=1000, fetch_max_bytes=300_000)
    sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 2000


def test_values_of_ten_megabytes_come_whole(skep_broker: EmbeddedBroker, client: RawClient, topic: str) -> None:
    client.create_topic(topic, max_message_bytes=20 << 20)
    values = [bytes([65 + number]) * (10 << 20) for number in range(3)]
    for value in values:
        client.append(topic, batch_of(value))
    table = skep.read_arrow(skep_broker.bootstrap_servers, topic, fetch_max_bytes=1 << 20)
    assert table.column("value").to_pylist() == values


def test_gaps_that_compaction_left_are_passed_over(topic: str) -> None:
    options = {"log.cleaner.backoff.ms": "100"}
    with EmbeddedBroker(options=options) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic(
            topic, cleanup_policy="compact", segment_bytes=2000, min_cleanable_dirty_ratio=0.01, segment_ms=100
        )
        for number in range(60):
            record = NewRecord(b"k%d" % (number % 3), b"%d." % number + b"x" * 100, now_ms())
            client.append(topic, build_batch([record]))

        def compacted() -> Any:
            table = skep.read_arrow(broker.bootstrap_servers, topic)
            return table if table.num_rows < 50 else None

        table = wait_until(compacted, "compaction has taken records", 150)
    assert offsets(table) == numbers(table)
    assert numbers(table)[-3:] == [57, 58, 59]


class Transactions:
    """Records and markers of transactions written by hand, with no coordinator."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.client, self.topic = client, topic
        self.sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        batch = batch_of(*values, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        body = {**produce_body({(self.topic, 0): batch}), "transactional_id": "t"}
        [[produced]] = [t.partition_responses for t in self.client.ask(apis.PRODUCE, 9, **body).responses]
        assert produced.error_code is ErrorCode.none

    def end(self, producer: int, *, committed: bool) -> None:
        marker = {
            "producer_id": producer,
            "producer_epoch": 0,
            "transaction_result": committed,
            "topics": [{"name": self.topic, "partition_indexes": [0]}],
            "coordinator_epoch": 0,
        }
        self.client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[marker])


@pytest.fixture(scope="module")
def unverified_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=UNVERIFIED) as broker:
        yield broker


@pytest.mark.parametrize("fetch_max_bytes", [1, 8 << 20])
def test_aborted_records_are_left_out_unless_asked_for(
    unverified_broker: EmbeddedBroker, topic: str, fetch_max_bytes: int
) -> None:
    bootstrap = unverified_broker.bootstrap_servers
    with RawClient(bootstrap) as client:
        client.create_topic(topic)
        transactions = Transactions(client, topic)
        transactions.write(1, b"1.", b"2.")
        transactions.write(2, b"3.")
        client.append(topic, batch_of(b"4."))
        transactions.end(1, committed=False)
        transactions.write(1, b"5.")
        transactions.end(2, committed=True)
        transactions.end(1, committed=True)
        assert numbers(skep.read_arrow(bootstrap, topic, fetch_max_bytes=fetch_max_bytes)) == [3, 4, 5]
        table = skep.read_arrow(bootstrap, topic, isolation="read_uncommitted", fetch_max_bytes=fetch_max_bytes)
        assert numbers(table) == [1, 2, 3, 4, 5]


def test_an_open_transaction_ends_the_reading_of_committed_records(
    unverified_broker: EmbeddedBroker, topic: str
) -> None:
    bootstrap = unverified_broker.bootstrap_servers
    with RawClient(bootstrap) as client:
        client.create_topic(topic)
        client.append(topic, batch_of(b"1."))
        transactions = Transactions(client, topic)
        transactions.write(1, b"2.")
        client.append(topic, batch_of(b"3."))
        assert numbers(skep.read_arrow(bootstrap, topic)) == [1]
        assert numbers(skep.read_arrow(bootstrap, topic, isolation="read_uncommitted")) == [1, 2, 3]
        with pytest.raises(TimedOut, match=r"open transaction holds back records from offset 1 on: reading up to 3"):
            skep.read_arrow(bootstrap, topic, end=3, timeout_s=6)
        transactions.end(1, committed=True)
        assert numbers(skep.read_arrow(bootstrap, topic)) == [1, 2, 3]


def test_what_is_committed_while_a_reader_waits_for_it_is_read(unverified_broker: EmbeddedBroker, topic: str) -> None:
    with (
        RawClient(unverified_broker.bootstrap_servers) as client,
        ClusterClient(unverified_broker.bootstrap_servers) as cluster,
    ):
        client.create_topic(topic)
        client.append(topic, batch_of(b"1."))
        transactions = Transactions(client, topic)
        transactions.write(1, b"2.")
        batches = iter(PartitionReader(cluster, topic, None, 0, start=0, end=2, committed=True))
        assert next(batches).column("offset").to_pylist() == [0]
        transactions.end(1, committed=True)
        assert next(batches).column("offset").to_pylist() == [1]
        assert next(batches, None) is None


@pytest.mark.parametrize("way", ["kill", "restart"])
def test_a_broker_that_starts_again_in_the_middle_costs_time_and_no_record(way: str, topic: str) -> None:
    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers) as cluster:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(topic)
            fill(client, topic, 30_000)
        reader = PartitionReader(cluster, topic, None, 0, start=0, end=30_000, fetch_max_bytes=200_000, max_rows=500)
        seen: list[int] = []
        interruptions = 0
        for batch in reader:
            seen += batch.column("offset").to_pylist()
            if len(seen) >= 10_000 * (interruptions + 1) and interruptions < 2:
                if way == "kill":
                    broker.kill()
                broker.restart()
                interruptions += 1
        assert interruptions == 2
        assert seen == list(range(30_000))


def test_a_broker_that_stays_away_is_named_when_the_time_is_over(topic: str) -> None:
    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers, timeout_s=8) as cluster:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic(topic)
            fill(client, topic, 30_000)
        reader = iter(PartitionReader(cluster, topic, None, 0, start=0, end=30_000, fetch_max_bytes=200_000))
        next(reader)
        broker.kill()
        with pytest.raises(TimedOut, match=rf"partition {topic}-0: .*{broker.bootstrap_servers}"):
            list(reader)


def test_offsets_that_retention_took_or_nobody_wrote_are_out_of_range(
    client: RawClient, cluster: ClusterClient, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic, 3000)
    partitions = [{"partition_index": 0, "offset": 1500}]
    client.ask(apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=seconds(30))
    for wanted in (0, 1499, 3001):
        with pytest.raises(OffsetOutOfRange, match=f"offset {wanted} .*1500 to 3000") as failure:
            list(PartitionReader(cluster, topic, None, 0, start=wanted, end=4000))
        assert (failure.value.wanted, failure.value.log_start, failure.value.end) == (wanted, 1500, 3000)
    rows = sum(batch.num_rows for batch in PartitionReader(cluster, topic, None, 0, start=1500, end=3000))
    assert rows == 1500


def test_a_topic_deleted_or_made_again_under_the_reader_is_noticed(
    client: RawClient, cluster: ClusterClient, topic: str
) -> None:
    client.create_topic(topic)
    fill(client, topic, 30_000)
    topic_id = describe_topics(cluster, [topic])[topic].topic_id

    def reader() -> Any:
        return iter(PartitionReader(cluster, topic, topic_id, 0, start=0, end=30_000, fetch_max_bytes=200_000))

    first, second = reader(), reader()
    next(first)
    next(second)
    client.delete_topic(topic)
    with pytest.raises(TopicGone, match=topic):
        list(first)
    client.create_topic(topic)
    wait_until(lambda: client.produce(topic, batch_of(b"new")).error_code is ErrorCode.none, "the topic takes records")
    with pytest.raises(TopicRecreated, match=topic):
        list(second)
    with pytest.raises(TopicRecreated, match=show_topic_id(topic_id)):
        list(reader())


def test_topics_and_their_offsets(client: RawClient, cluster: ClusterClient, topic: str) -> None:
    topic_id = client.create_topic(topic, partitions=2)
    client.append(topic, batch_of(b"a", b"b", timestamp=1_000_000), partition=1)
    assert describe_topics(cluster, [topic])[topic] == (topic, topic_id, 2)
    assert (topic, topic_id, 2) in list_topics(cluster)
    assert not any(one.name.startswith("__") for one in list_topics(cluster))
    asked = {(topic, 0): LATEST, (topic, 1): LATEST}
    assert list_offsets(cluster, asked, committed=True) == {(topic, 0): 0, (topic, 1): 2}
    assert list_offsets(cluster, {(topic, 1): EARLIEST}, committed=False) == {(topic, 1): 0}
    assert list_offsets(cluster, {(topic, 1): 1_000_001}, committed=True) == {(topic, 1): None}
    assert list_offsets(cluster, {}, committed=True) == {}


def test_a_topic_without_an_id_is_read_by_its_name(client: RawClient, cluster: ClusterClient, topic: str) -> None:
    client.create_topic(topic)
    fill(client, topic, 5000)
    reader = PartitionReader(cluster, topic, NO_ID, 0, start=100, end=4900, fetch_max_bytes=100_000)
    assert [offset for batch in reader for offset in batch.column("offset").to_pylist()] == list(range(100, 4900))


def test_one_connection_serves_a_reader_after_the_other(client: RawClient, cluster: ClusterClient, topic: str) -> None:
    client.create_topic(topic)
    fill(client, topic, 100)
    taken = []
    take = cluster.acquire_connection
    cluster.acquire_connection = lambda node: taken.append(take(node)) or taken[-1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(3):
        assert sum(batch.num_rows for batch in PartitionReader(cluster, topic, None, 0, start=0, end=100)) == 100
    assert len(taken) == 3
    assert len(set(map(id, taken))) == 1


def test_a_forked_process_gets_a_client_of_its_own(skep_broker: EmbeddedBroker) -> None:
    bootstrap = skep_broker.bootstrap_servers
    first = shared_cluster(bootstrap)
    assert first.nodes()
    assert shared_cluster(bootstrap) is first
    assert shared_cluster(bootstrap, client_id="other") is not first
    child = os.fork()
    if child == 0:
        own = shared_cluster(bootstrap)
        os._exit(0 if own is not first and own.nodes() else 1)
    assert os.waitpid(child, 0)[1] == 0
    # The child's leaving has not touched our connection.
    assert shared_cluster(bootstrap) is first
    assert first.nodes()


def run_python(code: str, *arguments: str) -> str:
    sources = str(Path(skep.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def test_importing_skep_imports_no_heavy_library() -> None:
    heavy = {"numpy", "pyarrow", "numba", "kio", "asyncio"}
    assert run_python(f"import sys, skep; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_without_arrow_the_error_names_the_extra(skep_broker: EmbeddedBroker, client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import skep\n"
        "try: skep.read_arrow(sys.argv[1], sys.argv[2])\n"
        "except ImportError as error: print(error)"
    )
    said = run_python(code, skep_broker.bootstrap_servers, topic)
    assert said.endswith(how_to_install("arrow"))
    assert "pyarrow" in said


def test_the_brokers_for_tests_are_reached_from_skep_itself() -> None:
    assert run_python("import skep; print(skep.testing.EmbeddedBroker.__name__)") == "EmbeddedBroker"
