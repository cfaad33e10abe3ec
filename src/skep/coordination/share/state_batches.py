"""Merges state batches of a share partition: for each offset the furthest state wins.

Of two states of one offset the one with the higher delivery count is further, and with equal counts the one with the
higher number: available, acknowledged, archiving, archived (Kafka: PersisterStateBatchCombiner). So a write that is
repeated, or arrives behind a later one, changes nothing. Nothing is kept below the start offset.

A merge visits the batches that it changes and no others. Worked example, with (first, last, state, count):

    [(10, 19, AVAILABLE, 1)] merged with (15, 24, ACKNOWLEDGED, 1)
    [(10, 14, AVAILABLE, 1), (15, 24, ACKNOWLEDGED, 1)]
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from skep.coordination.share.share_state import StateBatch


def merge(batches: list[StateBatch], changes: Iterable[StateBatch], start_offset: int) -> None:
    """Merges ``changes``, in any order, into ``batches``, which are ascending and disjoint before and after.

    Neighbours of the same state and count become one batch.
    """
    _prune(batches, start_offset)
    for change in changes:
        if change.last >= start_offset:
            _merge_one(batches, change if change.first >= start_offset else change._replace(first=start_offset))


def _prune(batches: list[StateBatch], start_offset: int) -> None:
    del batches[: _index_at(batches, start_offset)]
    if batches and batches[0].first < start_offset:
        batches[0] = batches[0]._replace(first=start_offset)


def _index_at(batches: Sequence[StateBatch], offset: int) -> int:
    """Returns the index of the first batch that ends at ``offset`` or later."""
    return bisect_left(batches, offset, key=_last)


def _last(batch: StateBatch) -> int:
    return batch.last


def _merge_one(batches: list[StateBatch], change: StateBatch) -> None:
    if not batches or batches[-1].last + 1 < change.first:
        batches.append(change)
        return
    # The neighbours on both sides are taken too: the change may continue them.
    low = _index_at(batches, change.first - 1)
    high = low
    while high < len(batches) and batches[high].first <= change.last + 1:
        high += 1
    if low == high:
        batches.insert(low, change)
        return
    pieces: list[StateBatch] = []
    begin = change.first
    for batch in batches[low:high]:
        if batch.first < change.first:
            _add(pieces, batch._replace(last=min(batch.last, change.first - 1)))
        if begin < batch.first:
            _add(pieces, change._replace(first=begin, last=min(batch.first - 1, change.last)))
        first, last = max(batch.first, change.first), min(batch.last, change.last)
        if first <= last:
            _add(pieces, (batch if _rank(batch) >= _rank(change) else change)._replace(first=first, last=last))
        if batch.last > change.last:
            _add(pieces, batch._replace(first=max(batch.first, change.last + 1)))
        begin = max(begin, batch.last + 1)
    if begin <= change.last:
        _add(pieces, change._replace(first=begin))
    batches[low:high] = pieces


def _rank(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.state


def _add(pieces: list[StateBatch], piece: StateBatch) -> None:
    if pieces:
        before = pieces[-1]
        if before.last + 1 == piece.first and before[2:] == piece[2:]:
            pieces[-1] = before._replace(last=piece.last)
            return
    pieces.append(piece)
