"""Reads the dead letters of a share group from its dead-letter topic: which there are, and which were redriven.

A dead-letter topic may be large and shared by groups. So nothing is collected but the marks of redrives, of which there
is one for hundreds of letters: the topic is read once for them, and once more for the letters.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message

from skep.base.dead_letters import DeadLetter, RedriveMark, dead_letter, headers_of, redrive_mark
from skep.cli.connection import Cluster
from skep.cli.failures import UsageError
from skep.cli.records.topic_reader import Place, Span, Start, read, spans

_SETTINGS = {"isolation.level": "read_committed", "fetch.wait.max.ms": "100"}
"""The end of a partition is known when a fetch at the end returns."""


class StoredLetter(NamedTuple):
    """A letter, and where it is in the dead-letter topic."""

    letter: DeadLetter
    partition: int
    offset: int
    written_ms: int
    message: Message


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are wanted. None: all."""

    group: str
    topic: str | None = None
    partition: int | None = None
    offsets: Sequence[tuple[int, int]] | None = None
    reason: str | None = None
    since_ms: int | None = None

    def wants(self, letter: DeadLetter, written_ms: int) -> bool:
        return (
            letter.group == self.group
            and (self.topic is None or letter.topic == self.topic)
            and (self.partition is None or letter.partition == self.partition)
            and (self.offsets is None or any(first <= letter.offset <= last for first, last in self.offsets))
            and (self.reason is None or self.reason.lower() in letter.reason.lower())
            and (self.since_ms is None or written_ms >= self.since_ms)
        )


def parsed_offsets(texts: Sequence[str] | None) -> list[tuple[int, int]] | None:
    """Parses ``17`` and ``10-20``."""
    if not texts:
        return None
    found = []
    for text in texts:
        first, dash, last = text.partition("-")
        if not (first.isdecimal() and first.isascii() and (not dash or (last.isdecimal() and last.isascii()))):
            raise UsageError(f"--offset {text}: expected an offset like 17, or offsets like 10-20")
        found.append((int(first), int(last) if dash else int(first)))
        if found[-1][1] < found[-1][0]:
            raise UsageError(f"--offset {text}: the last offset is below the first")
    return found


class Redriven:
    """Letters of one partition of the dead-letter topic. The ranges are disjoint."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, ranges: Sequence[tuple[int, int]]) -> None:
        for one in ranges:
            insort(self._ranges, one)

    def __contains__(self, offset: int) -> bool:
        number = bisect_right(self._ranges, (offset, 1 << 63)) - 1
        return number >= 0 and self._ranges[number][1] >= offset


class DeadLetterReader:
    """Reads one dead-letter topic up to where its end was at first. ``marks`` come before ``letters``.

    ``unfinished`` are the marks of redrives that were begun and not done, with the partition that they are in: the
    command has died. Their letters count as redriven. If ``applies`` says that a mark is void, it is not among them,
    and its letters are as if it had not been written: the topic of the records was deleted, so it cannot be finished.
    """

    def __init__(
        self, cluster: Cluster, topic: str, wanted: LetterFilter, applies: Callable[[RedriveMark], bool]
    ) -> None:
        self._cluster = cluster
        self.topic = topic
        self._wanted = wanted
        self._applies = applies
        self._spans = self._all_spans()
        self._redriven: dict[int, Redriven] = {partition: Redriven() for partition in self._spans}
        self.unfinished: list[tuple[int, RedriveMark]] = []
        self._find_marks()

    def _all_spans(self) -> dict[int, Span]:
        found = self._cluster.topic(self.topic)
        since_ms = self._wanted.since_ms
        start = Start(Place.BEGINNING) if since_ms is None else Start(Place.TIME, since_ms)
        return spans(self._cluster, self.topic, sorted(found.partitions), start, follow=False, committed=True)

    def _messages(self) -> Iterator[Message]:
        for batch in read(self._cluster, {self.topic: self._spans}, settings=_SETTINGS):
            yield from batch

    def _find_marks(self) -> None:
        begun: dict[tuple[int, str], RedriveMark] = {}
        for message in self._messages():
            mark = redrive_mark(headers_of(message))
            if mark is None or mark.group != self._wanted.group:
                continue
            partition = message.partition() or 0
            key = (partition, str(mark.letters))
            if mark.is_done:
                begun.pop(key, None)
                self._redriven[partition].add(mark.letters)
            else:
                begun[key] = mark
        self.unfinished = [(partition, mark) for (partition, _), mark in begun.items() if self._applies(mark)]
        for partition, mark in self.unfinished:
            self._redriven[partition].add(mark.letters)

    def is_redriven(self, found: StoredLetter) -> bool:
        return found.offset in self._redriven[found.partition]

    def letters(self) -> Iterator[StoredLetter]:
        """Yields the wanted letters, in the order of each partition."""
        for message in self._messages():
            letter = dead_letter(headers_of(message))
            written_ms = message.timestamp()[1]
            if letter is not None and self._wanted.wants(letter, written_ms):
                yield StoredLetter(letter, message.partition() or 0, message.offset() or 0, written_ms, message)
