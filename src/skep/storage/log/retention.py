"""Decides which segments are deleted: by age, by size, or because they are below the log start. No I/O on files.

Segments are deleted whole, the oldest first. The active one is deleted too when all its records have expired; the log
then creates a new one. ``retention.ms`` counts from the largest timestamp of a segment, so a record is kept at least
that long, and at most until the last record of its segment has expired. A segment without timestamps counts from when
it was created or opened. In a topic without ``delete`` in its ``cleanup.policy``, only segments below the log start are
deleted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile, zip_longest
from typing import NamedTuple

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import Offset
from skep.records.batch import NO_TIMESTAMP
from skep.storage.log.log import Log
from skep.storage.segment.segment import Segment


class SegmentView(NamedTuple):
    """What the decisions need of a segment."""

    base_offset: Offset
    end_offset: Offset
    size: int
    timestamp: int
    """The timestamp of its newest record."""


def view_of(log: Log) -> Iterator[SegmentView]:
    """Yields the segments, oldest first. Each step may read from the segment's index."""
    segments = log.segments
    for segment, following in zip_longest(segments, segments[1:]):
        end = log.log_end_offset if following is None else following.base_offset
        yield SegmentView(segment.base_offset, end, segment.size, _timestamp_of(segment))


def _timestamp_of(segment: Segment) -> int:
    timestamp, _ = segment.largest_timestamp()
    return segment.created_ms if timestamp == NO_TIMESTAMP else timestamp


def segments_to_delete(log: Log, now_ms: int, *, up_to: Offset) -> Sequence[Segment]:
    """Returns the oldest segments that have expired, for ``log.detach``; none with records at or past ``up_to``."""
    segments = log.segments
    count = expired_count(
        view_of(log),
        len(segments),
        log.size,
        log.config,
        now_ms,
        log_start_offset=log.log_start_offset,
        up_to=up_to,
    )
    return segments[:count]


def segments_below_start(log: Log) -> Sequence[Segment]:
    """Returns the segments wholly below the log start, without the active one: all that a follower may delete."""
    bases = (segment.base_offset for segment in log.segments[1:])
    return log.segments[: sum(1 for _ in takewhile(lambda base: base <= log.log_start_offset, bases))]


def expired_count(
    segments: Iterable[SegmentView],
    number: int,
    size: int,
    config: TopicConfig,
    now_ms: int,
    *,
    log_start_offset: Offset,
    up_to: Offset,
) -> int:
    """Returns how many of the oldest of ``number`` segments, which have ``size`` bytes together, may be deleted.

    Segments after the first that stays are not looked at: a log may have very many.
    """
    excess = size - config.retention_bytes
    for count, segment in enumerate(segments):
        is_too_old = config.expires and 0 <= config.retention_ms < now_ms - segment.timestamp
        is_too_much = config.expires and config.retention_bytes >= 0 and excess >= segment.size
        is_below_start = segment.end_offset <= log_start_offset
        is_active = count == number - 1
        if is_active and segment.size == 0:
            return count
        is_empty = config.expires and segment.size == 0  # compaction removed all its records
        if segment.end_offset > up_to or not (is_too_old or is_too_much or is_below_start or is_empty):
            return count
        excess -= segment.size
    return number
