"""Timestamps: which are accepted from producers, and lookups of the first record at or after a time.

The time index narrows a lookup down to about ``index.interval.bytes`` of log. The batches there are skipped by the
largest timestamp in their headers, and one batch is decoded. A result is exact: the first record at or after the time,
not the first batch that has such a record.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import APPEND_TIME_FLAG, NO_TIMESTAMP, BatchHeader, read_header
from skep.records.record import Record, iterate_records
from skep.storage.segment.batch_scan import BatchPlace, hop
from skep.storage.segment.segment import Segment

RECORDS_PER_LOOK = 1000

IsGivenUp = Callable[[], bool]
"""Called by a search at each batch and every RECORDS_PER_LOOK records; true ends the search."""


class SearchGivenUp(Exception):
    """Raised by a search that is no longer waited for."""


def never() -> bool:
    return False


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: Offset
    leader_epoch: LeaderEpoch


def check_create_time(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Raises INVALID_TIMESTAMP when the batch's times are too far from the broker's clock; -1, no timestamp, passes."""
    if header.attributes & APPEND_TIME_FLAG:
        raise KafkaError(ErrorCode.invalid_timestamp, "producers must not set the LogAppendTime flag; the broker does")
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.max_timestamp} is later than message.timestamp.after.max.ms allows at {now_ms}",
        )
    if (
        now_ms - header.base_timestamp > config.message_timestamp_before_max_ms
        and header.base_timestamp != NO_TIMESTAMP
    ):
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.base_timestamp} is earlier than message.timestamp.before.max.ms allows at {now_ms}",
        )


def first_at_or_after(
    segments: Sequence[Segment],
    timestamp: int,
    log_start_offset: Offset,
    up_to: Offset,
    *,
    is_given_up: IsGivenUp = never,
) -> TimestampOffset | None:
    """Returns the first record at or after ``timestamp``, between the log start and ``up_to``."""
    for number, segment in enumerate(segments):
        if segment.base_offset >= up_to:
            return None
        is_deleted = number + 1 < len(segments) and segments[number + 1].base_offset <= log_start_offset
        if is_deleted or segment.largest_timestamp()[0] < timestamp:
            continue
        start = _start_of_search(segment, timestamp, log_start_offset)
        for place in _within(hop(segment.file, start, segment.size), log_start_offset, up_to, is_given_up):
            if place.max_timestamp < timestamp:
                continue
            found = _first_record(segment, place, timestamp, log_start_offset, is_given_up)
            if found is not None:
                return found if found.offset < up_to else None
    return None


def _start_of_search(segment: Segment, timestamp: int, log_start_offset: Offset) -> int:
    """Returns the position of a batch before which no batch reaches ``timestamp``.

    Let o be the offset of the first time entry that reaches it. If a batch at an earlier entry of the offset index, or
    before one, had reached it, that entry would have come with a time entry of its own. So the search starts at the
    last entry of the offset index that is below o, or at the very last one if there is no such time entry yet.
    """
    reached = segment.time_index.first_at_or_after(timestamp)
    last_below = (1 << 31) + segment.base_offset if reached is None else reached - 1
    by_time = segment.offset_index.position_before(last_below)
    return max(by_time, segment.offset_index.position_before(log_start_offset))


def largest(
    segments: Sequence[Segment], log_start_offset: Offset, up_to: Offset, *, is_given_up: IsGivenUp = never
) -> TimestampOffset | None:
    """Returns the first record with the largest timestamp."""
    best: tuple[int, Segment, Offset] | None = None
    for segment in segments:
        if segment.size and segment.base_offset < up_to:
            timestamp, offset = segment.largest_timestamp()
            if best is None or timestamp > best[0]:
                best = (timestamp, segment, offset)
    if best is None or best[0] == NO_TIMESTAMP:
        return None
    timestamp, segment, offset = best
    place = segment.find_in_thread(offset, segment.size)
    if place is not None and log_start_offset <= place.last_offset and place.base_offset < up_to:
        found = _first_record(segment, place, timestamp, log_start_offset, is_given_up)
        if found is not None:
            return found if found.offset < up_to else None
    return _largest_by_headers(segments, log_start_offset, up_to, is_given_up)


def _largest_by_headers(
    segments: Sequence[Segment], log_start_offset: Offset, up_to: Offset, is_given_up: IsGivenUp
) -> TimestampOffset | None:
    """The indexes have only the largest timestamp of whole segments; in a part of one every header is read.

    In the batch that contains the log start every record is read.
    """
    best: TimestampOffset | None = None
    for segment in segments:
        for place in _within(hop(segment.file, 0, segment.size), log_start_offset, up_to, is_given_up):
            timestamp = place.max_timestamp
            if place.base_offset < log_start_offset:
                timestamp = _largest_in(segment, place, log_start_offset, is_given_up)
            if timestamp > (NO_TIMESTAMP if best is None else best.timestamp):
                best = _first_record(segment, place, timestamp, log_start_offset, is_given_up) or best
    return best


def _largest_in(segment: Segment, place: BatchPlace, from_offset: Offset, is_given_up: IsGivenUp) -> int:
    batch = segment.file.read(place.position, place.size)
    try:
        return max(record.timestamp for record in _records(batch, is_given_up) if record.offset >= from_offset)
    except (KafkaError, ValueError):
        return place.max_timestamp


def _records(batch: bytes, is_given_up: IsGivenUp) -> Iterator[Record]:
    for number, record in enumerate(iterate_records(batch)):
        if number % RECORDS_PER_LOOK == 0 and is_given_up():
            raise SearchGivenUp
        yield record


def _within(
    places: Iterator[BatchPlace], log_start_offset: Offset, up_to: Offset, is_given_up: IsGivenUp
) -> Iterator[BatchPlace]:
    for place in places:
        if place.base_offset >= up_to:
            return
        if is_given_up():
            raise SearchGivenUp
        if place.last_offset >= log_start_offset:
            yield place


def _first_record(
    segment: Segment, place: BatchPlace, timestamp: int, from_offset: Offset, is_given_up: IsGivenUp
) -> TimestampOffset | None:
    """Returns the first record of the batch at or after both ``timestamp`` and ``from_offset``."""
    batch = segment.file.read(place.position, place.size)
    header = read_header(batch)
    epoch = header.partition_leader_epoch
    first_offset = max(header.base_offset, from_offset)
    if header.records_count == 0:
        return None
    if header.is_append_time:
        return TimestampOffset(header.max_timestamp, first_offset, epoch)
    try:
        for record in _records(batch, is_given_up):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return TimestampOffset(record.timestamp, record.offset, epoch)
    except KafkaError:
        # Records that cannot be decoded, because appends do not look inside batches: the result is the batch itself.
        return TimestampOffset(header.max_timestamp, first_offset, epoch)
    return None
