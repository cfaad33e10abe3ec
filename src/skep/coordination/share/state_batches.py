"""Merges state batches of a share partition: for each offset the furthest state wins.

Of two states of one offset the one with the higher delivery count is further, and with equal counts the one with the
higher number: available, acknowledged, archiving, archived (Kafka: PersisterStateBatchCombiner). Failures, the time of
the next delivery and the reason follow in this order, so of two different states one is always further. So a write that
is repeated, or arrives behind a later one, changes nothing. Nothing is kept below the start offset.

A small change visits the batches that it touches, and no others. Worked example, with (first, last, state, count):

    [(10, 19, AVAILABLE, 1)] merged with (15, 24, ACKNOWLEDGED, 1)
    [(10, 14, AVAILABLE, 1), (15, 24, ACKNOWLEDGED, 1)]
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from skep.coordination.share.share_state import StateBatch

MANY_TIMES = 16
"""Visiting so many batches in order costs about as much as finding the place of one change."""


def merge(batches: list[StateBatch], changes: Iterable[StateBatch], start_offset: int) -> None:
    """Merges ``changes``, in any order, into ``batches``, which are ascending and disjoint before and after.

    Neighbours that are equal become one batch.
    """
    _prune(batches, start_offset)
    wanted = [
        change if change.first >= start_offset else change._replace(first=start_offset)
        for change in changes
        if change.last >= start_offset
    ]
    if not wanted:
        return
    if all(before.last < after.first for before, after in pairwise(wanted)):
        low, high = _reach(batches, wanted[0].first, wanted[-1].last)
        if high - low <= MANY_TIMES * len(wanted):
            batches[low:high] = _combined(batches[low:high], wanted)
            return
    for change in wanted:
        low, high = _reach(batches, change.first, change.last)
        batches[low:high] = _combined(batches[low:high], [change])


def _prune(batches: list[StateBatch], start_offset: int) -> None:
    if batches and batches[0].first < start_offset:
        del batches[: bisect_left(batches, start_offset, key=_last)]
        if batches and batches[0].first < start_offset:
            batches[0] = batches[0]._replace(first=start_offset)


def _reach(batches: Sequence[StateBatch], first: int, last: int) -> tuple[int, int]:
    """Returns the range of indexes of the batches that overlap the offsets, or that they continue."""
    if not batches or batches[-1].last + 1 < first:
        return len(batches), len(batches)
    return bisect_left(batches, first - 1, key=_last), bisect_right(batches, last + 1, key=_first)


def _first(batch: StateBatch) -> int:
    return batch.first


def _last(batch: StateBatch) -> int:
    return batch.last


def _combined(batches: Sequence[StateBatch], changes: Sequence[StateBatch]) -> list[StateBatch]:
    """Combines two lists of which each is ascending and disjoint."""
    combined: list[StateBatch] = []
    left, right = list(reversed(batches)), list(reversed(changes))
    while left and right:
        one, other = left.pop(), right.pop()
        if one.first > other.first:
            left, right, one, other = right, left, other, one
        if one.last < other.first:
            right.append(other)
            _add(combined, one)
            continue
        if one.first < other.first:
            _add(combined, _cut(one, one.first, other.first - 1))
        last = min(one.last, other.last)
        _add(combined, _cut(one if _rank(one) > _rank(other) else other, other.first, last))
        if one.last > last:
            left.append(_cut(one, last + 1, one.last))
        elif other.last > last:
            right.append(_cut(other, last + 1, other.last))
    for rest in reversed(left or right):
        _add(combined, rest)
    return combined


def _rank(batch: StateBatch) -> tuple[int, ...]:
    """Returns what decides which of two states of an offset is further."""
    _, _, state, count, *rest = batch
    return count, state, *rest


def _cut(batch: StateBatch, first: int, last: int) -> StateBatch:
    return tuple.__new__(StateBatch, (first, last, *batch[2:]))


def _add(combined: list[StateBatch], batch: StateBatch) -> None:
    if combined and (before := combined[-1]).last + 1 == batch.first and before[2:] == batch[2:]:
        combined[-1] = _cut(before, before.first, batch.last)
    else:
        combined.append(batch)
