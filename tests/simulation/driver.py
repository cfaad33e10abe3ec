"""A driver of the Spark sink: it decides the epochs of a query, each once, and may die at any point.

The search for the newest decision is that of ``pyspark_skep``; what it asks a broker for is served from the model's
log. A driver asks any broker that believes to lead, also one that was succeeded and does not know it. So it first
appends a mark with acks=all, and reads below the mark's offset.

Transactions are left out. Of the driver before, they settle what became of its last append; here that append is in the
log of the leader that acknowledges the mark, below the mark, or it is never committed.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from pyspark_skep.write.decisions import Decision, encode, newest_decision
from pyspark_skep.write.partition_access import Fetched
from skep.base.errors import KafkaError
from skep.records.builder import build_batch
from skep.replication.partition.partition import Partition
from tests.simulation.model_log import Entry
from tests.simulation.violation import Violation

QUERY = "q"


class NotYet(Exception):
    """The broker does not have everything that the driver waits for."""


class BelievedLeader:
    """What the search asks a broker for. Stands in for ``PartitionAccess``."""

    def __init__(self, partition: Partition, decided: dict[int, int]) -> None:
        self._partition = partition
        self._decided = decided

    def log_start_offset(self, topic: str, index: int) -> int:
        return self._partition.log.log_start_offset

    def last_stable_offset(self, topic: str, index: int) -> int:
        return self._partition.last_stable_offset

    def fetch(self, topic: str, index: int, offset: int, *, committed: bool, max_bytes: int) -> Fetched:
        end = self._partition.last_stable_offset
        entries = self._partition.read(offset, max_bytes, up_to=end, at_least_one=True)
        data = b"".join(self._batch(at, entry) for at, entry in enumerate(entries, offset))
        return Fetched(data, self._partition.high_watermark, end, [])

    def _batch(self, offset: int, entry: Entry) -> bytes:
        epoch = self._decided.get(entry[1])
        key, value = (b"", None) if epoch is None else (QUERY.encode(), encode(Decision(epoch, ())))
        return build_batch([(key, value, 0, ())], base_offset=offset)


class Driver:
    """Owns how far the query is. ``epoch`` is the one that Spark asks for, until it has noted that it is done."""

    def __init__(self) -> None:
        self.epoch = 0
        self.decided: dict[int, int] = {}
        """The epoch of each value that is a decision; other values are marks, or records of producers."""
        self._future: Any = None
        self._pending: str | None = None
        self._asked: Partition | None = None
        self._mark: int | None = None
        self._is_free = False
        """Whether it has found that nobody has decided the epoch."""

    def dies(self) -> None:
        """The next one begins with the same epoch."""
        self._future, self._pending, self._mark, self._is_free = None, None, None, False

    @property
    def has_unnoted(self) -> bool:
        """Whether its decision is acknowledged, and Spark has not noted that."""
        return self._pending == "decision" and (self._future is None or self._future.done())

    def step(self, partition: Partition, values: "itertools.count[int]") -> str:
        """Takes one step, with this broker's partition. A request that is refused is made again in a later step."""
        try:
            return self._go_on(partition, values)
        except NotYet:
            return "the driver waits"
        except KafkaError as error:
            return f"the driver is refused: {error.code.name}"

    def _go_on(self, partition: Partition, values: "itertools.count[int]") -> str:
        if self._pending is not None:
            return self._wait(partition)
        if self._must_mark():
            self._mark = self._append(partition, next(values), "mark")
            return f"the driver appends a mark at {self._mark}"
        if not self._is_free:
            found = self._newest(partition)
            if found is not None and found.epoch >= self.epoch:
                return f"the driver finds epoch {found.epoch}: {self._note()}"
            self._is_free = True
            return f"the driver finds no epoch later than {found and found.epoch}"
        value = next(values)
        self.decided[value] = self.epoch
        return f"the driver decides epoch {self.epoch} with {value} at {self._append(partition, value, 'decision')}"

    def _must_mark(self) -> bool:
        return self._mark is None

    def _newest(self, partition: Partition) -> Decision | None:
        access: Any = BelievedLeader(partition, self.decided)
        before = partition.log.log_end_offset if self._mark is None else self._mark
        return newest_decision(access, QUERY, before=before, patience_s=math.inf, sleep=_not_yet)

    def _append(self, partition: Partition, value: int, what: str) -> int:
        appended, self._future = partition.append(b"", value)
        self._pending, self._asked = what, partition
        return appended.base_offset

    def _wait(self, partition: Partition) -> str:
        """Asking another broker than the one that has the append gives up the driver that waits for it."""
        if self._future is not None and not self._future.done():
            if partition is self._asked:
                raise NotYet
            self.dies()
            return "another driver begins, while the append of the one before is not acknowledged"
        if self._future is not None and (self._future.cancelled() or self._future.exception() is not None):
            self.dies()
            return "the driver does not know what became of its append, and dies"
        what, self._pending, self._future = self._pending, None, None
        return f"the {what} is acknowledged" if what == "mark" else f"the decision is acknowledged: {self._note()}"

    def _note(self) -> str:
        self.epoch += 1
        self.dies()
        return f"Spark notes that epoch {self.epoch - 1} is done"

    def check(self, seen: Sequence[Entry]) -> None:
        """Violation when two decisions of one epoch are committed: its rows would be there twice."""
        epochs = [self.decided[value] for _, value in seen if value in self.decided]
        if len(set(epochs)) != len(epochs):
            raise Violation(f"epochs {epochs} were decided, one of them twice")


def _not_yet(seconds: float) -> None:
    raise NotYet
