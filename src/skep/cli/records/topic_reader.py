"""Reading a topic from chosen places to its present end, or on and on.

Partitions are assigned by hand and offsets are asked for, so no consumer group is involved: two people looking at the
same topic do not take records from each other, and nothing about the looking is left in the cluster. Reading as a
member of a group is in ``group_reading``.
"""

import enum
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.ids import TopicPartition
from skep.cli.connection import ANSWER_WITHIN_S, Cluster
from skep.cli.failures import CommandError, UsageError, reason
from skep.cli.log_offsets import earliest_offsets, latest_offsets, offsets_at_time

BATCH_MESSAGES = 5_000
POLL_S = 0.1
QUICK_FETCHES = {"fetch.queue.backoff.ms": 5}
"""With its default of a second librdkafka idles most of the time: it stops fetching when 100,000 records wait, a reader
takes those in a tenth of that, and 1 M small records take 5 s instead of 0.7."""
Batches = Generator[list[Message], None, None]


class Place(enum.Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True)
class Start:
    """Where reading begins. A negative offset counts from the end: -10 is the last ten of each partition."""

    place: Place
    value: int = 0


@dataclass(frozen=True)
class Span:
    """Offsets to read of one partition: from ``start`` to before ``end``; without an end, whatever comes."""

    start: int
    end: int | None


def partitions_of(cluster: Cluster, topic: str, wanted: Sequence[int]) -> list[int]:
    """The wanted partitions, or all; one that is not there is a CommandError."""
    there = sorted(cluster.topic(topic).partitions)
    for partition in wanted:
        if partition not in there:
            raise CommandError(f"topic '{topic}' has no partition {partition}, its last is {there[-1]}")
    return sorted(set(wanted)) or there


def spans(cluster: Cluster, topic: str, partitions: Sequence[int], start: Start, *, follow: bool) -> dict[int, Span]:
    """What is to be read of each partition, with the ends as they are now."""
    places = [TopicPartition(topic, partition) for partition in partitions]
    earliest, latest = earliest_offsets(cluster, places), latest_offsets(cluster, places)
    at_time = offsets_at_time(cluster, places, start.value) if start.place is Place.TIME else {}
    if start.place is Place.OFFSET and start.value > (furthest := max(latest.values())):
        raise CommandError(f"topic '{topic}' does not reach offset {start.value}: its next is {furthest}")
    found = {}
    for place in places:
        end = latest[place]
        offset = start_offset(start, earliest[place], end, at_time.get(place, -1))
        found[place.partition] = Span(offset, None if follow else end)
    return found


def start_offset(start: Start, earliest: int, latest: int, at_time: int) -> int:
    """The offset that ``start`` means in a partition with these marks; ``at_time`` is -1 when all is older.

    An offset that the partition does not hold means the nearest one that it does: partitions differ in length.
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
    """Lists of messages as they come, by topic and partition wanted; an empty list when there is a pause.

    Ends when every span is read, when ``max_messages`` are, or when nothing came for ``idle_timeout_s``. While a span
    with an end is read, brokers that stay away are a CommandError.
    """
    reader = _Reader(wanted)
    left = max_messages
    if not reader.open or left == 0:
        return
    consumer = open_consumer(cluster, settings or {})
    try:
        consumer.assign([ClientPartition(topic, partition, span.start) for topic, partition, span in reader.spans()])
        quiet_since = time.monotonic()
        while reader.open and left != 0:
            first = consumer.poll(POLL_S)
            # What has already been fetched comes without waiting, so a lone message is not held up for company.
            polled = [] if first is None else [first, *consumer.consume(BATCH_MESSAGES, timeout=0)]
            messages = reader.take(polled)
            if left is not None:
                messages = messages[:left]
                left -= len(messages)
            if messages:
                quiet_since = time.monotonic()
            elif idle_timeout_s is not None and time.monotonic() - quiet_since >= idle_timeout_s:
                return
            elif reader.awaits_an_end and time.monotonic() - quiet_since >= ANSWER_WITHIN_S:
                # The library would try for ever, which is right for one who follows and wrong for a script. Asking is
                # surer than its complaints: it does not report every broker that stays away.
                cluster.metadata()
                quiet_since = time.monotonic()
            yield messages
    finally:
        consumer.close()


def open_consumer(cluster: Cluster, settings: Mapping[str, str], group: str | None = None) -> Consumer:
    # The library demands a group id; with assign() and no commits no group comes into being.
    needed = {"group.id": group or "skep-cli", "enable.auto.commit": False, "enable.partition.eof": True}
    defaults = {"auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", **QUICK_FETCHES}
    try:
        return Consumer(cluster.config({**defaults, **settings}) | needed)
    except KafkaException as error:
        raise UsageError(reason(error)) from None


class _Reader:
    """Knows which spans are still open.

    A span closes with its last offset, or with the end of its partition: the offsets before that end may belong to
    no message (control records, compaction), and no message would ever tell.
    """

    def __init__(self, wanted: Mapping[str, Mapping[int, Span]]) -> None:
        self._spans = {(topic, partition): span for topic, parts in wanted.items() for partition, span in parts.items()}
        self.open = {key for key, span in self._spans.items() if span.end is None or span.start < span.end}

    @property
    def awaits_an_end(self) -> bool:
        return all(self._spans[key].end is not None for key in self.open)

    def spans(self) -> list[tuple[str, int, Span]]:
        return [(topic, partition, self._spans[topic, partition]) for topic, partition in sorted(self.open)]

    def take(self, polled: list[Message]) -> list[Message]:
        taken = []
        for message in polled:
            if (error := message.error()) is not None:
                self._note(message, error)
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

    def _note(self, message: Message, error: KafkaError) -> None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandError(f"reading {message.topic()}-{message.partition()}: {reason(error)}")
        key = (message.topic() or "", message.partition() or 0)
        if self._spans[key].end is not None:
            self.open.discard(key)
