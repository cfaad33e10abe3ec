"""Decides which part of a log can be compacted and whether it is due, and writes the request for the helper process.

No I/O on files. A compacted log has two parts::

    log_start_offset    first_dirty_offset         end_offset            log_end_offset
          |   clean: each key once   |   dirty: appended since   |   not yet   |

One pass (``compaction_pass.py``) finds the newest offset of each key in the dirty part and then drops from both parts
the records whose key has a newer one. Nothing at or past ``end_offset`` is touched: not the active segment, nothing
that is not below the last stable offset or not synced, nothing younger than ``min.compaction.lag.ms``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

from skep.base.config.topic_config import NEVER, TopicConfig
from skep.base.ids import Offset
from skep.storage.log.log import Log
from skep.storage.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """Everything that a pass needs; sent to the helper process as JSON."""

    directory: str
    segments: list[tuple[int, int]]
    """(base offset, size of the ``.log``) of the segments to compact, oldest first."""
    first_dirty_offset: int
    end_offset: int
    high_watermark: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    """Memory for the newest offset of each key; keys that do not fit are left for the next pass."""
    max_bytes_per_second: int
    """Read and written together; 0: no limit."""
    aborted: Sequence[Sequence[int]]
    """The aborted transactions in the range, as the fields of ``AbortedTransaction``."""
    last_records: list[tuple[int, int, int]]
    """Of each known producer: id, offset of its last record (-1: none), epoch."""

    def to_json(self) -> dict[str, Any]:
        # Not asdict, which copies a hundred thousand numbers: a third of a second with 50,000 aborted transactions.
        return {field.name: getattr(self, field.name) for field in fields(self)}


class CleanedGroup(NamedTuple):
    """Neighbouring segments and those that replace them, written and synced under names that end in ``.cleaned``."""

    sources: list[int]
    outputs: list[int]


class PassResult(NamedTuple):
    """The result of a pass. ``clean_up_to`` is the first dirty offset after it."""

    clean_up_to: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keyless_records: int


class Cleanable(NamedTuple):
    """The part of a log that could be compacted now."""

    segments: Sequence[Segment]
    first_dirty_offset: Offset
    end_offset: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether a dirty record is older than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    def is_due(self, config: TopicConfig) -> bool:
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable(log: Log, cleaned_up_to: Offset | None, last_stable_offset: Offset, now_ms: int) -> Cleanable:
    """Returns what can be compacted. ``cleaned_up_to`` is where the last pass ended; outside the log it is ignored."""
    first_dirty = log.log_start_offset
    if cleaned_up_to is not None and first_dirty <= cleaned_up_to <= log.log_end_offset:
        first_dirty = cleaned_up_to
    config, segments = log.config, log.segments
    limit = min(last_stable_offset, log.flushed_offset)
    count = clean_bytes = dirty_bytes = 0
    oldest = NEVER
    end_offset = first_dirty
    for segment, following in pairwise(segments):
        is_dirty = following.base_offset > first_dirty
        if following.base_offset > limit or (is_dirty and _is_too_young(segment, config, now_ms)):
            break
        count += 1
        end_offset = max(end_offset, following.base_offset)
        if not is_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if config.max_compaction_lag_ms != NEVER and (timestamp := segment.first_batch_timestamp()) > 0:
            oldest = min(oldest, timestamp)
    is_overdue = oldest < now_ms - config.max_compaction_lag_ms
    return Cleanable(segments[:count], first_dirty, end_offset, clean_bytes, dirty_bytes, is_overdue)


def _is_too_young(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    return config.min_compaction_lag_ms > 0 and segment.largest_timestamp()[0] > now_ms - config.min_compaction_lag_ms


def request_for(
    log: Log,
    what: Cleanable,
    last_records: list[tuple[int, int, int]],
    *,
    high_watermark: Offset,
    now_ms: int,
    map_bytes: int,
    max_bytes_per_second: int,
) -> CompactionRequest:
    """Returns the request. In a thread, because all indexes of aborted transactions are read.

    ``last_records`` are those of ``Producers.last_records``.
    """
    config = log.config
    return CompactionRequest(
        directory=log.path,
        segments=[(segment.base_offset, segment.size) for segment in what.segments],
        first_dirty_offset=what.first_dirty_offset,
        end_offset=what.end_offset,
        high_watermark=high_watermark,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=map_bytes,
        max_bytes_per_second=max_bytes_per_second,
        aborted=log.aborted_transactions(what.segments[0].base_offset, what.end_offset),
        last_records=last_records,
    )
