"""Which segments may go: by age, by size, or because they lie below the log start. Pure decisions, no files.

Segments go whole and from the oldest on. The active one goes too when all its records have expired; the log then
begins a new one. ``retention.ms`` counts from the largest timestamp of a segment, so a record is kept at least that
long, and at most until its segment's last record has expired too. A segment without any timestamp counts from when it
was begun or opened. Of a topic without ``delete`` in its ``cleanup.policy``, only what lies below the log start goes.
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
    """What decisions about a segment need to know."""

    base_offset: Offset
    end_offset: Offset
    size: int
    timestamp: int
    """Of its youngest record."""


def view_of(log: Log) -> Iterator[SegmentView]:
    """Oldest first. Each is looked at when its turn comes, which may read from its index."""
    segments = log.segments
    for segment, following in zip_longest(segments, segments[1:]):
        end = log.log_end_offset if following is None else following.base_offset
        yield SegmentView(segment.base_offset, end, segment.size, _timestamp_of(segment))


def _timestamp_of(segment: Segment) -> int:
    timestamp, _ = segment.largest_timestamp()
    return segment.created_ms if timestamp == NO_TIMESTAMP else timestamp


def segments_to_delete(log: Log, now_ms: int, *, up_to: Offset) -> Sequence[Segment]:
    """The oldest segments that have expired, for ``log.detach``; none that has records at or past ``up_to``."""
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
    """Those that lie wholly below the log start, but for the active one: all that a follower may delete."""
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
    """How many of the ``number`` segments, which have ``size`` bytes together, may go, from the oldest on.

    None is looked at behind the first that stays: a log may have very many.
    """
    excess = size - config.retention_bytes
    for count, segment in enumerate(segments):
        is_too_old = config.expires and 0 <= config.retention_ms < now_ms - segment.timestamp
        is_too_much = config.expires and config.retention_bytes >= 0 and excess >= segment.size
        is_below_start = segment.end_offset <= log_start_offset
        is_active = count == number - 1
        if is_active and segment.size == 0:
            return count
        is_empty = config.expires and segment.size == 0  # compaction has left nothing of it
        if segment.end_offset > up_to or not (is_too_old or is_too_much or is_below_start or is_empty):
            return count
        excess -= segment.size
    return number
