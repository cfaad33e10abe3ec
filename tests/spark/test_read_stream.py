"""Topics read by streaming queries of Spark: progress, restarts, and what happens to topics under them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

Read = Callable[..., DataFrame]
PATIENCE_S = 120


class Running:
    """A query that keeps what it read in files, so that it can be stopped and started again."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.rows = str(directory / "rows")
        self.checkpoint = str(directory / "checkpoint")

    def start(self, stream: DataFrame, *, available_now: bool = False) -> StreamingQuery:
        writer = stream.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value").writeStream
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return (
            writer.format("parquet").option("checkpointLocation", self.checkpoint).trigger(**trigger).start(self.rows)
        )

    def run_to_end(self, stream: DataFrame) -> StreamingQuery:
        query = self.start(stream, available_now=True)
        assert query.awaitTermination(PATIENCE_S), "the query ends"
        return query

    def wait_for(self, query: StreamingQuery, count: int) -> list[int]:
        """The values in the files once the query has read so many rows since its start.

        The progress is looked at until then: to look into the files is a job of the same Spark.
        """

        def is_read() -> bool:
            return sum(progress["numInputRows"] for progress in query.recentProgress) >= count

        wait_until(is_read, lambda: f"{count} rows are read: {query.status}, {query.exception()}", PATIENCE_S)
        return self.values()

    def values(self) -> list[int]:
        return sorted(int(row.value) for row in self.spark.read.parquet(self.rows).collect())


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path) -> Iterator[Running]:
    yield Running(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_available_now_reads_what_is_there_in_limited_batches_and_a_restart_goes_on(
    topics: Topics, topic: str, read: Read, running: Running
):
    topics.create(topic, 2)
    topics.fill(topic, range(100), partition=lambda index: index % 2)
    stream = read(topic, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    query = running.run_to_end(stream)
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [40, 40, 20]
    assert running.values() == list(range(100))
    topics.fill(topic, range(100, 110), partition=1)
    running.run_to_end(stream)
    assert running.values() == list(range(110))


def test_a_running_query_reads_what_comes_and_shows_its_lag(topics: Topics, topic: str, read: Read, running: Running):
    topics.create(topic)
    query = running.start(read(topic, stream=True, startingOffsets="earliest"))
    topics.fill(topic, range(10))
    assert running.wait_for(query, 10) == list(range(10))
    topics.fill(topic, range(10, 20))
    assert running.wait_for(query, 20) == list(range(20))

    def shown() -> bool:
        progress = query.lastProgress
        return progress is not None and '"0": 20' in str(progress["sources"][0]["latestOffset"])

    wait_until(shown, "progress shows where the topic ends")


def test_a_deleted_topic_ends_the_query_with_its_name(topics: Topics, topic: str, read: Read, running: Running):
    topics.create(topic)
    topics.fill(topic, range(10))
    query = running.start(read(topic, stream=True, startingOffsets="earliest"))
    assert running.wait_for(query, 10) == list(range(10))
    topics.delete(topic)
    with pytest.raises(StreamingQueryException, match=f"there is no topic '{topic}'"):
        query.awaitTermination(PATIENCE_S)


def test_a_recreated_topic_is_noticed_and_read_anew_when_loss_is_allowed(
    topics: Topics, topic: str, read: Read, running: Running
):
    topics.create(topic)
    topics.fill(topic, range(10))
    running.run_to_end(read(topic, stream=True, startingOffsets="earliest"))
    topics.delete(topic)
    topics.create(topic)
    topics.fill(topic, range(10, 40))
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        running.run_to_end(read(topic, stream=True, startingOffsets="earliest"))
    running.run_to_end(read(topic, stream=True, startingOffsets="earliest", failOnDataLoss="false"))
    assert running.values() == list(range(40))


def test_a_broker_that_restarts_under_a_query_costs_time_only(
    spark: SparkSession, topic: str, skep_fresh_broker: EmbeddedBroker, running: Running
):
    own = Topics(skep_fresh_broker.bootstrap_servers)
    own.create(topic)
    options = {"kafka.bootstrap.servers": own.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    query = running.start(spark.readStream.format("skep").options(**options).load())
    own.fill(topic, range(10))
    assert running.wait_for(query, 10) == list(range(10))
    skep_fresh_broker.kill()
    skep_fresh_broker.restart()
    own.fill(topic, range(10, 20))
    assert running.wait_for(query, 20) == list(range(20))
    assert query.exception() is None
