"""The option ``archive``: log and archive as one table, no offset missing and none twice; and the archive by itself."""

import datetime
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from pyspark_skep import DefaultSource
from pyspark_skep.read.archives import ArchivePartition
from pyspark_skep.read.batch_reader import BatchReader
from pyspark_skep.read.data_loss import DataLoss
from skep.base.errors import OptionError
from skep.client.archive.archiver import archive_topic
from skep.client.cluster_client import ClusterClient
from skep.testing import EmbeddedBroker
from tests.spark.conftest import Topics

pytestmark = pytest.mark.xdist_group("spark")

DAY_MS = 86_400_000
FIRST_MS = 1_769_817_600_000  # 2026-01-31 in UTC
COUNT = 400
"""Records, in two partitions; a hundred for each of four days."""


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def archived(topics: Topics, topic: str, cluster: ClusterClient, tmp_path: Path) -> str:
    """A topic that is archived up to offset 150 of each partition and has lost what is below 100."""
    topics.create(topic, 2, {"retention.ms": "-1"})
    fill(topics, topic, 0, 300)
    archive_topic(cluster, topic, tmp_path, piece_bytes=1)
    fill(topics, topic, 300, COUNT)
    lose(topics, topic, 100)
    return topic


def fill(topics: Topics, topic: str, first: int, end: int) -> None:
    topics.fill(
        topic,
        range(first, end),
        partition=lambda index: (first + index) % 2,
        timestamp_ms=lambda index: FIRST_MS + (first + index) // 100 * DAY_MS + first + index,
    )


def lose(topics: Topics, topic: str, below: int) -> None:
    for gone in topics.admin.delete_records([TopicPartition(topic, number, below) for number in range(2)]).values():
        gone.result(30)


@pytest.fixture
def open_reader(broker: EmbeddedBroker, tmp_path: Path) -> Callable[..., BatchReader]:
    def open_reader(topic: str, **options: str) -> BatchReader:
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "archive": str(tmp_path)}
        source = DefaultSource(given | options)
        return source.reader(source.schema())  # type: ignore[return-value]

    return open_reader


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        copy, sent = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(sent):
            found += batch.to_pylist()
    return found


def values(reader: BatchReader) -> list[int]:
    found = rows(reader)
    places = [(row["partition"], row["offset"]) for row in found]
    assert len(set(places)) == len(places)
    return sorted(int(row["value"]) for row in found)


def from_archive(reader: BatchReader) -> list[ArchivePartition]:
    return [one for one in reader.partitions() if isinstance(one, ArchivePartition)]


Open = Callable[..., BatchReader]


def test_earliest_is_the_beginning_of_the_archive_and_each_row_comes_once(archived: str, open_reader: Open) -> None:
    reader = open_reader(archived, includeHeaders="true")
    found = rows(reader)
    assert sorted(int(row["value"]) for row in found) == list(range(COUNT))
    assert all(int(row["value"]) == 2 * row["offset"] + row["partition"] for row in found)
    assert all(row["topic"] == archived for row in found)
    assert max(one.range.end for one in from_archive(reader)) == 100
    assert values(open_reader(archived, startingOffsets=f'{{"{archived}": {{"0": -2, "1": -2}}}}')) == list(
        range(COUNT)
    )


