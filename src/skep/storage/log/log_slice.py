"""What a read of a log returns, and the positions that spare most reads a search.

A reader at the tail asks for a batch that was just appended, and a reader in the middle continues where its last slice
ended. Both positions are remembered, so the common cases cost one dictionary lookup.

Finding where a full slice ends takes two reads. ``LogReader.prepare`` does them while the slice before is still being
sent, and the result waits in ``Places`` for the one ``read`` that asks for it.
"""

from typing import NamedTuple

from skep.base.files.files import File
from skep.base.ids import Offset
from skep.storage.segment.batch_scan import BatchPlace
from skep.storage.segment.segment import Segment

_PLACES_KEPT = 16


class LogSlice(NamedTuple):
    """Whole batches that follow each other in one file. ``file`` is None when there are none."""

    file: File | None
    position: int
    size: int
    next_offset: Offset
    """Where the next read continues."""


class Places:
    """Positions of batches that are likely to be read next: offset -> position in its segment.

    A batch never moves, so a remembered position stays right until its segment is deleted, when reads of the offset are
    refused. A cut or a compaction replaces the whole object.
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
        """Looks up the result of the next ``first_left_out`` with these arguments."""
        prepared = self._prepared
        if len(prepared) >= _PLACES_KEPT:
            del prepared[next(iter(prepared))]
        prepared[segment.base_offset, start, max_bytes] = segment.first_left_out(start, start + max_bytes, limit)

    def first_left_out(self, segment: Segment, start: int, max_bytes: int, limit: int) -> BatchPlace | None:
        """Returns the first batch that a slice from ``start`` leaves out; see ``Segment.first_left_out``."""
        prepared = self._prepared.pop((segment.base_offset, start, max_bytes), None)
        return prepared or segment.first_left_out(start, start + max_bytes, limit)

    def find(self, segment: Segment, offset: Offset, limit: int) -> int | None:
        """Returns the position of the batch that contains ``offset``, or of the first one after it.

        None when that is at ``limit`` or past it.
        """
        position = self._places.get(offset)
        if position is None:
            place = segment.find(offset, limit)
            return None if place is None else place.position
        return position if position < limit else None
