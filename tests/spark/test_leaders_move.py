"""Leaders that are killed while Spark and Arrow read and write: another replica takes over, and each row is there once.

Every test holds its reading or writing in the middle until another broker leads the partition, so none can be over
before the leader has moved. A partition has more bytes than the sockets between a task's processes take (some 20 MB):
what reads it cannot have come to its end while the rows are held.
"""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import skep
from skep.client.cluster_client import ClusterClient
from skep.client.list_offsets import LATEST, list_offsets
from skep.client.produce.transactions import list_open_transactions
from skep.testing import EmbeddedCluster
from tests.spark.driver_model import PARTITIONS, committed_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

PATIENCE_S = 120.0
ROWS, INPUT_PARTITIONS = 30_000, 2
ROW_BYTES = 2000
ROWS_OF_AN_ARROW_BATCH = 500
EXPECTED = Counter(f"{number:06d}" for number in range(ROWS))


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(brokers: EmbeddedCluster) -> EmbeddedCluster:
    """With all its brokers, whichever the test before has killed, and all replicas in sync."""
    for i in set(brokers.brokers) - set(brokers.running):
        brokers.restart(i)
    brokers.wait_until_ready()
    brokers.wait_until_in_sync()
    return brokers


def create(cluster: EmbeddedCluster, topic: str, partitions: int) -> None:
    """With a replica of each partition on every broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    [made] = admin.create_topics([NewTopic(topic, partitions, 3)]).values()
    made.result(30)
    cluster.wait_until_in_sync()


@pytest.fixture
def output(cluster: EmbeddedCluster, topic: str) -> str:
    create(cluster, topic, PARTITIONS)
    return topic


@pytest.fixture(scope="module")
def filled(brokers: EmbeddedCluster) -> str:
    """The topic that is read; a value begins with the number of its row."""
    create(brokers, "filled", INPUT_PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
    for number in range(ROWS):
        producer.produce("filled", (b"%06d" % number).ljust(ROW_BYTES), partition=number % INPUT_PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    return "filled"


def move_leader(cluster: EmbeddedCluster, topic: str, partition: int) -> None:
    """Kills the broker that leads the partition; returns when another one leads it."""
    before = cluster.leader_of(topic, partition)
    cluster.kill(before)
    wait_until(lambda: cluster.leader_of(topic, partition) in cluster.running, "another broker leads", PATIENCE_S)
    assert cluster.leader_of(topic, partition) != before


class Gate:
    """Holds the rows of Spark's tasks: each task gives out some, and no more until the gate is opened.

    Knows whether Spark had to try a task again. That too would give each row once, and hide what a task does by itself.
    """

    def __init__(self, directory: Path) -> None:
        self._reached, self._opened, self._again = (directory / name for name in ("reached", "opened", "again"))

    def hold(self, rows: DataFrame, *, after_rows: int) -> DataFrame:
        reached, opened, again = self._reached, self._opened, self._again

        def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            if context is None or context.attemptNumber() > 0:
                again.touch()
            given = 0
            for batch in batches:
                while given >= after_rows and not opened.exists():
                    reached.touch()
                    time.sleep(0.01)
                yield batch
                given += batch.num_rows

        return rows.mapInArrow(held, rows.schema)

    def wait(self) -> None:
        wait_until(self._reached.exists, "rows are held", PATIENCE_S)

    def open(self) -> None:
        self._opened.touch()

    @property
    def tried_again(self) -> bool:
        return self._again.exists()


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_OF_AN_ARROW_BATCH))
    yield gate
    gate.open()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def ends(cluster: EmbeddedCluster, topic: str, *, committed: bool) -> list[int]:
    with ClusterClient(cluster.bootstrap_servers) as client:
        wanted = {(topic, partition): LATEST for partition in range(PARTITIONS)}
        return [end or 0 for end in list_offsets(client, wanted, committed=committed).values()]


def open_transactions(cluster: EmbeddedCluster) -> list[str]:
    with ClusterClient(cluster.bootstrap_servers) as client:
        return [transaction.transactional_id for transaction in list_open_transactions(client)]


def test_a_batch_read_goes_on_with_the_next_leader(
    spark: SparkSession, cluster: EmbeddedCluster, filled: str, gate: Gate
) -> None:
    table = spark.read.format("skep").options(subscribe=filled, **at(cluster)).load()
    held = gate.hold(table.select("partition", "offset", "value"), after_rows=1).select("partition", "offset")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(held.collect)
        gate.wait()
        move_leader(cluster, filled, 0)
        assert not reading.done()
        gate.open()
        found = Counter((row.partition, row.offset) for row in reading.result(PATIENCE_S))
    per_partition = ROWS // INPUT_PARTITIONS
    assert found == Counter(
        (partition, offset) for partition in range(INPUT_PARTITIONS) for offset in range(per_partition)
    )
    assert not gate.tried_again


def test_a_stream_from_topic_to_topic_goes_on_with_the_next_leaders(
    spark: SparkSession, cluster: EmbeddedCluster, filled: str, output: str, gate: Gate, tmp_path: Path
) -> None:
    source = {"subscribe": filled, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS * 9 // 10)}
    rows = spark.readStream.format("skep").options(**source, **at(cluster)).load().select("value")
    copied = gate.hold(rows, after_rows=1).selectExpr("CAST(substring(value, 1, 6) AS STRING) AS value")
    query = (
        copied.writeStream.format("skep")
        .options(topic=output, **at(cluster))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        gate.wait()
        move_leader(cluster, filled, 0)
        assert query.isActive
        assert query.lastProgress is None, "the first epoch is under way"
        gate.open()
        assert query.awaitTermination(PATIENCE_S), "the query ends"
        assert [progress["numInputRows"] for progress in query.recentProgress] == [ROWS * 9 // 10, ROWS // 10]
    finally:
        query.stop()
    assert committed_rows(cluster.bootstrap_servers, output) == EXPECTED
    assert open_transactions(cluster) == []
    assert not gate.tried_again


def test_a_write_goes_on_with_the_next_leader_in_the_middle_of_its_transactions(
    spark: SparkSession, cluster: EmbeddedCluster, output: str, gate: Gate
) -> None:
    # Of two tasks; each is held with 16 MB given to its writer, which keeps no more than 8.
    rows = spark.range(0, ROWS, 1, 2).selectExpr(f"rpad(lpad(id, 6, '0'), {ROW_BYTES}, ' ') AS value")
    writer = gate.hold(rows, after_rows=8000).write.format("skep").options(topic=output, **at(cluster)).mode("append")

    def move_in_the_middle() -> None:
        try:
            wait_until(lambda: min(ends(cluster, output, committed=False)) > 0, "rows are written", PATIENCE_S)
            move_leader(cluster, output, 0)
            assert ends(cluster, output, committed=True) == [0] * PARTITIONS
        finally:
            gate.open()

    # The writing in this thread: Spark looks for a data source in the session of the thread, and others have none.
    with ThreadPoolExecutor(1) as threads:
        moving = threads.submit(move_in_the_middle)
        writer.save()
        moving.result()
    found = committed_rows(cluster.bootstrap_servers, output)
    assert Counter(value.rstrip() for value in found.elements()) == EXPECTED
    assert open_transactions(cluster) == []
    assert not gate.tried_again


def at(cluster: EmbeddedCluster) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers}


def test_arrow_batches_go_on_with_the_next_leader_and_a_table_is_read_from_it(
    cluster: EmbeddedCluster, filled: str
) -> None:
    batches = skep.read_batches(cluster.bootstrap_servers, filled, max_rows=100, fetch_max_bytes=1 << 20)
    first = batches.read_next_batch()
    assert set(first.column("partition").to_pylist()) == {0}
    move_leader(cluster, filled, 0)
    assert numbers(pa.Table.from_batches([first, *batches])) == in_order()
    assert numbers(skep.read_arrow(cluster.bootstrap_servers, filled)) == in_order()


def numbers(table: pa.Table) -> list[int]:
    return [int(value[:6]) for value in table.column("value").to_pylist()]


def in_order() -> list[int]:
    """The rows of the first partition, then those of the next."""
    return [number for partition in range(INPUT_PARTITIONS) for number in range(partition, ROWS, INPUT_PARTITIONS)]
