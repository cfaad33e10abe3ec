"""What the driver asks of brokers to plan a read: which partitions there are, where they begin and end.

A broker that does not answer is asked again, for ``kafka.default.api.timeout.ms`` and at least
``fetchOffset.numRetries`` times: that it is being restarted costs a query time. A topic that is said not to be there is
asked for ``fetchOffset.numRetries`` times more, for a broker may be behind in what it knows.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from pyspark_skep.read.positions import (
    EARLIEST,
    LATEST,
    AtEnd,
    AtOffsets,
    AtTime,
    AtTimes,
    Position,
    TopicPartition,
    parse_assign,
)
from pyspark_skep.read.read_options import ReadOptions
from pyspark_skep.write.decisions import TOPIC as DECISIONS
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.client.cluster_client import ClusterClient
from skep.client.errors import TimedOut, Unreachable
from skep.client.list_offsets import list_ends, list_offsets
from skep.client.shared import shared_cluster
from skep.client.topic_info import TopicInfo, describe_topics, list_topics

T = TypeVar("T")

LONGEST_PAUSE_S = 1.0


MISSING = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.invalid_topic_exception}
)


class TopicMissing(Exception):
    """A topic or partition that the query names is not there."""


class Lookup:
    """Asks as one query's options say. Has no connection of its own, so it can be sent to other processes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._assigned = parse_assign(options.assign) if options.assign else None

    @property
    def cluster(self) -> ClusterClient:
        options = self._options
        return shared_cluster(
            options.bootstrap_servers, client_id=options.client_id, timeout_s=options.request_timeout_ms / 1000
        )

    def topics(self, *, may_be_missing: bool = False) -> dict[str, TopicInfo]:
        """The topics that the query reads, as they are now. TopicMissing for one that is named and not there."""
        if self._options.subscribe_pattern:
            # Java's Pattern.matcher(...).matches(), which Kafka's consumers use, is fullmatch here.
            pattern = re.compile(self._options.subscribe_pattern.strip())
            every = self._patiently(lambda: list_topics(self.cluster))
            # No pattern means the sink's own topic, as none means those of the brokers.
            return {info.name: info for info in every if pattern.fullmatch(info.name) and info.name != DECISIONS}
        names = {topic for topic, _ in self._assigned} if self._assigned else set(self._options.subscribe)
        found = self.describe(names)
        missing = sorted(names - set(found))
        if missing and not may_be_missing:
            raise TopicMissing(f"there is no topic {' and no topic '.join(map(repr, missing))}")
        return found

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that are there."""
        found = self._describe(sorted(names))
        if found is not None:
            return found
        # Which one is missing can only be found out by asking for each.
        each = [self._describe([name]) for name in sorted(names)]
        return {info.name: info for one in each if one is not None for info in one.values()}

    def _describe(self, names: list[str]) -> dict[str, TopicInfo] | None:
        """None when one of them is not there."""
        try:
            return self._patiently(lambda: describe_topics(self.cluster, names))
        except KafkaError as error:
            if error.code in MISSING:
                return None
            raise

    def partitions(self, topics: Mapping[str, TopicInfo], *, may_be_missing: bool = False) -> list[TopicPartition]:
        """Every partition of these topics, or the assigned ones. TopicMissing for an assigned one that is not there."""
        every = [(info.name, number) for info in topics.values() for number in range(info.partition_count)]
        if self._assigned is None:
            return every
        missing = sorted(set(self._assigned) - set(every))
        if missing and not may_be_missing:
            raise TopicMissing("there is no partition " + ", ".join(f"{topic}-{number}" for topic, number in missing))
        return [one for one in self._assigned if one not in missing]

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ends(partitions, EARLIEST)

    def latest(
        self, partitions: Collection[TopicPartition], at_least: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Where reading ends for now: with ``read_committed`` before the oldest open transaction.

        ``at_least`` are ends that there were before; what lies below them is not believed at once (``list_ends``).
        """
        known = at_least or {}
        wanted = {one: known.get(one, 0) for one in partitions}
        return self._patiently(lambda: list_ends(self.cluster, wanted, committed=self._options.committed))

    def from_time(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is not older; None where there is no such record."""
        committed = self._options.committed
        return self._patiently(lambda: list_offsets(self.cluster, wanted, committed=committed))

    def _ends(self, partitions: Collection[TopicPartition], end: int) -> dict[TopicPartition, int]:
        return {one: offset or 0 for one, offset in self.from_time(dict.fromkeys(partitions, end)).items()}

    def resolve(self, position: Position, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of each partition at ``position``, which was checked against the query's partitions before."""
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
            topic, number = unmatched[0]
            raise OptionError(
                f"{position.option}: {topic}-{number} has no record at or after {times[topic, number]}; with "
                "startingOffsetsByTimestampStrategy=latest reading would start at its end"
            )
        return {one: offset for one, offset in found.items() if offset is not None} | self.latest(unmatched)

    @property
    def _strategy(self) -> str:
        return self._options.starting_offsets_by_timestamp_strategy

    def _patiently(self, ask: Callable[[], T]) -> T:
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
                # The one that was asked may not have heard of a topic yet.
                self.cluster.look_elsewhere()
            retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def time_of(position: AtTime | AtTimes, one: TopicPartition) -> int:
    return position.timestamp_ms if isinstance(position, AtTime) else position.timestamps_ms[one]


def check_named(position: Position, partitions: Collection[TopicPartition], topics: Mapping[str, TopicInfo]) -> None:
    """A position that is given by partition has to name each one that is read, and no other, as in Spark."""
    if isinstance(position, AtOffsets):
        named = set(position.offsets)
        for topic, topic_id in position.topic_ids.items():
            if topic in topics and str(topics[topic].topic_id) != topic_id:
                raise OptionError(
                    f"{position.option}: topic '{topic}' has the id {topics[topic].topic_id}, and the offsets are of "
                    f"a topic of that name with the id {topic_id}"
                )
    elif isinstance(position, AtTimes):
        named = set(position.timestamps_ms)
    else:
        return
    problems = [
        f"{problem} {', '.join(f'{topic}-{number}' for topic, number in sorted(some))}"
        for problem, some in (("it lacks", set(partitions) - named), ("not read is", named - set(partitions)))
        if some
    ]
    if problems:
        raise OptionError(f"{position.option} must name every partition that is read: {'; '.join(problems)}")
