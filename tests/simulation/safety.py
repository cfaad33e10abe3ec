"""What must hold after each step, whatever went wrong before it.

``seen`` is all that any replica has ever had below its high watermark, so what a consumer of any of them may have read,
and what was acknowledged. Nothing that is in it ever changes, and each member of the ISR that the store names has it,
dead or alive. From that follows that whoever is elected has all that was acknowledged.
"""

from tests.simulation.model_log import Entry
from tests.simulation.violation import Violation


class Safety:
    """Owns what was promised so far."""

    def __init__(self, partitions: int, min_insync_replicas: int) -> None:
        self.seen: list[list[Entry]] = [[] for _ in range(partitions)]
        self.acknowledged = 0
        self._min_insync_replicas = min_insync_replicas
        self._leaders: dict[tuple[int, int], int] = {}

    def acknowledge(self, partition: int, offset: int, entry: Entry, logs: dict[int, list[Entry]]) -> None:
        self.acknowledged += 1
        seen = self.seen[partition]
        if len(seen) <= offset or seen[offset] != entry:
            raise Violation(f"{partition}: {entry} was acknowledged at {offset}, where consumers read {seen[offset:]}")
        copies = [broker for broker, entries in logs.items() if entries[offset : offset + 1] == [entry]]
        if len(copies) < min(self._min_insync_replicas, len(logs)):
            raise Violation(f"{partition}: {entry} was acknowledged with no other copies than those of {copies}")

    def leads(self, partition: int, epoch: int, broker: int) -> None:
        if (other := self._leaders.setdefault((partition, epoch), broker)) != broker:
            raise Violation(f"{partition}: both {other} and {broker} lead in epoch {epoch}")

    def reads(self, partition: int, broker: int, entries: list[Entry], high_watermark: int) -> None:
        """A consumer reads all that this replica gives."""
        seen = self.seen[partition]
        if high_watermark > len(entries):
            raise Violation(f"{partition}: broker {broker} ends at {len(entries)}, below its own high watermark")
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
