"""What must hold after each step, whatever went wrong before it.

``seen`` is all that any replica has ever had below its high watermark, so what a consumer of any of them may have read,
and what was acknowledged. Nothing that is in it ever changes, and each member of the ISR that the store names has it,
dead or alive. From that follows that whoever is elected has all that was acknowledged.

A power cut takes what was not synced. ``acting`` are the brokers with which a leader was last seen to lead, in the
numbers that ``min.insync.replicas`` asks for: each of them had all that was acknowledged. What at least one of them has
after the cut is still promised. What none of them has is lost, by no fault of the rules; whoever still has it somewhere
may show it until it is taken back.

With fewer members than that, nothing is acknowledged with acks=all, but consumers read what the members have. That is
promised too, until a power cut hits all of them; and again if an earlier leader, which does not know that it was
succeeded, acknowledges it after that.

Records are deleted only below a high watermark. A log that begins past them is as good as one that has them, and its
end is not to go back. One that begins past records that nobody deleted has a hole.
"""

from skep.metadata.model import PartitionRecord
from tests.simulation.model_log import Entry, Held
from tests.simulation.violation import Violation


class Safety:
    """Owns what was promised so far."""

    def __init__(self, partitions: int, min_insync_replicas: int) -> None:
        self.seen: list[list[Entry]] = [[] for _ in range(partitions)]
        self._deleted = [0] * partitions
        self.acknowledged = 0
        self.cuts_with_loss = 0
        self._acting: list[frozenset[int]] = [frozenset() for _ in range(partitions)]
        self._acknowledgeable = [0] * partitions
        """How many of ``seen`` may have been acknowledged with acks=all."""
        self._only_read: list[list[Entry]] = [[] for _ in range(partitions)]
        """What ``seen`` was before a power cut took away what had only been read."""
        self._lost: list[list[list[Entry]]] = [[] for _ in range(partitions)]
        self._min_insync_replicas = min_insync_replicas
        self._leaders: dict[tuple[int, int], int] = {}

    def acknowledge(self, partition: int, offset: int, entry: Entry, copies: list[int]) -> None:
        """``copies`` are the brokers that have had it: one may lose it while the leader hears that it has it."""
        self.acknowledged += 1
        seen, only_read = self.seen[partition], self._only_read[partition]
        if offset >= len(seen) and only_read[: len(seen)] == seen and only_read[offset : offset + 1] == [entry]:
            seen.extend(only_read[len(seen) : offset + 1])
        if len(seen) <= offset or seen[offset] != entry:
            raise Violation(f"{partition}: {entry} was acknowledged at {offset}, where consumers read {seen[offset:]}")
        if len(copies) < self._min_insync_replicas:
            raise Violation(f"{partition}: {entry} was acknowledged with no other copies than those of {copies}")

    def acts(self, partition: int, high_watermark: int, record: PartitionRecord) -> None:
        """The leader that the store names is at work with the ISR that the store has."""
        is_enough = len(record.isr) >= min(self._min_insync_replicas, len(record.replicas))
        if is_enough and high_watermark >= len(self.seen[partition]):
            self._acting[partition] = frozenset(record.isr)
            self._acknowledgeable[partition] = len(self.seen[partition])

    def delete(self, partition: int, offset: int) -> None:
        """A leader deletes what it has below ``offset``, all of it committed."""
        self._deleted[partition] = max(self._deleted[partition], offset)

    def power_lost(self, partition: int, logs: dict[int, Held], *, hits_isr: bool) -> None:
        """These are the logs after a power cut, of all replicas. ``hits_isr``: all members of the ISR lost power."""
        seen, deleted = self.seen[partition], self._deleted[partition]
        kept = max(_common(logs[broker], seen, deleted) for broker in self._acting[partition] or logs)
        if hits_isr and kept > self._acknowledgeable[partition]:
            self._only_read[partition] = seen[:kept]
            kept = self._acknowledgeable[partition]
        if kept < len(seen):
            self.cuts_with_loss += 1
            self._lost[partition].append(list(seen))
            del seen[kept:]
            self._acknowledgeable[partition] = min(self._acknowledgeable[partition], kept)
            self._deleted[partition] = min(deleted, kept)

    def leads(self, partition: int, epoch: int, broker: int) -> None:
        if (other := self._leaders.setdefault((partition, epoch), broker)) != broker:
            raise Violation(f"{partition}: both {other} and {broker} lead in epoch {epoch}")

    def reads(self, partition: int, broker: int, held: Held, high_watermark: int) -> None:
        """A consumer reads all that this replica gives."""
        seen, (start, entries) = self.seen[partition], held
        if not start <= high_watermark <= len(entries):
            raise Violation(
                f"{partition}: broker {broker} has {start} to {len(entries)}, {high_watermark} is committed"
            )
        read = entries[start:high_watermark]
        if any(read == lost[start:high_watermark] for lost in self._lost[partition]):
            return
        if high_watermark > len(seen):
            # What lies below its start and nobody saw was deleted before a power cut that others lost it in.
            self._deleted[partition] = max(self._deleted[partition], start if start > len(seen) else 0)
            seen.extend(entries[len(seen) : high_watermark])
        if read != seen[start:high_watermark]:
            raise Violation(f"{partition}: broker {broker} gives {read} from {start} on, but {seen} was read")

    def is_in_sync(self, partition: int, broker: int, held: Held) -> None:
        """The store names it in the ISR, so it may be elected."""
        seen, (start, entries) = self.seen[partition], held
        if min(start, len(seen)) > self._deleted[partition]:
            raise Violation(
                f"{partition}: broker {broker} is in the ISR and lacks all below {start}, which was committed"
            )
        if entries[start : len(seen)] != seen[start:] or len(entries) < len(seen):
            raise Violation(
                f"{partition}: broker {broker} is in the ISR with {entries} from {start} on, but {seen} was committed"
            )


def _common(held: Held, seen: list[Entry], deleted: int) -> int:
    """How many of what was seen are still there, or are deleted.

    A log that is empty and began anew where it ends does not know that there was anything before.
    """
    start, entries = held
    offset = min(start, deleted, len(seen)) if len(entries) > start else 0
    while offset < min(len(entries), len(seen)) and entries[offset] == seen[offset]:
        offset += 1
    return offset
