"""What clients of a run were told and have read, and whether it agrees with what the log holds in the end.

Every record is unique: its value names the producer and the producer's own number for it. The rules:

acknowledged        there in the end, at the offset that was acknowledged, and at no other; an idempotent producer that
                    sent it again may be told only that it is there
failed for certain  not there
unknown             there once or not at all
read by anybody     there in the end, at the same offset; a reader's offsets increase
one producer        its numbers increase along each partition, none is there twice, within one producer epoch
the log             begins at 0 and has no gaps: nobody deletes anything in these runs

The epoch. librdkafka takes a new one when a batch is refused because the one before it was (librdkafka issue 4953), and
then sends again, under the new epoch, also what is in the log already. No broker can know that for the same record.
It cannot happen to a producer that has one request under way at a time: from such a one it is a violation as well.

No sockets and no clock here: who calls says when. An hour of records is kept in arrays, eight bytes for each fact.
"""

import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

NOTHING = -1
_NUMBER_BITS = 40
_TOLD_OF_EACH_KIND = 5


class Violation(NamedTuple):
    kind: str
    detail: str


class Found(NamedTuple):
    """A record in the log."""

    offset: int
    record: int
    producer_epoch: int = 0


def identity(producer: int, number: int) -> int:
    """A record as one integer."""
    return producer << _NUMBER_BITS | number


def name(record: int) -> str:
    """``2:17``, the 17th record of producer 2; the inverse of ``identity`` for people."""
    return f"{record >> _NUMBER_BITS}:{record & (1 << _NUMBER_BITS) - 1}"


class Column:
    """A value for each offset of a partition; ``NOTHING`` where there is none."""

    def __init__(self, typecode: str = "q") -> None:
        self._values = array(typecode)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, offset: int) -> int | float:
        return self._values[offset] if offset < len(self._values) else NOTHING

    def __setitem__(self, offset: int, value: int | float) -> None:
        if offset >= len(self._values):
            self._values.extend([NOTHING] * (offset + 1 - len(self._values)))
        self._values[offset] = value

    def known(self) -> Iterable[tuple[int, int | float]]:
        return ((offset, value) for offset, value in enumerate(self._values) if value != NOTHING)


class _Facts:
    """Of one partition, by offset."""

    def __init__(self) -> None:
        self.acknowledged, self.acknowledged_at = Column(), Column("d")
        self.read, self.read_at = Column(), Column("d")


