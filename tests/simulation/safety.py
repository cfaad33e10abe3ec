"""What must hold after each step, whatever went wrong before it.

``seen`` is all that any replica has ever had below its high watermark, so what a consumer of any of them may have read,
and what was acknowledged. Nothing that is in it ever changes, and each member of the ISR that the store names has it,
dead or alive. From that follows that whoever is elected has all that was acknowledged.

A power cut takes what was not synced. ``acting`` are the brokers with which a leader was last seen to lead, in the
numbers that ``min.insync.replicas`` asks for: each of them had all that was acknowledged. What at least one of them has
after the cut is still promised. What none of them has is lost, by no fault of the rules; whoever still has it somewhere
may show it until it is taken back.
"""

from skep.metadata.model import PartitionRecord
from tests.simulation.model_log import Entry
from tests.simulation.violation import Violation


class Safety:
    """Owns what was promised so far."""

    def __init__(self, partitions: int, min_insync_replicas: int) -> None:
        self.seen: list[list[Entry]] = [[] for _ in range(partitions)]
        self.acknowledged = 0
        self.cuts_with_loss = 0
        self._acting: list[frozenset[int]] = [frozenset() for _ in range(partitions)]
        self._lost: list[list[list[Entry]]] = [[] for _ in range(partitions)]
        self._min_insync_replicas = min_insync_replicas
        self._leaders: dict[tuple[int, int], int] = {}

    def acknowledge(self, partition: int, offset: int, entry: Entry, copies: list[int]) -> None:
        """``copies`` are the brokers that have had it: one may lose it while the leader hears that it has it."""
        self.acknowledged += 1
        seen = self.seen[partition]
        if len(seen) <= offset or seen[offset] != entry:
            raise Violation(f"{partition}: {entry} was acknowledged at {offset}, where consumers read {seen[offset:]}")
        if len(copies) < self._min_insync_replicas:
            raise Violation(f"{partition}: {entry} was acknowledged with no other copies than those of {copies}")

    def acts(self, partition: int, high_watermark: int, record: PartitionRecord) -> None:
        """The leader that the store names is at work with the ISR that the store has."""
        is_enough = len(record.isr) >= min(self._min_insync_replicas, len(record.replicas))
        if is_enough and high_watermark >= len(self.seen[partition]):
            self._acting[partition] = frozenset(record.isr)

    def power_lost(self, partition: int, logs: dict[int, list[Entry]]) -> None:
        """These are the logs after a power cut, of all replicas."""
        seen = self.seen[partition]
        kept = max(_common(logs[broker], seen) for broker in self._acting[partition] or logs)
        if kept < len(seen):
            self.cuts_with_loss += 1
            self._lost[partition].append(list(seen))
            del seen[kept:]

    def leads(self, partition: int, epoch: int, broker: int) -> None:
        if (other := self._leaders.setdefault((partition, epoch), broker)) != broker:
            raise Violation(f"{partition}: both {other} and {broker} lead in epoch {epoch}")

    def reads(self, partition: int, broker: int, entries: list[Entry], high_watermark: int) -> None:
        """A consumer reads all that this replica gives."""
        seen = self.seen[partition]
        if high_watermark > len(entries):
            raise Violation(f"{partition}: broker {broker} ends at {len(entries)}, below its own high watermark")
        if any(entries[:high_watermark] == lost[:high_watermark] for lost in self._lost[partition]):
            return
        if high_watermark > len(seen):
            seen.extend(entries[len(seen) : high_watermark])
        if entries[:high_watermark] != seen[:high_watermark]:
            raise Violation(
                f"{partition}: broker {broker} gives {entries[:high_watermark]}, but {seen[:high_watermark]} was read"
            )

    def is_in_sync(self, partition: int, broker: int, entries: list[Entry]) -> None:
        """The store names it in the ISR, so it may be elected."""
        seen = self.seen[partition]
        if entries[: len(seen)] != seen:
            raise Violation(f"{partition}: broker {broker} is in the ISR with {entries}, but {seen} was committed")


def _common(entries: list[Entry], seen: list[Entry]) -> int:
    """How many of what was seen are still there."""
    return next(
        (n for n, pair in enumerate(zip(entries, seen, strict=False)) if pair[0] != pair[1]),
        min(len(entries), len(seen)),
    )
