"""The requests with which the driver plans a read: which partitions exist, and where they begin and end.

A request that gets no response is sent again for ``kafka.default.api.timeout.ms`` and at least
``fetchOffset.numRetries`` times, so a broker that restarts only delays a query. A request for a topic that is reported
missing is repeated ``fetchOffset.numRetries`` times, because the metadata of a broker may be stale.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from pyspark_skep.read.positions import (
    EARLIEST,
    LATEST,
    AtEnd,
    AtOffsets,
    AtTime,
    AtTimes,
    Position,
    parse_assign,
)
from pyspark_skep.read.read_options import ReadOptions
from pyspark_skep.write.decisions import TOPIC as DECISIONS
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.ids import TopicPartition, show_topic_id
from skep.base.unknown_names import no_such_topic
from skep.client.cluster_client import ClusterClient, shared_cluster
from skep.client.errors import TimedOut, Unreachable
from skep.client.list_offsets import list_ends, list_offsets
from skep.client.topic_info import TopicInfo, describe_topics, list_topics

T = TypeVar("T")

LONGEST_PAUSE_S = 1.0


MISSING = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.invalid_topic_exception}
)


class TopicMissing(Exception):
    """A topic or partition that the query names does not exist."""


class Lookup:
    """Sends the requests of one query. It holds no connection, so Spark can pickle it to other processes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._assigned = parse_assign(options.assign) if options.assign else None

    @property
    def cluster(self) -> ClusterClient:
        options = self._options
        return shared_cluster(
            options.bootstrap_servers,
            client_id=options.client_id,
            timeout_s=options.request_timeout_ms / 1000,
            security=options.security,
        )

    def topics(self, *, may_be_missing: bool = False) -> dict[str, TopicInfo]:
        """Returns the topics that the query reads. Raises TopicMissing if one that is named does not exist."""
        if self._options.subscribe_pattern:
            # Java's Pattern.matcher(...).matches(), which Kafka's consumers use, is fullmatch here.
            pattern = re.compile(self._options.subscribe_pattern.strip())
            every = self._retry(lambda: list_topics(self.cluster))
            # No pattern matches the sink's own topic, as none matches the internal topics of brokers.
            return {info.name: info for info in every if pattern.fullmatch(info.name) and info.name != DECISIONS}
        names = {topic for topic, _ in self._assigned} if self._assigned else set(self._options.subscribe)
        found = self.describe(names)
        missing = sorted(names - set(found))
        if missing and not may_be_missing:
            raise TopicMissing("; ".join(map(no_such_topic, missing)))
        return found

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Returns those of the named topics that exist."""
        found = self._describe(sorted(names))
        if found is not None:
            return found
        # The response does not say which one is missing, so each is requested alone.
        each = [self._describe([name]) for name in sorted(names)]
        return {info.name: info for one in each if one is not None for info in one.values()}

    def _describe(self, names: list[str]) -> dict[str, TopicInfo] | None:
        """Returns None if one of them does not exist."""
        try:
            return self._retry(lambda: describe_topics(self.cluster, names))
        except KafkaError as error:
            if error.code in MISSING:
                return None
            raise

    def partitions(self, topics: Mapping[str, TopicInfo], *, may_be_missing: bool = False) -> list[TopicPartition]:
        """Returns all partitions of these topics, or the assigned ones. Raises TopicMissing if one does not exist."""
        every = [
            TopicPartition(info.name, number) for info in topics.values() for number in range(info.partition_count)
        ]
        if self._assigned is None:
            return every
        missing = sorted(set(self._assigned) - set(every))
        if missing and not may_be_missing:
            raise TopicMissing("there is no partition " + ", ".join(map(str, missing)))
        return [one for one in self._assigned if one not in missing]

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ends(partitions, EARLIEST)

    def latest(
        self, partitions: Collection[TopicPartition], at_least: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the end of each partition: with ``read_committed`` the last stable offset.

        ``at_least`` holds ends that were seen before. A lower end is confirmed before it is returned (``list_ends``).
        """
        known = at_least or {}
        wanted = {one: known.get(one, 0) for one in partitions}
        return self._retry(lambda: list_ends(self.cluster, wanted, committed=self._options.committed))

    def from_time(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Returns the first offset whose timestamp is at or after the given one, or None if there is no such record."""
        committed = self._options.committed
        return self._retry(lambda: list_offsets(self.cluster, wanted, committed=committed))

    def _ends(self, partitions: Collection[TopicPartition], end: int) -> dict[TopicPartition, int]:
        return {one: offset or 0 for one, offset in self.from_time(dict.fromkeys(partitions, end)).items()}

    def resolve(self, position: Position, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset of each partition at ``position``. Call ``check_named`` first."""
        if isinstance(position, AtEnd):
            return self._ends(partitions, position.end)
        if isinstance(position, AtOffsets):
            wanted = {one: position.offsets[one] for one in partitions}
            ends = {one: offset for one, offset in wanted.items() if offset in (EARLIEST, LATEST)}
            return wanted | {one: offset or 0 for one, offset in self.from_time(ends).items()}
        times = {one: time_of(position, one) for one in partitions}
        found = self.from_time(times)
        unmatched = [one for one, offset in found.items() if offset is None]
        if unmatched and position.option.startswith("starting") and self._strategy == "error":
            raise OptionError(
                f"{position.option}: {unmatched[0]} has no record at or after {times[unmatched[0]]}; set "
                "startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return {one: offset for one, offset in found.items() if offset is not None} | self.latest(unmatched)

    @property
    def _strategy(self) -> str:
        return self._options.starting_offsets_by_timestamp_strategy

    def _retry(self, ask: Callable[[], T]) -> T:
        options = self._options
        deadline = time.monotonic() + options.default_api_timeout_ms / 1000
        pause_s = options.fetch_offset_retry_interval_ms / 1000
        retries = 0
        while True:
            try:
                return ask()
            except (Unreachable, TimedOut):
                if retries >= options.fetch_offset_num_retries and time.monotonic() >= deadline:
                    raise
            except KafkaError as error:
                if error.code not in MISSING or retries >= options.fetch_offset_num_retries:
                    raise
                # The metadata of this broker may not have the topic yet.
                self.cluster.switch_metadata_broker()
            retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def time_of(position: AtTime | AtTimes, one: TopicPartition) -> int:
    return position.timestamp_ms if isinstance(position, AtTime) else position.timestamps_ms[one]


def check_named(position: Position, partitions: Collection[TopicPartition], topics: Mapping[str, TopicInfo]) -> None:
    """Raises OptionError unless a position by partition names exactly the partitions that are read, as in Spark."""
    if isinstance(position, AtOffsets):
        named = set(position.offsets)
        for topic, topic_id in position.topic_ids.items():
            if topic in topics and str(topics[topic].topic_id) != topic_id:
                raise OptionError(
                    f"{position.option}: the offsets are of a topic '{topic}' with the id {_shown(topic_id)}, but the "
                    f"topic now has the id {show_topic_id(topics[topic].topic_id)}; it was deleted and created again"
                )
    elif isinstance(position, AtTimes):
        named = set(position.timestamps_ms)
    else:
        return
    problems = [
        f"{problem} {', '.join(map(str, sorted(some)))}"
        for problem, some in (("missing:", set(partitions) - named), ("not read:", named - set(partitions)))
        if some
    ]
    if problems:
        raise OptionError(f"{position.option} must name exactly the partitions that are read; {'; '.join(problems)}")


def _shown(topic_id: str) -> str:
    """Returns the id of a checkpoint or an option, which anyone may have written, as other messages show ids."""
    try:
        return show_topic_id(UUID(topic_id))
    except ValueError:
        return topic_id