class History:
    """Shared by all clients of a run, from any thread. What shows at once to be wrong is in ``violations`` at once."""

    def __init__(self, one_at_a_time: Collection[int] = ()) -> None:
        """``one_at_a_time`` are the producers that have one request under way at the most."""
        self._one_at_a_time = frozenset(one_at_a_time)
        self._lock = threading.Lock()
        self._facts: defaultdict[int, _Facts] = defaultdict(_Facts)
        self._failed: set[int] = set()
        self._somewhere: defaultdict[int, set[int]] = defaultdict(set)
        self._positions: dict[tuple[int, int], int] = {}
        self._found: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.sent_again_count = 0
        self.sent_count = self.acknowledged_count = self.unknown_count = self.read_count = 0

    @property
    def failed_count(self) -> int:
        return len(self._failed)

    def _violated(self, kind: str, detail: str) -> None:
        self._found[kind] += 1
        if self._found[kind] <= _TOLD_OF_EACH_KIND:
            self.violations.append(Violation(kind, detail))
        elif self._found[kind] == _TOLD_OF_EACH_KIND + 1:
            self.violations.append(Violation(kind, "and more of that kind"))

    # What clients tell.

    def sent(self, count: int = 1) -> None:
        with self._lock:
            self.sent_count += count

    def acknowledged(self, record: int, partition: int, offset: int, at: float) -> None:
        with self._lock:
            self.acknowledged_count += 1
            facts = self._facts[partition]
            if (other := facts.acknowledged[offset]) != NOTHING:
                detail = f"{partition}@{offset} for {name(int(other))} and for {name(record)}"
                self._violated("one offset acknowledged twice", detail)
            facts.acknowledged[offset] = record
            facts.acknowledged_at[offset] = at

    def acknowledged_somewhere(self, record: int, partition: int) -> None:
        """It was there already when it was sent again, and nobody could say where."""
        with self._lock:
            self.acknowledged_count += 1
            self._somewhere[partition].add(record)

    def failed(self, record: int) -> None:
        """The client says that it never got there."""
        with self._lock:
            self._failed.add(record)

    def unknown(self) -> None:
        """The client gave up without having learned what became of it."""
        with self._lock:
            self.unknown_count += 1

    def read(self, reader: int, partition: int, offset: int, record: int, at: float) -> None:
        with self._lock:
            self.read_count += 1
            last = self._positions.get((reader, partition), NOTHING)
            if offset <= last:
                self._violated("read backwards", f"reader {reader} got {partition}@{offset} after {last}")
            self._positions[reader, partition] = offset
            facts = self._facts[partition]
            if (before := facts.read[offset]) not in (NOTHING, record):
                since = f"{name(int(before))} at +{facts.read_at[offset]:.1f} s, {name(record)} at +{at:.1f} s"
                self._violated("read differently", f"{partition}@{offset} was {since}")
            facts.read[offset] = record
            facts.read_at[offset] = at

    def moved(self, reader: int, partition: int, offset: int) -> None:
        """A reader goes back on purpose, and will go on at ``offset``."""
        with self._lock:
            self._positions[reader, partition] = offset - 1

    def told_of_loss(self, reader: int, detail: str) -> None:
        """A reader was told that what it has read, or is to read next, is not there any more."""
        with self._lock:
            self._violated("a reader was told of a loss", f"reader {reader}: {detail}")

    # What the log has in the end.

    def ended(self, partition: int, content: Iterable[Found]) -> None:
        """All that the partition holds below its high watermark, in order; finds what is wrong with it."""
        records = Column()
        expected = 0
        newest: dict[tuple[int, int], int] = {}
        places: dict[int, Found] = {}
        for found in content:
            offset, record, epoch = found
            if offset != expected:
                self._violated("a gap", f"{partition}@{offset} follows {expected - 1}")
            expected = offset + 1
            records[offset] = record
            producer = record >> _NUMBER_BITS
            if (first := places.setdefault(record, found)) is not found:
                self._found_twice(partition, first, found)
            elif record < (before := newest.get((producer, epoch), NOTHING)):
                self._violated("out of order", f"{name(record)} at {partition}@{offset}, after {name(before)}")
            newest[producer, epoch] = max(record, newest.get((producer, epoch), NOTHING))
            if record in self._failed:
                self._violated("there although it failed", f"{name(record)} at {partition}@{offset}")
        for record in sorted(self._somewhere[partition] - places.keys()):
            self._violated("acknowledged and lost", f"{name(record)} is not in {partition}")
        facts = self._facts[partition]
        self._compare(partition, "acknowledged and lost", facts.acknowledged, facts.acknowledged_at, records)
        self._compare(partition, "read and gone", facts.read, facts.read_at, records)

    def _found_twice(self, partition: int, first: Found, second: Found) -> None:
        record = second.record
        if second.producer_epoch > first.producer_epoch and record >> _NUMBER_BITS not in self._one_at_a_time:
            self.sent_again_count += 1
            return
        epochs = f"epochs {first.producer_epoch} and {second.producer_epoch}"
        self._violated("there twice", f"{name(record)} at {partition}@{first.offset} and @{second.offset}, {epochs}")

    def _compare(self, partition: int, kind: str, told: Column, when: Column, records: Column) -> None:
        for offset, record in told.known():
            if (found := records[offset]) != record:
                there = "nothing" if found == NOTHING else name(int(found))
                detail = f"{partition}@{offset} was {name(int(record))} at +{when[offset]:.1f} s and is {there}"
                self._violated(kind, detail)
