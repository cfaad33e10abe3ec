"""The breaker of a share partition: stops delivery when almost every record dies, as when a database is down.

::

    closed --too many of the finished records have died--> open --pause is over--> trying
      ^                                                     ^                        | one record at a time
      +----------------- a record is accepted --------------|------------------------+
                                                            +--- a record dies ------+

Without it a group whose handler fails for everything would have the whole topic in the dead-letter topic in minutes
(KIP-1316 proposes one for Kafka). There is one for each partition of a group, because the leader of the partition
delivers the records and gets the results. If a group fails for everything, the breakers of its other partitions open
too.

Time is an argument, in milliseconds of a clock that never goes back.
"""

from typing import NamedTuple

_SLICES = 10
"""The time window consists of so many parts; the oldest part is dropped as a whole."""


class BreakerLimits(NamedTuple):
    """The options of a group. ``percent`` 0: the breaker never opens."""

    percent: int
    window_ms: int
    min_records: int
    pause_ms: int


class Breaker:
    """``opened_until_ms`` is None while it is closed. After that time single records are tried."""

    __slots__ = ("_slices", "opened_until_ms")

    def __init__(self) -> None:
        self._slices: list[tuple[int, int, int]] = []
        """The number of the part of time, how many records were finished in it, and how many of them have died."""
        self.opened_until_ms: int | None = None

    def allowed(self, limits: BreakerLimits, now_ms: int, *, is_any_held: bool) -> int | None:
        """Returns how many records may be delivered now; None: any number."""
        if limits.percent == 0:
            self._close()
        if self.opened_until_ms is None:
            return None
        return 0 if now_ms < self.opened_until_ms or is_any_held else 1

    def finished(self, limits: BreakerLimits, now_ms: int, accepted: int, died: int) -> bool:
        """Counts outcomes. Returns whether the breaker opens, or begins another pause."""
        if limits.percent == 0:
            self._close()
            return False
        if self.opened_until_ms is not None:
            # Results of deliveries from before the pause do not count during it.
            if now_ms < self.opened_until_ms:
                return False
            if died == 0:
                if accepted:
                    self._close()
                return False
        elif not self._has_too_many(limits, now_ms, accepted, died):
            return False
        self._slices.clear()
        self.opened_until_ms = now_ms + limits.pause_ms
        return True

    def _has_too_many(self, limits: BreakerLimits, now_ms: int, accepted: int, died: int) -> bool:
        current = now_ms * _SLICES // limits.window_ms
        known = [one for one in self._slices if current - _SLICES < one[0] <= current]
        if known and known[-1][0] == current:
            _, before, dead_before = known.pop()
            known.append((current, before + accepted + died, dead_before + died))
        else:
            known.append((current, accepted + died, died))
        self._slices = known
        finished, dead = sum(one[1] for one in known), sum(one[2] for one in known)
        return finished >= limits.min_records and dead * 100 > limits.percent * finished

    def _close(self) -> None:
        self._slices.clear()
        self.opened_until_ms = None
