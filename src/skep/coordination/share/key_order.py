"""Order by key (``skep.share.order=key``): which records a share group may get so that each key stays in order.

A record is *free* if it is the first unfinished one of its key, and no other record of the key is held by a member. So
one record of a key is in flight at a time, and a record that waits for its next delivery holds up those of its key
alone. One that is done with, or dead, frees its key. Records without a key are free.

Keys are known by hashes of 64 bits; if two keys have the same one, they hold up each other. The leader reads the keys
of the log in order, as far as the window may reach: whether a record is free depends on all keys before it. Hashes are
kept for unfinished records, and for the rest of batches that were read.

Pure, as the window is. ``broker/share/key_reader.py`` reads the keys.
"""

from collections.abc import Iterable, Iterator, Mapping

from skep.coordination.share.delivery_runs import OffsetRange, Run
from skep.coordination.share.share_state import DeliveryState
from skep.coordination.share.share_window import MAX_GAP, ShareWindow

NO_KEY = 0
"""The hash of a record without a key, and of an offset without a record."""

MAX_AHEAD = 20_000
"""Hashes kept past the window: those of a large batch, which would have to be read again for each of its parts."""

_KEPT = (DeliveryState.AVAILABLE, DeliveryState.ACQUIRED)


class KeyOrder:
    """Owns the hashes. All unfinished records of the window below ``known_end`` have one."""

    def __init__(self, start_offset: int) -> None:
        self.known_end = start_offset
        self._hashes: dict[int, int] = {}
        self._distinct: set[int] = set()
        """All hashes, perhaps also of records that are done with."""
        self._has_keyless = False
        self._expiries: dict[int, int] = {}
        """When the time to live of records ends, of those that have one."""
        self._prune_above = MAX_AHEAD

    def next_unknown(self, window: ShareWindow) -> int | None:
        """Returns the first offset whose key has to be read; None if all that the window may reach are known."""
        if (opened := window.take_opened()) is not None:
            self.known_end = min(self.known_end, opened)
        if self.known_end >= window.look_ahead_end:
            return None
        for run in window.runs_from(self.known_end):
            if run.state in _KEPT:
                return max(run.first, self.known_end)
        return max(self.known_end, window.end_offset)

    def learn(
        self, first: int, last: int, hashes: Iterable[tuple[int, int]], expiries: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Takes the keys of a batch of the log, whose records are at ``first`` to ``last``, and which is the next one
        from ``next_unknown`` on. ``hashes`` are those of records with a key, ``expiries`` the times of records with a
        time to live."""
        limit = self.known_end + MAX_AHEAD
        begin, end = max(first, self.known_end), min(last + 1, limit)
        learned = {offset: key for offset, key in hashes if begin <= offset < end}
        self._hashes.update(learned)
        self._distinct.update(learned.values())
        self._expiries.update((offset, time_ms) for offset, time_ms in expiries if begin <= offset < end)
        self._has_keyless |= len(learned) < end - begin or first > self.known_end
        self.known_end = end

    def skip_to(self, offset: int) -> None:
        """Everything below is known: it is done with, or not in the log."""
        self.known_end = max(self.known_end, offset)

    def free(self, window: ShareWindow, most: int) -> list[OffsetRange]:
        """Returns about ``most`` records that are free and ready, ascending, as neighbours in one delivery. New records
        are taken into the window."""
        window.include(self.known_end)
        self._prune(window)
        hashes = self._hashes
        blocked: set[int] = set()
        for run in window.runs_from(window.start_offset):
            if run.state is DeliveryState.ACQUIRED:
                if run.last >= self.known_end:
                    return []
                blocked.update(hashes.get(offset, NO_KEY) for offset in range(run.first, run.last + 1))
        blocked.discard(NO_KEY)
        # With few keys, all of them are in flight or found after a few records.
        keys = len(self._distinct) + self._has_keyless
        return list(
            _together(_free(window.runs_from(window.start_offset), hashes, blocked, self.known_end, keys), most)
        )

    def expired(self, ranges: Iterable[OffsetRange], now_ms: int) -> list[OffsetRange]:
        """Returns those of these records whose time to live has ended, each alone, ascending."""
        if not self._expiries:
            return []
        offsets = (offset for first, last in ranges for offset in range(first, last + 1))
        return [(offset, offset) for offset in offsets if self._expiries.get(offset, now_ms + 1) <= now_ms]

    def _prune(self, window: ShareWindow) -> None:
        if len(self._hashes) + len(self._expiries) <= self._prune_above:
            return
        self._hashes, self._expiries = (_unfinished(window, known) for known in (self._hashes, self._expiries))
        self._distinct = set(self._hashes.values())
        self._prune_above = len(self._hashes) + len(self._expiries) + MAX_AHEAD


def _unfinished(window: ShareWindow, known: Mapping[int, int]) -> dict[int, int]:
    """Returns what is known of records that are not done with, or not in the window yet."""
    kept = {offset: value for offset, value in known.items() if offset >= window.end_offset}
    for run in window.runs_from(window.start_offset):
        if run.state in _KEPT:
            kept.update((offset, known[offset]) for offset in range(run.first, run.last + 1) if offset in known)
    return kept


def _free(
    runs: Iterable[Run], hashes: Mapping[int, int], blocked: set[int], known_end: int, keys: int
) -> Iterator[int]:
    """Yields the free records in ``runs``. ``blocked`` are the keys that are in flight; there are at most ``keys``."""
    for run in runs:
        if run.first >= known_end:
            return
        if run.state is not DeliveryState.AVAILABLE:
            continue
        for offset in range(run.first, min(run.last + 1, known_end)):
            if len(blocked) >= keys:
                return
            key = hashes.get(offset, NO_KEY)
            if key == NO_KEY:
                if run.is_ready:
                    yield offset
            elif key not in blocked:
                blocked.add(key)
                if run.is_ready:
                    yield offset


def _together(offsets: Iterator[int], most: int) -> Iterator[OffsetRange]:
    """Yields ranges of at most ``most`` offsets, up to a gap that is too large for one delivery."""
    first = last = -1
    for count, offset in enumerate(offsets):
        if count == 0:
            first = last = offset
        elif offset == last + 1 and count < most:
            last = offset
        else:
            yield first, last
            if count >= most or offset - last > MAX_GAP:
                return
            first = last = offset
    if first >= 0:
        yield first, last
