"""Streaming reads: each micro-batch reads from the end of the last one to the current end of the topics.

Spark keeps one reader on its driver, in a process of its own, for as long as a query runs, and calls it for offsets.
Tasks have copies that only ``read``. ``start`` comes from Spark's checkpoint and may be old: topics may have been
deleted, created again or truncated by retention since, and options may have changed. Each micro-batch is checked for
such losses before it is read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_skep.read.data_loss import report_loss
from pyspark_skep.read.lookup import MISSING, Lookup, check_named
from pyspark_skep.read.offset_ranges import OffsetRange, limit_offsets, split_ranges
from pyspark_skep.read.positions import AtOffsets
from pyspark_skep.read.range_reader import RangePartition, read_range
from pyspark_skep.read.read_options import ReadOptions, duration_ms
from pyspark_skep.read.stream_offsets import StreamOffsets, TopicOffsets, losses
from skep.base.errors import KafkaError, OptionError
from skep.base.ids import TopicPartition
from skep.client.errors import ClientError
from skep.client.topic_info import TopicInfo

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Keeps only what it may lose: the last known ends, when a batch last started, which losses were reported."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._lookup = Lookup(options)
        self._latest: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._started_s: float | None = None
        self._committed: StreamOffsets | None = None
        self._initial: StreamOffsets | None = None
        self._reported: set[str] = set()

    def initialOffset(self) -> dict[str, Any]:
        topics = self._lookup.topics()
        partitions = self._lookup.partitions(topics)
        starting = self._options.starting(streaming=True)
        check_named(starting, partitions, topics)
        offsets = self._lookup.resolve(starting, partitions)
        if isinstance(starting, AtOffsets):
            for one, end in self._lookup.latest(partitions).items():
                if offsets[one] > end:
                    raise OptionError(f"startingOffsets: {one} ends at {end}, but {offsets[one]} is given")
        self._initial = _stream_offsets(topics, offsets)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes this limit to latestOffset. It has no limit with both a minimum and a maximum; with both, the
        # minimum is taken from the options there.
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ask_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = StreamOffsets.from_json(start)
        # Spark calls this when the last micro-batch is done, so everything before `start` has been processed. The last
        # batch of a query can only be committed here: Spark calls `commit` for it with the batch after it.
        self._commit_to_group(begin)
        latest = self._target
        if latest is None:
            latest = self._ask_latest(begin)
        elif any(losses(begin, latest)):
            # The target was looked up without `start`, so an end below it was not confirmed.
            latest = self._target = self._ask_latest(begin)
        for text in losses(begin, latest):
            self._report_once(text)
        self._latest = latest = latest.with_missing(begin)
        try:
            end = self._limited(begin, latest, limit)
        except KafkaError as error:
            if error.code not in MISSING:
                raise
            self._latest = latest = self._still_there(latest).with_missing(begin)
            end = self._limited(begin, latest, limit)
        # Spark compares offsets as text: without new records the text must stay identical.
        if end == begin:
            return start
        if begin == self._initial:
            end = StreamOffsets(end)
            end.started_at = begin
        return end.to_json()

    def _report_once(self, text: str) -> None:
        """Every micro-batch finds the same loss again; it is reported once."""
        if text not in self._reported:
            report_loss(text, fail=self._options.fail_on_data_loss)
            self._reported.add(text)

    def _still_there(self, latest: StreamOffsets) -> StreamOffsets:
        """Returns ``latest`` without topics deleted since; with AvailableNow it was looked up long ago."""
        now = self._lookup.describe(latest)
        found = StreamOffsets()
        for topic, entry in latest.items():
            if topic in now and now[topic].topic_id == entry.topic_id:
                found[topic] = entry
            else:
                self._report_once(f"topic '{topic}' was deleted before it was read")
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest.to_json() if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = _twice_if_missing(lambda: self._ranges(StreamOffsets.from_json(start), StreamOffsets.from_json(end)))
        pieces = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [RangePartition(one) for one in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_to_group(StreamOffsets.from_json(end))

    def _ask_latest(self, since: StreamOffsets | None = None) -> StreamOffsets:
        """Looks up the current ends. ``since`` holds the ends of the last micro-batch."""
        may_be_missing = not self._options.fail_on_data_loss

        def ask() -> StreamOffsets:
            topics = self._lookup.topics(may_be_missing=may_be_missing)
            partitions = self._lookup.partitions(topics, may_be_missing=may_be_missing)
            at_least = {
                one: before
                for one in partitions
                if since is not None and (before := since.known(one, topics[one.topic].topic_id)) is not None
            }
            return _stream_offsets(topics, self._lookup.latest(partitions, at_least))

        return _twice_if_missing(ask)

    def _limited(self, start: StreamOffsets, latest: StreamOffsets, limit: ReadLimit) -> StreamOffsets:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        least = limit.min_rows if isinstance(limit, ReadMinRows) else 0
        if most and not least:
            least = self._options.min_offsets_per_trigger
        if not most and not least:
            return latest
        end = dict(latest.partitions())
        begin = self._begin_of(start, latest)
        # With AvailableNow there is nothing to wait for: what is left may be below the minimum.
        if least and self._target is None and self._must_wait(sum(end[one] - begin[one] for one in end), least):
            return start
        return latest.replaced(limit_offsets(most, begin, end)) if most else latest

    def _begin_of(self, start: StreamOffsets, latest: StreamOffsets) -> dict[TopicPartition, int]:
        """Returns where to continue in each partition of ``latest``. New ones are read from their beginning."""
        begin = {one: start.known(one, latest[one.topic].topic_id) for one, _ in latest.partitions()}
        new = [one for one, offset in begin.items() if offset is None]
        earliest = self._lookup.earliest(new) if new else {}
        return {one: earliest[one] if offset is None else offset for one, offset in begin.items()}

    def _must_wait(self, count: int, least: int) -> bool:
        now_s = monotonic()
        delay_s = duration_ms(self._options.max_trigger_delay) / 1000
        if self._started_s is not None and now_s - self._started_s < delay_s and count < least:
            return True
        self._started_s = now_s
        return False

    def _ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
        fail = self._options.fail_on_data_loss
        # A micro-batch without data may start and end where the first one ended.
        if end.started_at is not None and start.started_at is None:
            start = end.started_at
        there = StreamOffsets()
        wanted = _without_done(start, end)
        # Looked up again, by name and not by the options: Spark may have planned `end` long ago, in another run.
        now = self._lookup.describe(wanted)
        for topic, entry in wanted.items():
            if topic not in now or now[topic].topic_id != entry.topic_id:
                gone = "was deleted" if topic not in now else "was deleted and created again"
                report_loss(f"topic '{topic}' {gone} before a micro-batch of it was read", fail=fail)
            else:
                there[topic] = entry
        partitions = [one for one, _ in there.partitions()]
        earliest, latest = self._lookup.earliest(partitions), self._lookup.latest(partitions, dict(there.partitions()))
        found = []
        for one, planned in there.partitions():
            topic_id = there[one.topic].topic_id
            first, last = self._bounds(start, one, topic_id, planned, earliest[one])
            if last > latest[one]:
                report_loss(f"{one} is to be read up to {last} and ends at {latest[one]}", fail=fail)
                last = latest[one]
            found.append(OffsetRange(one.topic, topic_id, one.partition, first, last))
        return found

    def _bounds(
        self, start: StreamOffsets, one: TopicPartition, topic_id: UUID, planned: int, earliest: int
    ) -> tuple[int, int]:
        """Returns the start and the end to read, given that records before ``earliest`` are deleted."""
        known = start.known(one, topic_id)
        was_added = known is None and one.topic in start and start[one.topic].topic_id == topic_id
        # A partition that was added while the query ran was empty then, so all of its records must be read. For a topic
        # that is new to the query, records that retention deleted earlier were never promised.
        first = known if known is not None else 0 if was_added else earliest
        if first < min(earliest, planned):
            report_loss(
                f"{one} is to be read from offset {first} and begins at {earliest}",
                fail=self._options.fail_on_data_loss,
            )
        return max(first, earliest), planned

    def _commit_to_group(self, done: StreamOffsets) -> None:
        if not self._options.group_id or done == self._committed:
            return
        from skep.client.admin import commit_group_offsets

        try:
            there = self._lookup.describe(done)
            offsets = {one: offset for one, offset in done.partitions() if one.topic in there}
            commit_group_offsets(self._lookup.cluster, self._options.group_id, offsets)
        except (KafkaError, ClientError) as error:
            # The group is for monitoring and the query does not read it, so this is no reason to fail. The next batch
            # tries again.
            _log.warning("cannot commit progress to group '%s': %s", self._options.group_id, error)
        else:
            self._committed = done


def _twice_if_missing(ask: Callable[[], T]) -> T:
    """A topic may be deleted between two requests of ``ask``. A second run then fails at its first request, clearly."""
    try:
        return ask()
    except KafkaError as error:
        if error.code not in MISSING:
            raise
        return ask()


def _without_done(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Returns the part of ``end`` that is not read yet. The rest may be deleted and must not be looked up."""
    found = StreamOffsets()
    for one, offset in end.partitions():
        topic_id = end[one.topic].topic_id
        if start.known(one, topic_id) != offset:
            found.setdefault(one.topic, TopicOffsets(topic_id, {})).offsets[one.partition] = offset
    return found


def _stream_offsets(topics: Mapping[str, TopicInfo], offsets: Mapping[TopicPartition, int]) -> StreamOffsets:
    """Returns the offsets grouped by topic. Topics without a partition in ``offsets`` are left out."""
    found = StreamOffsets()
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, TopicOffsets(topics[topic].topic_id, {})).offsets[number] = offset
    return found