def test_in_a_partition_rows_come_in_the_order_of_their_offsets(archived: str, open_reader: Open) -> None:
    found = rows(open_reader(archived))
    for partition in (0, 1):
        assert [row["offset"] for row in found if row["partition"] == partition] == list(range(COUNT // 2))


def test_a_range_of_offsets_may_lie_on_either_side_or_on_both(archived: str, open_reader: Open) -> None:
    for start, end in ((0, 50), (20, 100), (99, 101), (100, 120), (150, 200), (7, 193)):
        given = {
            "startingOffsets": f'{{"{archived}": {{"0": {start}, "1": {start}}}}}',
            "endingOffsets": f'{{"{archived}": {{"0": {end}, "1": {end}}}}}',
        }
        assert values(open_reader(archived, **given)) == list(range(2 * start, 2 * end)), (start, end)


def test_times_are_found_in_archive_and_log(archived: str, open_reader: Open) -> None:
    for first, end in ((0, 100), (50, 150), (120, 250), (210, 399)):
        start_ms, end_ms = (FIRST_MS + number // 100 * DAY_MS + number for number in (first, end))
        reader = open_reader(archived, startingTimestamp=str(start_ms), endingTimestamp=str(end_ms))
        assert values(reader) == list(range(first, end)), (first, end)


def test_filters_leave_out_files_of_other_offsets_partitions_and_days(archived: str, open_reader: Open) -> None:
    def files(*filters: Any) -> set[tuple[int, str]]:
        reader = open_reader(archived, pushFilters="true")
        reader.pushFilters(list(filters))
        return {(file.partition, Path(file.path).parent.name) for one in from_archive(reader) for file in one.files}

    days = ["date=2026-01-31", "date=2026-02-01"]
    assert files() == {(partition, day) for partition in (0, 1) for day in days}
    assert files(EqualTo(("partition",), 1)) == {(1, day) for day in days}
    assert files(LessThan(("offset",), 50)) == {(0, days[0]), (1, days[0])}
    midnight = datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)
    assert files(GreaterThanOrEqual(("timestamp",), midnight)) == {(0, days[1]), (1, days[1])}
    before = midnight - datetime.timedelta(milliseconds=1)
    assert files(LessThan(("timestamp",), before)) == {(0, days[0]), (1, days[0])}
    assert files(GreaterThanOrEqual(("offset",), 100)) == set()


def test_a_gap_between_archive_and_log_is_an_error_or_is_logged(
    topics: Topics, archived: str, open_reader: Open, caplog: pytest.LogCaptureFixture
) -> None:
    lose(topics, archived, 170)
    with pytest.raises(
        DataLoss, match="offsets 150 to 169 are neither in its log, which begins at 170, nor in the arch"
    ):
        open_reader(archived).partitions()
    assert values(open_reader(archived, failOnDataLoss="false")) == [*range(300), *range(340, COUNT)]
    assert "offsets 150 to 169 are neither" in caplog.text


def test_a_gap_inside_the_archive_is_an_error_too(
    topics: Topics, archived: str, open_reader: Open, cluster: ClusterClient, tmp_path: Path
) -> None:
    lose(topics, archived, 170)
    archive_topic(cluster, archived, tmp_path, allow_gaps=True)
    lose(topics, archived, 190)
    with pytest.raises(DataLoss, match="offsets 150 to 169"):
        open_reader(archived).partitions()
    only_after = f'{{"{archived}": {{"0": 170, "1": 170}}}}'
    assert values(open_reader(archived, startingOffsets=only_after)) == list(range(340, COUNT))


def test_a_file_that_was_deleted_from_the_archive_is_missed_by_queries_that_need_it(
    archived: str, open_reader: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Each partition has offsets 0 to 49 on the first day, and 50 to 99 on the second.
    [gone] = (tmp_path / f"topic={archived}" / "date=2026-01-31").glob("0-*")
    gone.unlink()
    words = "date=2026-01-31 has 0 of the 1 files that were archived of partition 0"
    whole = open_reader(archived)
    with pytest.raises(DataLoss, match=words):
        whole.partitions()
    with pytest.raises(DataLoss, match=words):
        open_reader(archived, startingTimestamp=str(FIRST_MS)).partitions()
    some = open_reader(archived, failOnDataLoss="false")
    assert values(some) == [number for number in range(COUNT) if number >= 100 or number % 2]
    assert words in caplog.text
    later = f'{{"{archived}": {{"0": 50, "1": 0}}}}'
    assert len(values(open_reader(archived, startingOffsets=later))) == COUNT - 50
    assert values(open_reader(archived, startingTimestamp=str(FIRST_MS + DAY_MS + 100))) == list(range(100, COUNT))
    reader = open_reader(archived, pushFilters="true")
    list(reader.pushFilters([EqualTo(("partition",), 1)]))
    assert values(reader) == list(range(1, COUNT, 2))


def test_a_partition_that_came_after_the_last_run_begins_at_0(
    topics: Topics, broker: EmbeddedBroker, archived: str, open_reader: Open
) -> None:
    topics.admin.create_partitions([NewPartitions(archived, 3)])[archived].result(30)
    # Not the clients that have used the topic before: they do not know the partition yet.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number in range(COUNT, COUNT + 10):
        producer.produce(archived, b"%d" % number, partition=2)
    assert producer.flush(30) == 0
    assert values(open_reader(archived)) == list(range(COUNT + 10))
    place = TopicPartition(archived, 2, 4)
    admin.delete_records([place])[place].result(30)
    with pytest.raises(DataLoss, match="offsets 0 to 3 are neither in its log"):
        open_reader(archived).partitions()


def test_what_the_log_loses_after_planning_is_read_from_the_archive(
    topics: Topics, archived: str, open_reader: Open
) -> None:
    reader = open_reader(archived)
    planned = reader.partitions()
    lose(topics, archived, 140)
    found = [row for one in planned for batch in reader.read(one) for row in batch.to_pylist()]
    assert sorted(int(row["value"]) for row in found) == list(range(COUNT))


def test_tasks_have_no_more_offsets_than_asked_for(archived: str, open_reader: Open) -> None:
    reader = open_reader(archived, maxRecordsPerPartition="30")
    assert all(one.range.size <= 30 for one in reader.partitions())  # type: ignore[attr-defined]
    assert values(reader) == list(range(COUNT))


def test_what_makes_no_sense_is_refused_when_the_query_is_planned(
    topics: Topics, topic: str, archived: str, open_reader: Open, tmp_path: Path
) -> None:
    other = topics.create(f"{topic}-other", 1)
    with pytest.raises(OptionError, match=f"skep archive {other} --to"):
        open_reader(other).partitions()
    with pytest.raises(OptionError, match="only committed records"):
        open_reader(archived, **{"kafka.isolation.level": "read_uncommitted"})
    with pytest.raises(OptionError, match="a folder that"):
        open_reader(archived, archive="s3://bucket/lake")
    (tmp_path / f"topic={archived}").rename(tmp_path / f"topic={other}")
    with pytest.raises(OptionError, match="holds topic"):
        open_reader(other).partitions()
    source = DefaultSource({"kafka.bootstrap.servers": "x", "subscribe": topic, "archive": str(tmp_path)})
    with pytest.raises(OptionError, match="archive: a stream has no end"):
        source.streamReader(source.schema())


def test_spark_reads_log_and_archive_as_one_table_and_the_archive_alone(
    spark: SparkSession, read: Callable[..., Any], archived: str, tmp_path: Path
) -> None:
    table = read(archived, archive=str(tmp_path)).selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
    assert sorted(int(row.value) for row in table.collect()) == list(range(COUNT))
    assert table.distinct().count() == COUNT
    alone = spark.read.parquet(str(tmp_path))
    assert dict(alone.dtypes) == {
        "key": "binary",
        "value": "binary",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
        "topic": "string",
        "date": "date",
    }
    assert alone.count() == 300
    assert alone.where("date != to_date(timestamp)").count() == 0
    assert alone.where("date = '2026-01-31'").count() == 100
