"""Batch reads: the records between two positions, narrowed by the query's filters if ``pushFilters`` is set."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_skep.read.archives import ArchivePartition, Archives, read_archived
from pyspark_skep.read.data_loss import report_loss
from pyspark_skep.read.filters import Pushed
from pyspark_skep.read.lookup import Lookup, check_named
from pyspark_skep.read.offset_ranges import OffsetRange, split_ranges
from pyspark_skep.read.positions import AtOffsets, AtTime
from pyspark_skep.read.range_reader import RangePartition, read_range
from pyspark_skep.read.read_options import ReadOptions
from skep.base.errors import OptionError
from skep.base.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Plans on the driver. ``read`` runs in tasks, on a copy of the object that holds only options and filters."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        archived: list[InputPartition] = []
        ranges = split_ranges(
            self._ranges(archived),
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [*archived, *(RangePartition(one) for one in ranges)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if isinstance(partition, ArchivePartition):
            return read_archived(self._options, partition)
        # For an empty list of partitions Spark creates one that is empty.
        return read_range(self._options, partition.range) if isinstance(partition, RangePartition) else iter(())

    def _ranges(self, archived: list[InputPartition]) -> list[OffsetRange]:
        """Returns the ranges to read from the log, and adds tasks for offsets below the log start to ``archived``."""
        lookup = Lookup(self._options)
        starting, ending = self._options.starting(streaming=False), self._options.ending()
        topics = lookup.topics()
        every = lookup.partitions(topics)
        check_named(starting, every, topics)
        check_named(ending, every, topics)
        _check_order(starting, ending)
        wanted = [one for one in every if self._pushed.reads(*one)]
        if not wanted:
            return []
        earliest, latest = lookup.earliest(wanted), lookup.latest(wanted)
        archives = Archives(self._options, topics) if self._options.archive else None
        if archives is None:
            start, end = lookup.resolve(starting, wanted), lookup.resolve(ending, wanted)
        else:
            start = archives.resolve(lookup, starting, wanted, earliest)
            end = archives.resolve(lookup, ending, wanted, earliest)
        found = []
        for one in wanted:
            # Appends and retention go on between the requests above. Given offsets are checked against the first
            # responses; positions that are resolved to an end need no check.
            if isinstance(ending, AtOffsets) and ending.offsets[one] > latest[one]:
                raise OptionError(f"endingOffsets: {one} ends at {latest[one]}, but {end[one]} is given")
            if isinstance(starting, AtOffsets) and starting.offsets[one] > latest[one]:
                raise OptionError(f"startingOffsets: {one} ends at {latest[one]}, but {start[one]} is given")
            first, last = self._pushed.narrow(start[one], end[one])
            if first < min(earliest[one], last):
                if archives is None:
                    self._report_gone(one, first, earliest[one])
                else:
                    below = OffsetRange(
                        one.topic, topics[one.topic].topic_id, one.partition, first, min(earliest[one], last)
                    )
                    archived += archives.tasks(below, self._pushed, earliest[one])
                first = earliest[one]
            found.append(OffsetRange(one.topic, topics[one.topic].topic_id, one.partition, first, max(first, last)))
        return self._from_time(lookup, found)

    def _report_gone(self, one: TopicPartition, first: int, earliest: int) -> None:
        report_loss(
            f"{one} is to be read from offset {first} and begins at {earliest}",
            fail=self._options.fail_on_data_loss,
        )

    def _from_time(self, lookup: Lookup, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Returns the ranges, each started at the first record that the timestamp filters can match."""
        timestamp_ms = self._pushed.from_timestamp_ms
        ranges = [one for one in ranges if one.size > 0]
        if timestamp_ms is None or not ranges:
            return ranges
        found = lookup.from_time({one.topic_partition: timestamp_ms for one in ranges})
        return [
            # None: no record before the end that was resolved above is new enough.
            one._replace(start=min(one.end, max(one.start, one.end if first is None else first)))
            for one in ranges
            for first in [found[one.topic_partition]]
        ]


class FilteringReader(BatchReader):
    """A batch read that accepts the query's filters. The option ``pushFilters`` selects it.

    It is a class of its own because Spark (4.1 to 4.3) caches the plan with its filters on the loaded DataFrame and
    reuses it for every later query of that DataFrame and for all of its scans in one query: after
    ``df.filter("partition = 0").count()``, ``df.count()`` counts only partition 0. The user has to state that a
    DataFrame is used once. Spark also refuses a reader that defines ``pushFilters`` unless
    ``spark.sql.python.filterPushdown.enabled`` is true; it is false by default, and reading a topic must not need it.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        return self._pushed.take(filters)


def _check_order(starting: object, ending: object) -> None:
    if isinstance(starting, AtTime) and isinstance(ending, AtTime) and starting.timestamp_ms > ending.timestamp_ms:
        raise OptionError(
            f"startingTimestamp={starting.timestamp_ms} is later than endingTimestamp={ending.timestamp_ms}"
        )
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        for one, offset in starting.offsets.items():
            if 0 <= ending.offsets[one] < offset:
                raise OptionError(f"startingOffsets: {offset} of {one} is after {ending.offsets[one]} of endingOffsets")
