"""One held partition: reads its log into the index, and releases what is due.

The log is authoritative. Every release is a transaction: first the next version of each record is written to the held
topic (a tombstone, or the record with the time of its next firing), then the log is read up to there. If another client
has written one of the keys since the worker read it (a new time, or a recall), the transaction is aborted and the newer
record counts. Otherwise the records are written to the target, and the transaction is committed. So

- a record is released exactly once, however often the worker dies: either all of the transaction counts, or nothing;
- a recall or a new time that is in the log before the worker's record always wins, and one behind it comes too late for
  this release and counts for the next version;
- the worker's record never hides a newer one from compaction, which keeps the newest of a key.

Nothing is released before the log was read to its end once, after the transactions of the previous worker of the
partition have ended. docs/decisions/0020-held-topics.md has the reasons.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from skep.worker.held.held_index import Entry, HeldIndex, Position
from skep.worker.held.kafka_log import LogCut, NoTopic, Refused, Unavailable
from skep.worker.held.plan import CHECK_TOPIC, REFUSED, Kind, Rules
from skep.worker.held.transition import (
    Firing,
    HeldRecord,
    Output,
    asked_topic,
    changes_by,
    fire,
    first_rate,
    refuse,
    why_invalid,
)

logger = logging.getLogger(__name__)

MOST_READ = 20_000
"""The more at once, the fewer pages of the index are written. The reader fetches no more than some megabytes ahead."""
MOST_RELEASED = 5_000
MOST_RELEASED_BYTES = 8 << 20
LONGEST_WAIT_MS = 500
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 15.0
CHECK_END_MS = 60_000
REFUSED_PAUSE_MS, LONGEST_REFUSED_PAUSE_MS = 60_000, 3_600_000
"""A record that cannot be written is tried again after the first, then after twice as long each time. It comes before
all that are due later, and may take seconds: tried every minute, a dozen of them would leave no time for others."""
MOST_SKIPPED = 10_000
ROUNDING = 1e-6
"""Of rates: 3,000 times a third is not exactly 1,000."""


@dataclass(frozen=True)
class HeldSpec:
    """A partition as the broker names it to its worker, with the options of the topic."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    target: str
    tick_ms: int
    max_delay_ms: int
    rolls_back_undecided: bool
    delete_retention_ms: int
    max_firings_per_second: int = 1000

    @property
    def id(self) -> UUID:
        return UUID(hex=self.topic_id)

    @property
    def rules(self) -> Rules:
        return Rules(self.max_delay_ms, self.rolls_back_undecided, self.topic, self.target)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class HeldLog(Protocol):
    """What is needed of ``KafkaLog``."""

    def open(self) -> None: ...
    def was_cut(self, position: Position) -> bool: ...
    def read_from(self, offset: int) -> None: ...
    def read(self, timeout_s: float, most: int) -> tuple[list[HeldRecord], int | None]: ...
    def end_offset(self) -> int: ...
    def replace(self, firings: Sequence[Firing]) -> list[int]: ...
    def overtaken(self, keys: Collection[bytes], start: int, own: Collection[int]) -> dict[bytes, int]: ...
    def send(self, outputs: Iterable[Output]) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Skip(NamedTuple):
    """Why a due key is left out: until the log is read past an offset, and until a time."""

    offset: int
    until_ms: int


