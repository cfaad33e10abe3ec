"""Options of streaming reads, seen from outside in whole queries: which rows come, in which tasks, and how far behind.

What the reader plans for each option is tested beside it, in ``test_stream_reader`` and ``test_planning``.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics
from tests.spark.pipelining import done
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

Read = Callable[..., DataFrame]
PATIENCE_S = 120
FIRST_MS = 1_700_000_000_000


class Collected:
    """Streaming queries whose rows are kept in the driver's memory, each with the task that it came from."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._names: list[str] = []

    def start(self, stream: DataFrame, *, available_now: bool = True) -> StreamingQuery:
        name = f"rows_{len(self._names)}"
        self._names.append(name)
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return (
            stream.withColumn("task", f.spark_partition_id())
            .writeStream.format("memory")
            .queryName(name)
            .option("checkpointLocation", str(self._directory / name))
            .trigger(**trigger)
            .start()
        )

    def to_the_end(self, stream: DataFrame) -> list[Row]:
        """The rows of a query that reads what is there now."""
        query = self.start(stream)
        assert query.awaitTermination(PATIENCE_S), "the query ends"
        return self._spark.table(self._names[-1]).collect()

    def close(self) -> None:
        for query in self._spark.streams.active:
            query.stop()
        for name in self._names:
            self._spark.catalog.dropTempView(name)


@pytest.fixture
def collected(spark: SparkSession, tmp_path: Path) -> Iterator[Collected]:
    queries = Collected(spark, tmp_path)
    yield queries
    queries.close()


@pytest.fixture
def hundred(topics: Topics, topic: str) -> str:
    """A topic with the numbers to 99 in two partitions by turns, a second apart."""
    topics.create(topic, 2)
    topics.fill(topic, range(100), partition=lambda index: index % 2, timestamp_ms=lambda index: at_ms(index))
    return topic


def at_ms(number: int) -> int:
    return FIRST_MS + 1000 * number


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row.value) for row in rows)


def test_starting_timestamp_begins_with_the_first_record_that_is_not_older(
    hundred: str, read: Read, collected: Collected
) -> None:
    rows = collected.to_the_end(read(hundred, stream=True, startingTimestamp=str(at_ms(90) - 1)))
    assert numbers(rows) == list(range(90, 100))


def test_starting_offsets_by_timestamp_are_of_each_partition_and_go_before_starting_offsets(
    hundred: str, read: Read, collected: Collected
) -> None:
    times = json.dumps({hundred: {"0": at_ms(96), "1": at_ms(91)}})
    stream = read(hundred, stream=True, startingOffsetsByTimestamp=times, startingOffsets="earliest")
    assert numbers(collected.to_the_end(stream)) == [91, 93, 95, 96, 97, 98, 99]


def test_a_time_after_all_records_is_an_error_or_with_strategy_latest_what_comes_next(
    topics: Topics, hundred: str, read: Read, collected: Collected
) -> None:
    late = {"startingTimestamp": str(at_ms(1000))}
    with pytest.raises(StreamingQueryException, match=f"{hundred}-0 has no record at or after {at_ms(1000)}"):
        collected.to_the_end(read(hundred, stream=True, **late))
    stream = read(hundred, stream=True, **late, startingOffsetsByTimestampStrategy="latest")
    query = collected.start(stream, available_now=False)
    wait_until(lambda: query.lastProgress is not None, "the query knows where it begins", PATIENCE_S)
    topics.fill(hundred, range(100, 103))
    wait_until(lambda: rows_read(query) == 3, "what came later is read", PATIENCE_S)


def rows_read(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_assign_reads_the_named_partitions_and_no_other(
    topics: Topics, hundred: str, read: Read, collected: Collected
) -> None:
    other = topics.create(f"{hundred}-other", 3)
    topics.fill(other, range(200, 230), partition=lambda index: index % 3)
    assigned = json.dumps({hundred: [1], other: [0, 2]})
    rows = collected.to_the_end(read(stream=True, assign=assigned, startingOffsets="earliest"))
    assert numbers(rows) == [*range(1, 100, 2), *(number for number in range(200, 230) if (number - 200) % 3 != 1)]
    assert {(row.topic, row.partition) for row in rows} == {(hundred, 1), (other, 0), (other, 2)}


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [50, 50]),
        ({"minPartitions": "5"}, [16, 16, 17, 17, 17, 17]),
        ({"maxRecordsPerPartition": "20"}, [16, 16, 17, 17, 17, 17]),
        ({"maxRecordsPerPartition": "30", "minPartitions": "8"}, [12, 12, 12, 12, 13, 13, 13, 13]),
    ],
)
def test_partitions_are_cut_into_tasks_and_each_row_comes_once(
    hundred: str, read: Read, collected: Collected, options: dict[str, str], tasks: list[int]
) -> None:
    rows = collected.to_the_end(read(hundred, stream=True, startingOffsets="earliest", **options))
    assert numbers(rows) == list(range(100))
    pieces: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        pieces.setdefault(row.task, []).append((row.partition, row.offset))
    assert sorted(map(len, pieces.values())) == tasks
    for piece in pieces.values():
        [partition] = {partition for partition, _ in piece}
        first = min(offset for _, offset in piece)
        assert sorted(piece) == [(partition, first + index) for index in range(len(piece))]


def test_progress_shows_the_lag_until_the_query_has_caught_up(hundred: str, read: Read, collected: Collected) -> None:
    query = collected.start(read(hundred, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="40"))
    assert query.awaitTermination(PATIENCE_S), "the query ends"
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert [position(source["startOffset"]) for source in sources[1:]] == [40, 80]
    assert [position(source["endOffset"]) for source in sources] == [40, 80, 100]
    assert [position(source["latestOffset"]) for source in sources] == [100, 100, 100]


def position(offsets: Any) -> int:
    """The offsets of all partitions of the one topic, taken together."""
    [topic] = (json.loads(offsets) if isinstance(offsets, str) else offsets).values()
    return sum(offset for name, offset in topic.items() if name.isdecimal())


def test_the_progress_of_a_query_with_group_id_is_seen_with_skep_groups_describe(
    topics: Topics, broker: EmbeddedBroker, hundred: str, read: Read, collected: Collected
) -> None:
    group = f"{hundred}-group"
    stream = read(hundred, stream=True, startingOffsets="earliest", groupId=group, maxOffsetsPerTrigger="30")
    assert len(collected.to_the_end(stream)) == 100
    topics.fill(hundred, range(100, 107), partition=1)
    shown = done("groups", "describe", group, "--bootstrap-server", broker.bootstrap_servers)
    head, *table = shown.splitlines()
    assert head.startswith(f"{group} ")
    assert head.endswith(" lag 7")
    assert [line.split()[:5] for line in table if hundred in line] == [
        [hundred, "0", "50", "50", "0"],
        [hundred, "1", "50", "57", "7"],
    ]
