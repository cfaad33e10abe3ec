"""Finding the bytes that a read of a log gives: which file, from where, how many.

The common cases cost one dictionary lookup: a reader at the tail asks for a batch that was just appended, a reader in
the middle goes on where its last slice ended, and both positions are remembered. Otherwise the segment is found by
bisection, then an index entry, then the batch by hopping over headers from there.

Where a slice that is full ends takes two reads to find. ``Log.prepare`` has them done while the slice before is still
under way to the reader, and what was found waits here for the one ``read`` that asks for it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from skep.base.files.files import File
from skep.base.ids import Offset
from skep.storage.segment.batch_scan import BatchPlace
from skep.storage.segment.segment import Segment

_PLACES_KEPT = 16


class LogSlice(NamedTuple):
    """Whole batches that lie one after the other in one file. ``file`` is None when there are none."""

    file: File | None
    position: int
    size: int
    next_offset: Offset
    """Where the next read goes on."""


class Places:
    """Where batches begin that will be asked for soon: offset -> position in its segment.

    A batch never moves, so what is remembered stays true until its segment is deleted, and then nobody may ask.
    """

    __slots__ = ("_places", "_prepared")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._prepared: dict[tuple[int, int, int], BatchPlace | None] = {}

    def remember(self, offset: int, position: int) -> None:
        places = self._places
        if len(places) >= _PLACES_KEPT:
            del places[next(iter(places))]
        places[offset] = position

    def prepare(self, segment: Segment, start: int, max_bytes: int, limit: int) -> None:
        """Look up where a slice will be cut."""
        prepared = self._prepared
        if len(prepared) >= _PLACES_KEPT:
            del prepared[next(iter(prepared))]
        prepared[segment.base_offset, start, max_bytes] = segment.cut(start, start + max_bytes, limit)

    def cut(self, segment: Segment, start: int, max_bytes: int, limit: int) -> BatchPlace | None:
        """Before which batch a slice from ``start`` ends that may not reach to ``limit``; see ``Segment.cut``."""
        prepared = self._prepared.pop((segment.base_offset, start, max_bytes), None)
        return prepared or segment.cut(start, start + max_bytes, limit)

    def find(self, segment: Segment, offset: Offset, limit: int) -> int | None:
        """Where the batch begins that contains ``offset``, or the first after it; None when that is past ``limit``."""
        position = self._places.get(offset)
        if position is None:
            place = segment.find(offset, limit)
            return None if place is None else place.position
        return position if position < limit else None


def find_slice(
    segments: Sequence[Segment],
    places: Places,
    offset: Offset,
    max_bytes: int,
    *,
    up_to: Offset,
    log_end_offset: Offset,
    at_least_one: bool,
) -> LogSlice:
    """The slice for ``Log.read``, whose docstring says what it may be; ``offset`` is known to be within the log."""
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    while offset < up_to and number < len(segments):
        segment = segments[number]
        number += 1
        next_base = segments[number].base_offset if number < len(segments) else log_end_offset
        limit = segment.size
        if up_to < next_base:
            boundary = places.find(segment, up_to, limit)
            limit = limit if boundary is None else boundary
        start = places.find(segment, offset, limit)
        if start is not None:
            if limit - start <= max_bytes:
                return LogSlice(segment.file, start, limit - start, min(up_to, next_base))
            return _cut(segment, places, start, limit, max_bytes, at_least_one) or _nothing(offset)
        offset = max(offset, next_base)
    return _nothing(offset)


def prepare_slice(segments: Sequence[Segment], places: Places, offset: Offset, max_bytes: int) -> None:
    """Make ready what ``find_slice`` will look for if it is asked for these next, and they are in the same segment."""
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    segment = segments[number]
    start = places.find(segment, offset, segment.size)
    if start is not None and segment.size - start > max_bytes:
        places.prepare(segment, start, max_bytes, segment.size)


def _nothing(offset: Offset) -> LogSlice:
    return LogSlice(None, 0, 0, offset)


def _cut(
    segment: Segment, places: Places, start: int, limit: int, max_bytes: int, at_least_one: bool
) -> LogSlice | None:
    """The slice from ``start`` when not all up to ``limit`` fits into ``max_bytes``."""
    following = places.cut(segment, start, max_bytes, limit)
    if following is None:
        return None
    if following.position > start:
        places.remember(following.base_offset, following.position)
        return LogSlice(segment.file, start, following.position - start, Offset(following.base_offset))
    # Not even the first batch fits, and it is this one.
    return LogSlice(segment.file, start, following.size, Offset(following.last_offset + 1)) if at_least_one else None
