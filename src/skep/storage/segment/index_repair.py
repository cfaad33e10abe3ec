"""Truncates the indexes of a segment to their good part and rebuilds the rest from the batches.

Recovery does so from the recovery point on, a truncation at the new log end.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise

from skep.base.ids import Offset
from skep.storage.segment.batch_scan import OFFSET_LIMIT, scan
from skep.storage.segment.segment import Segment


def keep_index_below(segment: Segment, offset: Offset) -> int:
    """Truncates the indexes at ``offset``, or earlier where they are bad; returns the position to rebuild them from.

    After a power loss an unsynced index may be short, and any part of it may be zeros. Entries that increase strictly
    are good if the last one points at the batch that it names. The last time entry says how far both indexes belong
    together: it was added with the first entry of the offset index that is not before it.
    """
    if not segment.has_index_files():
        return segment.keep_index(0, 0)
    entries, times = segment.offset_index.entries(), segment.time_index.entries()
    if not (_grows(entries) and _grows(times)):
        return segment.keep_index(0, 0)
    below = bisect_left(entries, (offset - segment.base_offset, 0))
    time_count = bisect_right(times, entries[below - 1][0], key=lambda entry: entry[1]) if below else 0
    if time_count == 0:
        return segment.keep_index(0, 0)
    count = min(below, bisect_left(entries, (times[time_count - 1][1], 0)) + 1)
    last_offset, position = entries[count - 1]
    place = segment.place_at(position, segment.size)
    if place is None or place.last_offset != last_offset + segment.base_offset:
        return segment.keep_index(0, 0)
    return segment.keep_index(count, time_count)


def cut_segment(segment: Segment, size: int, end_offset: Offset, index_interval_bytes: int) -> None:
    """Keeps the first ``size`` bytes, which end at a batch boundary; the log then ends at ``end_offset``.

    The cut is durable before the indexes follow: the next append must never be found before the old batches. May be
    repeated after a StorageError.
    """
    segment.file.truncate(size)
    segment.file.sync()
    position = keep_index_below(segment, end_offset)
    segment.transaction_index.keep_below(end_offset)
    if size == 0:
        segment.first_timestamp = None
    for place, header, _ in scan(
        segment.file, position=position, from_offset=segment.base_offset, check_from=OFFSET_LIMIT
    ):
        segment.count(place, header.size, header.last_offset, header.max_timestamp, index_interval_bytes)


def _grows(entries: list[tuple[int, int]]) -> bool:
    return all(a < c and b < d for (a, b), (c, d) in pairwise(entries))