class HeldPartition:
    """Owns the index. A log is opened by ``serve`` and lasts until something fails.

    ``_is_loaded`` is true once the open log was read to its end. ``_skipped`` has the keys that are due and cannot be
    released now. ``_aborted`` has offsets behind the position that this worker has written to and then aborted.
    ``_admitted`` has the rates of schedules whose last firing is committed, and was not read from the log yet.
    """

    def __init__(
        self,
        spec: HeldSpec,
        index: HeldIndex,
        make_log: Callable[[], HeldLog],
        now_ms: Callable[[], int],
        stop: threading.Event,
        is_held: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """``is_held`` returns whether the cluster has a held topic of this name."""
        self._spec = spec
        self._index = index
        self._make_log = make_log
        self._now_ms = now_ms
        self._stop = stop
        self._is_held = is_held
        self._is_loaded = False
        self._end = -1
        self._checked_ms = 0
        self._not_before_ms = 0
        self._alone_left = 0
        self._skipped: dict[bytes, Skip] = {}
        self._refusals: dict[bytes, int] = {}
        """How often the newest version of a key was refused."""
        self._aborted: set[int] = set()
        self._admitted: dict[bytes, float] = {}

    def run(self) -> None:
        """Runs until it is stopped. After a failure it starts again, after a growing pause."""
        pause_s, said = FIRST_PAUSE_S, ""
        while not self._stop.is_set():
            try:
                self.serve()
            except LogCut as error:
                logger.warning("held topic %s: reading the log again from its start: %s", self._spec, error)
                self._index.clear()
            except (Unavailable, Refused, sqlite3.Error) as error:
                if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                    self._index.clear()
                if str(error) != said:
                    logger.warning("held topic %s: %s; trying again", self._spec, error)
                said = str(error)
            else:
                return
            pause_s = FIRST_PAUSE_S if self._is_loaded else min(2 * pause_s, LONGEST_PAUSE_S)
            self._stop.wait(pause_s)

    def serve(self) -> None:
        """Opens the log and works until it is stopped. Raises the error that ended it."""
        log = self._make_log()
        try:
            self.open(log)
            while not self._stop.is_set():
                self.step(log)
        finally:
            log.close()

    def open(self, log: HeldLog) -> None:
        self._is_loaded, self._end = False, -1
        self._aborted.clear()
        self._admitted.clear()
        self._skipped = {key: skip for key, skip in self._skipped.items() if skip.until_ms > 0}
        log.open()
        position = self._index.position
        if position.next_offset > 0:
            age_ms = self._now_ms() - position.caught_up_ms
            # Tombstones that were written since may have been compacted away after this time.
            if age_ms > self._spec.delete_retention_ms // 2 or log.was_cut(position):
                logger.info("held topic %s: the index is out of date and is made again", self._spec)
                self._index.clear()
        log.read_from(self._index.position.next_offset)

    def step(self, log: HeldLog) -> None:
        """Reads what is there, or waits for it until something is due; then releases what is due."""
        wait_ms = self._wait_ms() if self._is_loaded else LONGEST_WAIT_MS
        records, end = log.read(wait_ms / 1000, MOST_READ)
        self._fold(records, end)
        self._look_at_end(log)
        if self._is_loaded and self._wait_ms() == 0:
            self._release(log)

    def _wait_ms(self) -> int:
        """Returns how long there is nothing to release."""
        next_due_ms = self._index.next_due()
        if next_due_ms is None:
            return LONGEST_WAIT_MS
        left_ms = max(next_due_ms, self._not_before_ms) - self._now_ms()
        return max(0, min(left_ms, LONGEST_WAIT_MS))

    # Reading.

    def _fold(self, records: Sequence[HeldRecord], end: int | None) -> None:
        if end is not None:
            self._is_loaded, self._end, self._checked_ms = True, end, self._now_ms()
        if not records and end is None:
            return
        rules = self._spec.rules
        changes = changes_by(records, self._index.get, rules)
        invalid = [entry for entry in changes.values() if entry is not None and entry.kind is Kind.INVALID]
        if invalid:
            more = f" (and {len(invalid) - 1} more)" if len(invalid) > 1 else ""
            reason = why_invalid(invalid[0], rules)
            logger.warning("held topic %s: the record at %d%s stays: %s", self._spec, invalid[0].offset, more, reason)
        position = self._index.position
        if records:
            position = Position(records[-1].offset + 1, records[-1].leader_epoch, position.caught_up_ms)
        if end is not None:
            position = position._replace(caught_up_ms=self._checked_ms)
        self._index.apply(changes, position)
        if self._aborted:
            self._aborted = {offset for offset in self._aborted if offset >= self._read_up_to}
        for key in self._admitted.keys() & changes.keys():
            del self._admitted[key]
        for key in self._refusals.keys() & changes.keys():
            # A new version may be accepted.
            del self._refusals[key]
            self._skipped.pop(key, None)
        if self._skipped:
            self._skipped = {key: skip for key, skip in self._skipped.items() if self._is_skipped(skip)}

    def _look_at_end(self, log: HeldLog) -> None:
        """Notes now and then that nothing is behind the position: an index of unknown age is made again."""
        now_ms = self._now_ms()
        if self._is_loaded and now_ms - self._checked_ms > CHECK_END_MS:
            self._checked_ms = now_ms
            if log.end_offset() <= self._end:
                self._index.apply({}, self._index.position._replace(caught_up_ms=now_ms))

    @property
    def _read_up_to(self) -> int:
        """Where the reader is. The position is behind it where the log ends with markers of transactions."""
        return max(self._index.position.next_offset, self._end)

    def _is_skipped(self, skip: Skip) -> bool:
        return self._read_up_to <= skip.offset or self._now_ms() < skip.until_ms

    def _is_left_out(self, key: bytes) -> bool:
        skip = self._skipped.get(key)
        return skip is not None and self._is_skipped(skip)

    # Releasing.

    def _release(self, log: HeldLog) -> None:
        spec, now_ms = self._spec, self._now_ms()
        most = 1 if self._alone_left > 0 else MOST_RELEASED
        due = self._index.due(now_ms, most, MOST_RELEASED_BYTES, self._is_left_out)
        firings = self._firings(due, now_ms)
        if len(firings) < MOST_RELEASED and most > 1:
            self._not_before_ms = now_ms + spec.tick_ms
        if not firings:
            self._alone_left, self._not_before_ms = 0, now_ms + spec.tick_ms
            return
        self._alone_left = max(0, self._alone_left - 1)
        try:
            own = self._aborted.union(log.replace(firings))
            keys = {firing.entry.key for firing in firings}
            if overtaken := log.overtaken(keys, self._read_up_to, own):
                log.abort()
                self._aborted = own
                self._skip(overtaken, 0)
                self._not_before_ms = 0
                return
            log.send(output for firing in firings for output in firing.outputs)
            log.commit()
        except Refused as error:
            if isinstance(error, NoTopic) and error.topic == spec.target:
                # The target may be created again, and its absence blocks all records. A missing check topic blocks only
                # its own messages.
                raise Unavailable(str(error)) from error
            self._refused(firings, error)
            raise
        self._index.remove(firing.entry.offset for firing in firings)
        for entry, _, next_headers in firings:
            if entry.kind is Kind.HALF and next_headers and next_headers[-1][0] == REFUSED:
                text = (next_headers[-1][1] or b"").decode()
                logger.warning(
                    "held topic %s: no question is sent about the half message at %d: %s", spec, entry.offset, text
                )
        self._admitted.update(
            (entry.key, rate) for entry, outputs, _ in firings if outputs and (rate := entry.rate or first_rate(entry))
        )

    def _firings(self, due: Sequence[Entry], now_ms: int) -> list[Firing]:
        """Returns what becomes of each. A schedule is counted, and perhaps refused, when it fires for the first time.

        At that moment the log was read to its end, so that those that run already have their place, whatever order
        they are read in after the index was lost.
        """
        spec, room = self._spec, None
        firings = []
        for entry in due:
            reason = None
            if rate := first_rate(entry):
                if room is None:
                    room = spec.max_firings_per_second - self._index.rate() - sum(self._admitted.values())
                if rate <= room + ROUNDING:
                    room -= rate
                else:
                    reason = (
                        f"the schedules of {spec} would fire more than {spec.max_firings_per_second} times a second "
                        "(skep.held.max.firings.per.second)"
                    )
            elif (topic := asked_topic(entry)) is not None and self._is_held(topic):
                reason = f"{CHECK_TOPIC} is {topic}, a held topic"
            if reason is not None:
                firings.append(refuse(entry, reason))
            else:
                firings.append(fire(entry, spec.topic, spec.partition, spec.target, now_ms))
        return firings

    def _skip(self, offsets: dict[bytes, int], until_ms: int) -> None:
        if len(self._skipped) + len(offsets) > MOST_SKIPPED:
            raise Unavailable(f"more than {MOST_SKIPPED} records cannot be released")
        self._skipped.update({key: Skip(offset, until_ms) for key, offset in offsets.items()})

    def _refused(self, firings: Sequence[Firing], error: Refused) -> None:
        """One of the records can never be written. The next ones are released one by one, to find out which."""
        if len(firings) > 1:
            self._alone_left = len(firings)
            return
        entry = firings[0].entry
        logger.error("held topic %s: the record at %d cannot be released: %s", self._spec, entry.offset, error)
        times = self._refusals.get(entry.key, 0)
        if len(self._refusals) < MOST_SKIPPED:
            self._refusals[entry.key] = times + 1
        self._skip({entry.key: -1}, self._now_ms() + min(REFUSED_PAUSE_MS << min(times, 10), LONGEST_REFUSED_PAUSE_MS))
