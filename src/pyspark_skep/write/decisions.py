"""Decisions: which transactions make up an epoch of a query, recorded in the compacted topic ``__spark_commits``.

The key of a record is the query's id. Its value is JSON::

    {"version": 1, "epoch": 7, "repaired": ["spark/<query>/<run>/3.0"], "topics": {"orders": "<topic id>"},
     "tasks": [{"id": "spark/<query>/<run>/0.0", "producer": [4001, 0], "wrote": {"orders": [[0, 120, 219, 100]]}}]}

``wrote`` lists partition, first offset, last offset and number of rows. ``topics`` holds topic ids, to tell a topic
from a later one of the same name; topics that did not exist any more at the decision are missing. A query needs only
its newest decision, which compaction keeps. The search goes from the end of the partition backwards, because that
decision is nearly always among the last records.

A deposed leader that does not know it yet has an old log end. A driver that trusted it would miss the newest decision
and decide its epoch again. So the driver first writes a *mark* in its own transaction, with acks=all, and reads only
decisions below the mark's offset. A mark is a tombstone of a key that no query has; compaction removes it.
docs/decisions/0007-exactly-once-sink.md has the proof.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.raw_batches import committed_batches
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange
from pyspark_skep.write.write_errors import CommitFailed
from skep.records.record import iterate_records

TOPIC = "__spark_commits"
PARTITIONS = 8
"""Also the divisor that maps a query to its partition. Partitions that are added later stay empty."""
UNCLEAN_ELECTION = "unclean.leader.election.enable"
TOPIC_CONFIGS = {"cleanup.policy": "compact", "max.message.bytes": str(64 << 20), UNCLEAN_ELECTION: "false"}
"""A decision has some 30 bytes for each task and partition: 1,000 tasks that write 1,000 partitions each still fit.

A leader from outside the ISR may lack decisions, and no mark would show that. So unclean elections are disabled for
this topic, whatever the broker's default is.
"""
VERSION = 1
_FIRST_STEP = 64
_FETCH_BYTES = 4 << 20
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Decision:
    """``repaired`` holds the ids of tasks whose rows the driver wrote again. Their transactions no longer matter."""

    epoch: int
    tasks: tuple[TaskTransaction, ...]
    repaired: frozenset[str] = frozenset()
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return rows_of(self.tasks)

    @property
    def unrepaired(self) -> list[TaskTransaction]:
        return [task for task in self.tasks if task.transactional_id not in self.repaired]


def rows_of(tasks: Sequence[TaskTransaction]) -> int:
    return sum(written.rows for task in tasks for written in task.written)


def topics_of(tasks: Sequence[TaskTransaction]) -> list[str]:
    return sorted({topic for task in tasks for topic in task.topics})


def partition_of(query: str) -> int:
    return zlib.crc32(query.encode()) % PARTITIONS


def mark_key(query: str) -> bytes:
    """Returns the key of the mark records of a query."""
    return f"{query}/read".encode()


def encode(decision: Decision) -> bytes:
    tasks = []
    for task in decision.tasks:
        wrote: dict[str, list[tuple[int, ...]]] = {}
        for topic, *numbers in task.written:
            wrote.setdefault(topic, []).append(tuple(numbers))
        tasks.append({"id": task.transactional_id, "producer": (task.producer_id, task.producer_epoch), "wrote": wrote})
    value = {
        "version": VERSION,
        "epoch": decision.epoch,
        "repaired": sorted(decision.repaired),
        "topics": {topic: str(topic_id) for topic, topic_id in decision.topic_ids.items()},
        "tasks": tasks,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(query: str, value: bytes) -> Decision:
    """Raises CommitFailed for a record that this version cannot read: ignoring it would write rows twice."""
    try:
        read = json.loads(value)
        if read["version"] != VERSION:
            raise CommitFailed(
                f"the decision of query {query} in {TOPIC} has version {read['version']}, but this Skep reads only "
                f"version {VERSION}"
            )
        tasks = tuple(_task(task["id"], task["producer"], task["wrote"]) for task in read["tasks"])
        topic_ids = {topic: UUID(text) for topic, text in read.get("topics", {}).items()}
        return Decision(int(read["epoch"]), tasks, frozenset(read["repaired"]), topic_ids)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommitFailed(f"the decision of query {query} in {TOPIC} cannot be read: {error}") from None


def _task(
    transactional_id: str, producer: Sequence[int], wrote: Mapping[str, Sequence[Sequence[int]]]
) -> TaskTransaction:
    producer_id, producer_epoch = producer
    written = tuple(WrittenRange(topic, *map(int, row)) for topic, rows in wrote.items() for row in rows)
    return TaskTransaction(transactional_id, int(producer_id), int(producer_epoch), written)


Wait = Callable[[int], None]
"""Takes the last stable offset. Returns when the next request is due, or raises CommitFailed after the timeout."""


def _waiting(partition: int, patience_s: float, sleep: Callable[[float], None]) -> Wait:
    deadline = time.monotonic() + patience_s

    def wait(stable: int) -> None:
        if time.monotonic() > deadline:
            raise CommitFailed(f"an open transaction holds back {TOPIC}-{partition} at offset {stable}")
        sleep(_PAUSE_S)

    return wait


def wait_for_others(access: PartitionAccess, query: str, *, patience_s: float) -> None:
    """Returns when every transaction that began in the query's partition before this call has ended.

    A driver that died during a decision blocks the other queries of its partition until its transaction times out. They
    wait here, before they begin a transaction of their own, which would time out too.
    """
    partition = partition_of(query)
    _, end = access.bounds(TOPIC, partition)
    wait = _waiting(partition, patience_s, time.sleep)
    while (stable := access.last_stable_offset(TOPIC, partition)) < end:
        wait(stable)


def newest_decision(
    access: PartitionAccess, query: str, *, before: int, patience_s: float, sleep: Callable[[float], None] = time.sleep
) -> Decision | None:
    """Returns the newest committed decision below the offset ``before``.

    The broker that responds must have all records below ``before`` and know how their transactions ended: its last
    stable offset is at or above ``before``. A deposed leader has the same records there, or this waits.
    """
    partition = partition_of(query)
    start, end = access.log_start_offset(TOPIC, partition), before
    wait = _waiting(partition, patience_s, sleep)
    while (stable := access.last_stable_offset(TOPIC, partition)) < end:
        wait(stable)
    key, step = query.encode(), _FIRST_STEP
    while end > start:
        begin = max(start, end - step)
        found = None
        for record_key, value in _records(access, partition, begin, end, wait):
            if record_key == key:
                found = (value,)
        if found is not None:
            return None if found[0] is None else decode(query, found[0])
        end, step = begin, step * 2
    return None


def _records(
    access: PartitionAccess, partition: int, begin: int, end: int, wait: Wait
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yields key and value of the committed records from ``begin`` to before ``end``."""
    position, times_empty = begin, 0
    while position < end:
        fetched = access.fetch(TOPIC, partition, position, committed=True, max_bytes=_FETCH_BYTES)
        header = None
        for header, batch in committed_batches(fetched):
            if header.is_control or batch is None:
                continue
            for record in iterate_records(batch):
                if position <= record.offset < end:
                    yield record.key, record.value
        if header is not None:
            position, times_empty = header.next_offset, 0
            continue
        # Compaction may have removed the rest. But a new leader that does not know its last stable offset yet returns
        # nothing either, and trusting it would decide an epoch twice. So two empty responses are required.
        times_empty = times_empty + 1 if fetched.last_stable_offset >= end else 0
        if times_empty == 2:
            return
        wait(fetched.last_stable_offset)
