"""Batch reads: what is between two positions now, without what the query's filters rule out where they are taken."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_skep.read.archives import ArchivePartition, Archives, read_archived
from pyspark_skep.read.filters import Pushed
from pyspark_skep.read.lookup import Lookup, check_named
from pyspark_skep.read.offset_ranges import OffsetRange, split_ranges
from pyspark_skep.read.positions import AtOffsets, AtTime, TopicPartition
from pyspark_skep.read.range_reader import RangePartition, read_range, report_loss
from pyspark_skep.read.read_options import ReadOptions
from skep.base.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Plans on the driver; ``read`` runs in tasks, with a copy of this that has nothing but options."""

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
        # Where there is nothing to read Spark makes up a partition, one with nothing in it.
        return read_range(self._options, partition.range) if isinstance(partition, RangePartition) else iter(())

    def _ranges(self, archived: list[InputPartition]) -> list[OffsetRange]:
        """What is read from the log. What the log no longer has and an archive has is added to ``archived``."""
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
            # Records may come and retention may take some between the questions; what was asked for is checked by
            # what was there at first, and ends that were asked for as such are right by themselves.
            if isinstance(ending, AtOffsets) and ending.offsets[one] > latest[one]:
                raise OptionError(f"endingOffsets: {one[0]}-{one[1]} ends at {latest[one]}, {end[one]} is asked for")
            if isinstance(starting, AtOffsets) and starting.offsets[one] > latest[one]:
                raise OptionError(
                    f"startingOffsets: {one[0]}-{one[1]} ends at {latest[one]}, {start[one]} is asked for"
                )
            first, last = self._pushed.narrow(start[one], end[one])
            if first < min(earliest[one], last):
                if archives is None:
                    self._report_gone(one, first, earliest[one])
                else:
                    below = OffsetRange(one[0], topics[one[0]].topic_id, one[1], first, min(earliest[one], last))
                    archived += archives.tasks(below, self._pushed, earliest[one])
                first = earliest[one]
            found.append(OffsetRange(one[0], topics[one[0]].topic_id, one[1], first, max(first, last)))
        return self._from_time(lookup, found)

    def _report_gone(self, one: TopicPartition, first: int, earliest: int) -> None:
        report_loss(
            f"{one[0]}-{one[1]} is to be read from offset {first} and begins at {earliest}",
            fail=self._options.fail_on_data_loss,
        )

    def _from_time(self, lookup: Lookup, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what lies before the first record that the filters on timestamp let through."""
        timestamp_ms = self._pushed.from_timestamp_ms
        ranges = [one for one in ranges if one.size > 0]
        if timestamp_ms is None or not ranges:
            return ranges
        found = lookup.from_time({(one.topic, one.partition): timestamp_ms for one in ranges})
        return [
            # None: no record up to the end that was looked up before is young enough.
            one._replace(start=min(one.end, max(one.start, one.end if first is None else first)))
            for one in ranges
            for first in [found[one.topic, one.partition]]
        ]


class FilteringReader(BatchReader):
    """A batch read that takes the query's filters; asked for with the option ``pushFilters``.

    Apart, because Spark (4.1 to 4.3) keeps what it planned with a filter on the DataFrame that was loaded, and uses it
    for every later query of that DataFrame, and for all of its scans in one query: with ``df.filter("partition = 0")``
    counted, ``df.count()`` counts only partition 0. So it must be the user's to say that a DataFrame is used once.
    Spark also refuses a reader with a ``pushFilters`` of its own unless ``spark.sql.python.filterPushdown.enabled`` is
    true; it is false by default, and reading a topic should not need it.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        return self._pushed.take(filters)


def _check_order(starting: object, ending: object) -> None:
    if isinstance(starting, AtTime) and isinstance(ending, AtTime) and starting.timestamp_ms > ending.timestamp_ms:
        raise OptionError(f"startingTimestamp={starting.timestamp_ms} is after endingTimestamp={ending.timestamp_ms}")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        for (topic, partition), offset in starting.offsets.items():
            if 0 <= ending.offsets[topic, partition] < offset:
                raise OptionError(
                    f"startingOffsets: {offset} of {topic}-{partition} is after {ending.offsets[topic, partition]} "
                    "of endingOffsets"
                )
