"""``skep queues scheduled`` and ``skep queues recall``: what waits in a held topic, and how to take it back.

Both read the topic as the worker does (``skep/worker/held``), into an index in a temporary file, so that the memory
does not grow with what waits.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from skep.cli import output
from skep.cli.cluster.config_admin import Resource, ResourceType, describe_configs
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Cluster, Properties, cluster_of
from skep.cli.failures import CommandError, reason
from skep.cli.moments import shown_moment
from skep.cli.output import Json
from skep.cli.partition_selection import partitions_of
from skep.cli.queues.destinations import Destinations
from skep.cli.skep_client import skep_client
from skep.worker.held.held_index import Entry, HeldIndex, Position
from skep.worker.held.kafka_log import held_record
from skep.worker.held.plan import CHECKED, RELEASED, SCHEDULE, ZONE, Kind, Rules, plan_of
from skep.worker.held.transition import HeldRecord, changes_by, why_invalid

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]

MOST_READ = 5_000
READ_TIMEOUT_S = 30.0


def register(queues: typer.Typer) -> None:
    queues.command("scheduled")(scheduled)
    queues.command("recall")(recall)


def scheduled(
    topic: Topic,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most this many records.")] = 100,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List what waits in a held topic, the earliest first.

    Last come the records that wait for no time: half messages, and invalid ones with the reason. A record is invalid if
    its headers cannot be followed, or if it is a schedule too many. It stays until its key is written again, or
    recalled. A record that its topic does not take, or whose topic does not exist, is shown with that reason, too. It
    is tried again from time to time.

    \b
    Examples:
      skep queues scheduled orders.later
      skep queues scheduled orders.later --json | jq -r '.[] | select(.state == "invalid" or .obstacle).key'
    """
    cluster = cluster_of(bootstrap, properties)
    rules = _held(cluster, topic)
    now_ms = time.time_ns() // 1_000_000
    found: list[tuple[int, Entry]] = []
    total = 0
    for partition in partitions_of(cluster, topic):
        with _index(cluster, topic, partition, rules) as index:
            found += [(partition, entry) for entry in index.waiting(limit)]
            total += index.count()
    found.sort(key=lambda one: (one[1].due_ms is None, one[1].due_ms or 0))
    del found[limit:]
    destinations = Destinations(cluster, topic, rules.target)
    views = [_View(one, entry, rules, destinations.obstacle(entry, one, now_ms)) for one, entry in found]
    if json:
        output.document([view.document() for view in views])
    elif views:
        columns = ("key", "due", "in", "what", "partition", "offset", "bytes")
        output.table(columns, (view.row(now_ms) for view in views), right=("in", "partition", "offset", "bytes"))
        if total > len(found):
            output.note(f"{total - len(found):,} more wait for their time to go to {rules.target}; --limit shows more.")
    else:
        output.note(f"Nothing waits in {topic}.")
    if not destinations.has_target:
        output.note(
            f"The target {rules.target} does not exist, and records wait until it does. A broker with "
            "auto.create.topics.enable creates it when the first one is released."
        )


