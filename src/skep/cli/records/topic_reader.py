"""Reading topics without a consumer group, to their current end or without end.

Partitions are assigned manually and nothing is committed: two readers of a topic do not share its partitions, and the
cluster keeps no trace of them. Reading as a member of a group is in ``group_reader``.
"""

import enum
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.ids import TopicPartition
from skep.cli.connection import CONNECT_TIMEOUT_S, Cluster
from skep.cli.failures import CommandError, UsageError, reason
from skep.cli.log_offsets import earliest_offsets, latest_offsets, offsets_at_time
from skep.cli.records.broker_watch import BrokerWatch

BATCH_MESSAGES = 5_000
POLL_S = 0.1
QUICK_FETCHES = {"fetch.queue.backoff.ms": 5}
"""librdkafka stops fetching when 100,000 records are queued and waits a second by default. A reader takes them in a
tenth of that, so that 1 M small records take 5 s with the default and 0.7 s with 5 ms."""
NO_GROUP = "skep-cli-" + "no-group-" * 120
"""The group id of a reader without a group. librdkafka requires one and looks up its coordinator, even if partitions
are assigned manually, and the first such lookup creates ``__consumer_offsets``. An id of more than 1,024 bytes, the
default of skep.max.group.id.bytes, is refused before that. The reader works without a coordinator."""
_RESPONSES_TO_NO_GROUP = (KafkaError.INVALID_GROUP_ID, KafkaError.GROUP_AUTHORIZATION_FAILED)
Batches = Generator[list[Message], None, None]


class Place(enum.Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True)
class Start:
    """Where reading starts. A negative offset counts from the end: -10 is ten before the end of each partition."""

    place: Place
    value: int = 0


@dataclass(frozen=True)
class Span:
    """The offsets to read from one partition: ``start`` up to but not including ``end``; None: without end."""

    start: int
    end: int | None


def spans(
    cluster: Cluster, topic: str, partitions: Sequence[int], start: Start, *, follow: bool, committed: bool = False
) -> dict[int, Span]:
    """Returns the offsets to read from each partition, up to its current end, or without end if ``follow``.

    With ``committed`` the end is the last stable offset, so that a reader that starts at the end gets the records of a
    transaction that is open now.
    """
    places = [TopicPartition(topic, partition) for partition in partitions]
    earliest, latest = earliest_offsets(cluster, places), latest_offsets(cluster, places, committed=committed)
    at_time = offsets_at_time(cluster, places, start.value) if start.place is Place.TIME else {}
    if start.place is Place.OFFSET and start.value > (furthest := max(latest.values())):
        raise CommandError(f"offset {start.value} is past the end of topic '{topic}': its log end offset is {furthest}")
    found = {}
    for place in places:
        end = latest[place]
        offset = start_offset(start, earliest[place], end, at_time.get(place, -1))
        found[place.partition] = Span(offset, None if follow else end)
    return found


def start_offset(start: Start, earliest: int, latest: int, at_time: int) -> int:
    """Returns the offset at which to start in one partition; ``at_time`` is -1 if all its records are older.

    An offset outside the log is replaced by the nearest one inside it, because partitions differ in length.
    """
    if start.place is Place.BEGINNING:
        return earliest
    if start.place is Place.END:
        return latest
    if start.place is Place.TIME:
        return at_time if at_time >= 0 else latest
    wanted = start.value if start.value >= 0 else latest + start.value
    return min(max(wanted, earliest), latest)


def read(
    cluster: Cluster,
    wanted: Mapping[str, Mapping[int, Span]],
    *,
    max_messages: int | None = None,
    idle_timeout_s: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> Batches:
    """Yields lists of messages as they arrive; an empty list when there are none for the moment.

    Ends when every span is read, after ``max_messages``, or when no message arrived for ``idle_timeout_s``. If all
    spans have an end, raises CommandError when no broker answers any more; otherwise says so and waits.
    """
    reader = _Reader(wanted)
    left = max_messages
    if not reader.open or left == 0:
        return
    consumer = open_consumer(cluster, settings or {})
    try:
        consumer.assign([ClientPartition(topic, partition, span.start) for topic, partition, span in reader.spans()])
        quiet_since = time.monotonic()
        watch = BrokerWatch(cluster)
        while reader.open and left != 0:
            first = consumer.poll(POLL_S)
            # consume(timeout=0) returns only what is already fetched, so a single message is not delayed.
            polled = [] if first is None else [first, *consumer.consume(BATCH_MESSAGES, timeout=0)]
            messages = reader.take(polled)
            if left is not None:
                messages = messages[:left]
                left -= len(messages)
            if messages:
                quiet_since = time.monotonic()
            elif idle_timeout_s is not None and time.monotonic() - quiet_since >= idle_timeout_s:
                return
            elif reader.has_only_ends and time.monotonic() - quiet_since >= CONNECT_TIMEOUT_S:
                # librdkafka retries for ever, which is right with --follow and wrong for a script. A request is more
                # reliable than its error callback, which does not report every unreachable broker.
                cluster.metadata()
                quiet_since = time.monotonic()
            if not reader.has_only_ends:
                watch.turn(got_records=bool(messages))
            yield messages
    finally:
        consumer.close()


def open_consumer(cluster: Cluster, settings: Mapping[str, Any], group: str | None = None) -> Consumer:
    needed = {"group.id": group or NO_GROUP, "enable.auto.commit": False, "enable.partition.eof": True}
    defaults = {"auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", **QUICK_FETCHES}
    try:
        return Consumer(cluster.config({**defaults, **settings}) | needed)
    except KafkaException as error:
        raise UsageError(reason(error)) from None


class _Reader:
    """Tracks which spans are still open.

    A span closes with its last offset or at the end of its partition: the last offsets may belong to no message
    (control records, compaction), so the end-of-partition event is needed, too.
    """

    def __init__(self, wanted: Mapping[str, Mapping[int, Span]]) -> None:
        self._spans = {(topic, partition): span for topic, parts in wanted.items() for partition, span in parts.items()}
        self.open = {key for key, span in self._spans.items() if span.end is None or span.start < span.end}

    @property
    def has_only_ends(self) -> bool:
        return all(self._spans[key].end is not None for key in self.open)

    def spans(self) -> list[tuple[str, int, Span]]:
        return [(topic, partition, self._spans[topic, partition]) for topic, partition in sorted(self.open)]

    def take(self, polled: list[Message]) -> list[Message]:
        taken = []
        for message in polled:
            if (error := message.error()) is not None:
                self._handle_error(message, error)
                continue
            key = (message.topic() or "", message.partition() or 0)
            end = self._spans[key].end
            offset = message.offset() or 0
            if end is None:
                taken.append(message)
                continue
            if offset < end:
                taken.append(message)
            if offset >= end - 1:
                self.open.discard(key)
        return taken

    def _handle_error(self, message: Message, error: KafkaError) -> None:
        if error.code() in _RESPONSES_TO_NO_GROUP:
            return
        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandError(f"cannot read {message.topic()}-{message.partition()}: {reason(error)}")
        key = (message.topic() or "", message.partition() or 0)
        if self._spans[key].end is not None:
            self.open.discard(key)
