"""Replaces segments by the compacted ones made from them, in Kafka's steps. A crash may come after each of them.

    1. 0.log.cleaned ... written and synced                   by the helper process
    2. 0.index.cleaned -> 0.index.swap ..., 0.log.swap last   directory synced: from here on the new ones count
    3. the log reads from the new segments                    on the event loop, in one step
    4. 0.log, 10.log ... -> .deleted                          directory synced, so that none comes back
    5. 0.log.swap -> 0.log, then its indexes                  directory synced
    6. the old files are deleted                              after ``file.delete.delay.ms``, when no response uses them

A start after a crash removes ``.cleaned`` files (the old segments are all there) and continues from step 4 with
``.swap`` files. Where one group of segments becomes several, step 2 runs from the last to the first: a ``.swap`` past a
``.cleaned`` is of a group that was not finished, and is removed too. A ``.swap`` replaces the segments that begin
between its first and its last offset. One of them may be left over, if compaction emptied it; then its records are
still there, each with a newer one of its key, and the next compaction removes them.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skep.base.files.files import Files
from skep.storage.file_names import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    offset_name,
    parse_offset_name,
)
from skep.storage.segment.batch_scan import OFFSET_LIMIT, scan
from skep.storage.segment.segment import Segment

_numbers = itertools.count()
"""Makes ``.deleted`` names differ: a segment may be replaced again while the one before waits for its removal."""


def remove_leftovers(files: Files, directory: str) -> None:
    """Removes the files of a compaction that failed before the log read from them. In a thread.

    Called before a compaction too: nothing may be left, because a start would take a ``.swap`` for the newest version
    and drop what replaced it since.
    """
    names = [name for name in files.list_directory(directory) if name.endswith((CLEANED, SWAP))]
    for name in sorted(names, key=lambda name: not name.endswith(LOG + SWAP)):
        files.remove(os.path.join(directory, name))
    if names:
        files.sync_directory(directory)


def commit(files: Files, directory: str, base_offsets: Sequence[int], now_ms: int) -> list[Segment]:
    """Step 2: makes what the helper has written count. Returns the segments, as ``.swap``. In a thread."""
    for base_offset in sorted(base_offsets, reverse=True):
        for suffix in reversed(SEGMENT_SUFFIXES):
            path = os.path.join(directory, offset_name(base_offset, suffix))
            if files.exists(path + CLEANED):
                files.rename(path + CLEANED, path + SWAP)
    files.sync_directory(directory)
    return [Segment.open(files, directory, base_offset, now_ms, suffix=SWAP) for base_offset in base_offsets]


@dataclass(frozen=True, slots=True)
class SegmentSwap:
    """Steps 4 to 6 for segments that the log has replaced. In a thread."""

    files: Files
    directory: str
    old: list[Segment]
    new: list[Segment]
    old_snapshots: list[int]
    """Offsets of the producer snapshots that belong to no segment any more."""

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.old)

    def mark(self) -> None:
        deleted = f".{next(_numbers)}{DELETED}"
        for segment in self.old:
            self.files.rename_file(segment.file, segment.file.path + deleted)
            for index in segment.indexes:
                index.rename(index.path + deleted)
        for offset in self.old_snapshots:
            self.files.remove(os.path.join(self.directory, offset_name(offset, SNAPSHOT)))
        self.files.sync_directory(self.directory)
        for segment in self.new:
            self.files.rename_file(segment.file, segment.file.path.removesuffix(SWAP))
            for index in segment.indexes:
                index.rename(index.path.removesuffix(SWAP))
        self.files.sync_directory(self.directory)

    def remove(self) -> None:
        for segment in self.old:
            segment.close()
            self.files.remove(segment.file.path)
            for path in segment.side_paths:
                self.files.remove(path)


def finish_swaps(files: Files, directory: str) -> None:
    """Ends the swaps that a crash interrupted, before a log is opened. May be repeated after a StorageError or a
    crash."""
    names = files.list_directory(directory)
    if not any(name.endswith((CLEANED, SWAP)) for name in names):
        return
    cleaned = [_parse(name.removesuffix(CLEANED)) for name in names if name.endswith(CLEANED)]
    unfinished_from = min((base_offset for base_offset, _ in cleaned), default=OFFSET_LIMIT)
    swaps = [_parse(name.removesuffix(SWAP)) for name in names if name.endswith(SWAP)]
    _remove(files, directory, (swap for swap in swaps if swap[0] >= unfinished_from), SWAP)
    # In this order: a ``.swap`` without its ``.cleaned`` would be taken for finished.
    files.sync_directory(directory)
    _remove(files, directory, cleaned, CLEANED)
    swaps = [swap for swap in swaps if swap[0] < unfinished_from]
    _remove(files, directory, _replaced(files, directory, names, swaps), "")
    files.sync_directory(directory)
    # The ``.log`` first: as long as it is a ``.swap``, files with the names of its indexes are taken for the old ones.
    for base_offset, suffix in sorted(swaps, key=lambda swap: swap[1] != LOG):
        path = os.path.join(directory, offset_name(base_offset, suffix))
        files.rename(path + SWAP, path)
    files.sync_directory(directory)


def _parse(name: str) -> tuple[int, str]:
    parsed = parse_offset_name(name)
    return parsed if parsed is not None else (OFFSET_LIMIT, "")


def _replaced(
    files: Files, directory: str, names: Iterable[str], swaps: Iterable[tuple[int, str]]
) -> list[tuple[int, str]]:
    """Returns the files of the segments that the swaps replace."""
    ranges = []
    for base_offset, suffix in swaps:
        if suffix == LOG:
            file = files.open(os.path.join(directory, offset_name(base_offset, LOG + SWAP)))
            headers = (header for _, header, _ in scan(file, from_offset=base_offset, check_from=OFFSET_LIMIT))
            ranges.append((base_offset, max((header.next_offset for header in headers), default=base_offset + 1)))
            file.close()
    parsed = [(base, suffix) for base, suffix in map(_parse, names) if suffix in SEGMENT_SUFFIXES]
    return [(base, suffix) for base, suffix in parsed if any(first <= base < end for first, end in ranges)]


def _remove(files: Files, directory: str, which: Iterable[tuple[int, str]], suffix: str) -> None:
    for base_offset, kind in which:
        files.remove(os.path.join(directory, offset_name(base_offset, kind + suffix)))