def recall(
    topic: Topic,
    keys: Annotated[list[str], typer.Argument(metavar="KEY")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Take back what waits in a held topic under a key.

    Any producer can do the same: it writes a record with the key and no value to the partition that the key is in. This
    command finds the partition, and says whether it was in time: then the record is never released.

    \b
    Examples:
      skep queues recall orders.later order-17
    """
    cluster = cluster_of(bootstrap, properties)
    rules = _held(cluster, topic)
    waiting: dict[bytes, tuple[int, Entry]] = {}
    for partition in partitions_of(cluster, topic):
        with _index(cluster, topic, partition, rules) as index:
            for key in map(str.encode, keys):
                if (entry := index.get(key)) is not None:
                    waiting[key] = partition, entry
    missing = [key for key in keys if key.encode() not in waiting]
    if missing:
        raise CommandError(f"nothing waits in {topic} under the key '{missing[0]}'")
    for key, (partition, entry) in waiting.items():
        written = _write_tombstone(cluster, topic, partition, key)
        if _was_released(cluster, topic, partition, entry, written):
            raise CommandError(f"too late: '{key.decode()}' was released before it was recalled")
        due = f", which was due at {shown_moment(entry.due_ms)}" if entry.due_ms else ""
        output.line(f"Recalled {key.decode()}{due}.")


def _held(cluster: Cluster, topic: str) -> Rules:
    """Returns the rules of a held topic. Raises CommandError for any other topic."""
    cluster.topic(topic)
    with skep_client(cluster) as client:
        configs = {one.name: one.value or "" for one in describe_configs(client, Resource(ResourceType.TOPIC, topic))}
    target = configs.get("skep.held.target", "")
    if not target:
        raise CommandError(f"topic '{topic}' is not a held topic: skep.held.target is not set for it")
    max_delay_ms = int(configs["skep.held.max.delay.ms"])
    return Rules(max_delay_ms, configs["skep.held.undecided"] == "rollback", topic, target)


@contextmanager
def _index(cluster: Cluster, topic: str, partition: int, rules: Rules) -> Iterator[HeldIndex]:
    """Reads a partition into an index, which exists only inside the ``with``."""
    with tempfile.TemporaryDirectory(prefix="skep-scheduled-") as directory:
        index = HeldIndex(os.path.join(directory, "index"), topic)
        try:
            for records in _read(cluster, topic, partition, 0, None):
                changes = changes_by(records, index.get, rules)
                index.apply(changes, Position(records[-1].offset + 1))
            yield index
        finally:
            index.close()


def _read(cluster: Cluster, topic: str, partition: int, start: int, last: int | None) -> Iterator[list[HeldRecord]]:
    """Yields the committed records from ``start`` to the end, or until ``last`` was read."""
    settings = {
        "group.id": "skep-cli",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,  # a broker that has no more says so at once
    }
    consumer = Consumer(cluster.config(settings))
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            messages = consumer.consume(MOST_READ, 0.1)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise CommandError(f"partition {topic}-{partition} could not be read in {READ_TIMEOUT_S:.0f} s")
            records, is_end = _split(messages)
            if records:
                yield records
            if is_end if last is None else records and records[-1].offset >= last:
                return
    finally:
        consumer.close()


def _split(messages: list[Any]) -> tuple[list[HeldRecord], bool]:
    records, is_end = [], False
    for message in messages:
        error = message.error()
        if error is None:
            records.append(held_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            is_end = True
        else:
            raise CommandError(reason(error))
    return records, is_end


def _write_tombstone(cluster: Cluster, topic: str, partition: int, key: bytes) -> int:
    """Returns the offset of the tombstone."""
    written: list[Any] = []
    producer = Producer(cluster.config({"message.timeout.ms": 30_000, "enable.idempotence": True}))
    producer.produce(topic, None, key, partition, on_delivery=lambda error, message: written.append((error, message)))
    producer.flush()
    [(error, message)] = written
    if error is not None:
        raise CommandError(reason(KafkaException(error)))
    return int(message.offset())


def _was_released(cluster: Cluster, topic: str, partition: int, entry: Entry, written: int) -> bool:
    """Whether the worker's tombstone for the entry is in the log before the one that was written."""
    mark = (RELEASED, str(entry.offset).encode())
    return any(
        record.key == entry.key and record.value is None and mark in record.headers and record.offset < written
        for records in _read(cluster, topic, partition, entry.offset + 1, written)
        for record in records
    )


_STATES = {
    Kind.DELIVER: "once",
    Kind.REPEAT: "schedule",
    Kind.HALF: "half",
    Kind.COMMIT: "committed",
    Kind.INVALID: "invalid",
}


class _View(NamedTuple):
    """An entry, and what is known about it."""

    partition: int
    entry: Entry
    rules: Rules
    obstacle: str | None

    @property
    def what(self) -> str:
        text = self._text
        return f"{text}; cannot be released: {self.obstacle}" if self.obstacle else text

    @property
    def _text(self) -> str:
        entry, headers = self.entry, dict(self.entry.headers)
        if entry.kind is Kind.REPEAT:
            zone = f" {(headers[ZONE] or b'').decode(errors='replace')}" if ZONE in headers else ""
            return (headers.get(SCHEDULE) or b"").decode(errors="replace") + zone
        if entry.kind is Kind.HALF:
            if refused := plan_of(entry.headers, entry.timestamp_ms, self.rules).reason:
                return f"waits for its commit; no question is sent: {refused}"
            return "asked for its commit" if CHECKED in headers else "waits for its commit"
        if entry.kind is Kind.INVALID:
            return f"invalid: {why_invalid(entry, self.rules)}"
        return _STATES[entry.kind]

    def row(self, now_ms: int) -> tuple[object, ...]:
        entry = self.entry
        has_time = entry.due_ms is not None and entry.kind is not Kind.COMMIT
        return (
            entry.key.decode(errors="replace"),
            shown_moment(entry.due_ms or 0) if has_time else None,
            _span((entry.due_ms or 0) - now_ms) if has_time else None,
            self.what,
            self.partition,
            entry.offset,
            len(entry.value or b""),
        )

    def document(self) -> dict[str, object]:
        entry = self.entry
        return {
            "key": output.readable(entry.key),
            "due_ms": entry.due_ms,
            "state": _STATES[entry.kind],
            "what": self.what,
            "obstacle": self.obstacle,
            "partition": self.partition,
            "offset": entry.offset,
            "value": output.readable(entry.value),
            "headers": [[name, output.readable(value)] for name, value in entry.headers],
        }


def _span(milliseconds: int) -> str:
    """Returns ``1d 2h``, ``5m 3s``, ``now`` or ``5m 3s late``: two units are enough to look at."""
    if milliseconds <= -1000:
        return f"{_span(-milliseconds)} late"
    if milliseconds < 1000:
        return "now"
    seconds = milliseconds // 1000
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts[:2] if number)
