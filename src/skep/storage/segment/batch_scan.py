"""Walks over the batches of a ``.log`` file by their headers, without reading the records between.

``hop`` trusts the headers and is for files that were written completely. ``scan`` checks everything, yields the full
headers and is for recovery.
"""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from skep.base.files.files import File
from skep.records.batch import HEADER_SIZE, LENGTH_END, BatchHeader, is_intact, read_header

_SHORT_HEADER = struct.Struct(">qiib6xi8xq")
_SHORT_SIZE = _SHORT_HEADER.size
_PIECE_BYTES = 8 << 10
_SCAN_PIECE_BYTES = 1 << 20

OFFSET_LIMIT = 1 << 63
"""Above all offsets; as ``check_from`` it makes ``scan`` check no CRC."""


class BatchPlace(NamedTuple):
    """The position, size and offsets of a batch."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int

    @property
    def end(self) -> int:
        return self.position + self.size


def hop(file: File, position: int, end: int) -> Iterator[BatchPlace]:
    """Yields the batches from the boundary ``position`` up to ``end``; stops early where there is no batch."""
    return map(BatchPlace._make, _hop(file, position, end))


def _hop(file: File, position: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """As ``hop``, with plain tuples, which cost a third.

    The file is read in pieces: small batches share one, and of large ones only the piece with the header is read.
    """
    while end - position >= HEADER_SIZE:
        piece = file.read(position, min(_PIECE_BYTES, end - position))
        start = position
        while position - start + _SHORT_SIZE <= len(piece):
            base_offset, length, _, magic, delta, timestamp = _SHORT_HEADER.unpack_from(piece, position - start)
            size = length + LENGTH_END
            if magic != 2 or size < HEADER_SIZE or position + size > end or delta < 0:
                return
            yield position, size, base_offset, base_offset + delta, timestamp
            position += size
        if position == start:
            return


class FarAway(Exception):
    """A batch is further away than was allowed; ``place`` is a batch before it, from which a search can continue."""

    def __init__(self, place: BatchPlace) -> None:
        super().__init__(place)
        self.place = place


def find_from(file: File, position: int, end: int, offset: int, most_hops: int | None = None) -> BatchPlace | int:
    """Returns the first batch from the boundary ``position`` on whose last offset is ``offset`` or more.

    When there is none, returns the position up to which there are batches: ``end``, unless something is damaged. Raises
    FarAway when it is not among the first ``most_hops``.
    """
    hops = _hop(file, position, end)
    for place in islice(hops, most_hops):
        if place[3] >= offset:
            return BatchPlace._make(place)
        position = place[0] + place[1]
    if most_hops is not None and (after := next(hops, None)) is not None:
        if after[3] >= offset:
            return BatchPlace._make(after)
        raise FarAway(BatchPlace._make(after))
    return position


def place_at(file: File, position: int, end: int) -> BatchPlace | None:
    """Returns the batch that begins at ``position``; None when there is none that ends by ``end``."""
    header = file.read(position, _SHORT_SIZE)
    if len(header) < _SHORT_SIZE:
        return None
    base_offset, length, _, magic, delta, timestamp = _SHORT_HEADER.unpack(header)
    size = length + LENGTH_END
    if magic != 2 or size < HEADER_SIZE or position + size > end or delta < 0:
        return None
    return BatchPlace(position, size, base_offset, base_offset + delta, timestamp)


def scan(
    file: File, *, position: int = 0, from_offset: int, check_from: int, gaps_below: int = 0
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yields (position, header, bytes) of each batch from the boundary ``position`` on, up to the first bad one.

    A batch is good if its header is plausible, its offsets are not before ``from_offset`` and increase, and all its
    bytes are in the file. From the offset ``check_from`` on its CRC has to be right too, and there may be no gap before
    it, because the CRC does not cover the base offset. Batches before that were synced, so reading their headers is
    enough; the bytes that are yielded for them may be incomplete. A gap that ends at ``gaps_below`` or before may come
    from compaction and is allowed.
    """
    next_offset = from_offset
    is_exact = position == 0
    piece = b""
    piece_start = 0
    while file.size - position >= HEADER_SIZE:
        if position + HEADER_SIZE > piece_start + len(piece):
            piece, piece_start = file.read(position, _SCAN_PIECE_BYTES), position
        header = read_header(piece, position - piece_start)
        if not is_plausible(header, next_offset, from_offset) or position + header.size > file.size:
            return
        is_checked = header.last_offset >= check_from
        if is_checked and position + header.size > piece_start + len(piece):
            piece, piece_start = file.read(position, max(_SCAN_PIECE_BYTES, header.size)), position
        batch = memoryview(piece)[position - piece_start : position - piece_start + header.size]
        has_gap = is_exact and header.base_offset != next_offset and header.base_offset > gaps_below
        if is_checked and (has_gap or not is_intact(batch)):
            return
        yield position, header, batch
        position += header.size
        next_offset = header.next_offset
        is_exact = True


def is_plausible(header: BatchHeader, next_offset: int, from_offset: int) -> bool:
    """Returns whether a batch with this header may follow ``next_offset`` in a segment that begins at
    ``from_offset``."""
    return (
        header.magic == 2
        and header.size >= HEADER_SIZE
        and header.base_offset >= next_offset
        and header.last_offset_delta >= 0
        and header.last_offset - from_offset < 1 << 31
    )
