"""Reads a log: which bytes of which file hold an offset, and lookups by time, by epoch and of aborted transactions.

A read finds the segment by bisection, then an index entry, then the batch by stepping over headers from there;
``Places`` (``log_slice.py``) spares most reads the last two. The bytes themselves are not touched here.
"""

import contextlib
from bisect import bisect_right
from operator import attrgetter

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.storage.log import timestamps
from skep.storage.log.log_slice import LogSlice, Places
from skep.storage.log.log_state import LogState
from skep.storage.log.timestamps import IsGivenUp, TimestampOffset
from skep.storage.segment.segment import Segment
from skep.storage.segment.transaction_index import AbortedTransaction, aborted_between

_BASE_OFFSET = attrgetter("base_offset")


class LogReader:
    """Reads one log. Changes nothing but the positions that are remembered."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def read(self, offset: Offset, max_bytes: int, *, up_to: Offset, at_least_one: bool) -> LogSlice:
        """Returns where whole batches lie, from the one that contains ``offset`` on, in one segment.

        The slice has nothing at or past ``up_to`` and no more than ``max_bytes``; a first batch that is larger is
        returned alone if ``at_least_one``. The slice may end earlier than it could. Reads indexes and headers, usually
        from the page cache. The caller sends or reads the bytes, in a thread if they may be cold. Raises
        OFFSET_OUT_OF_RANGE for an offset outside the log.
        """
        state = self._state
        if state.is_being_cut:
            state.check_not_being_cut()
        log_end_offset = state.log_end_offset
        if not state.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not within {state.log_start_offset} to {log_end_offset}",
            )
        segments, places = state.segments, state.places
        number = bisect_right(segments, offset, key=_BASE_OFFSET) - 1
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
                shortened = _shortened(segment, places, start, limit, max_bytes, at_least_one)
                return shortened or LogSlice(None, 0, 0, offset)
            offset = max(offset, next_base)
        return LogSlice(None, 0, 0, offset)

    def remember(self, offset: int, position: int) -> None:
        """The first batch at or after ``offset`` begins at ``position`` of its segment. Spares the next read a search.

        For readers that use only the beginning of their slice: it goes on there.
        """
        self._state.places.remember(offset, position)

    def prepare(self, offset: Offset, max_bytes: int) -> None:
        """Looks up what the next ``read`` needs, if it asks for these and they are in the same segment."""
        state = self._state
        if state.is_being_cut or not state.log_start_offset <= offset < state.log_end_offset:
            return
        segment = state.segments[bisect_right(state.segments, offset, key=_BASE_OFFSET) - 1]
        with contextlib.suppress(StorageError):  # the read raises it again
            start = state.places.find(segment, offset, segment.size)
            if start is not None and segment.size - start > max_bytes:
                state.places.prepare(segment, start, max_bytes, segment.size)

    @property
    def first_unstable_offset(self) -> Offset | None:
        """Where the oldest undecided transaction begins, but not below the log start; None when there is none."""
        offset = self._state.producers.transactions.first_unstable_offset
        log_start_offset = self._state.log_start_offset
        return offset if offset is None or offset >= log_start_offset else log_start_offset

    def aborted_transactions(self, offset: Offset, end: Offset) -> list[AbortedTransaction]:
        """Returns those with records in [``offset``, ``end``), where every transaction is decided."""
        if not self._state.has_aborted:
            return []
        segments = self._state.segments
        number = bisect_right(segments, offset, key=_BASE_OFFSET) - 1
        return aborted_between((s.transaction_index for s in segments[max(number, 0) :]), offset, end)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never
    ) -> TimestampOffset | None:
        """Returns the first record at or after the time; None when there is none before ``up_to``. In any thread.

        Raises SearchGivenUp soon after ``is_given_up`` returns true.
        """
        state = self._state
        return timestamps.first_at_or_after(
            state.segments, timestamp_ms, state.log_start_offset, up_to, is_given_up=is_given_up
        )

    def latest_timestamp(self, *, up_to: Offset, is_given_up: IsGivenUp = timestamps.never) -> TimestampOffset | None:
        """Returns the first record that has the largest timestamp below ``up_to``; else as ``offset_for_timestamp``."""
        state = self._state
        return timestamps.largest(state.segments, state.log_start_offset, up_to, is_given_up=is_given_up)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Returns where ``epoch`` ended, at or after the log start; see ``LeaderEpochs.end_offset_for``."""
        state = self._state
        known, end = state.epochs.end_offset_for(epoch, state.log_end_offset)
        return known, max(end, state.log_start_offset) if known >= 0 else end

    def divergence(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Returns where ``epoch`` ended, also before the log start; see ``LeaderEpochs.end_offset_for``.

        A replica whose records of that epoch reach further has another history. It must truncate them even if they lie
        before our log start: a crash may undo the move of its own log start, and bring them back.
        """
        state = self._state
        return state.epochs.end_offset_for(epoch, state.log_end_offset)


def _shortened(
    segment: Segment, places: Places, start: int, limit: int, max_bytes: int, at_least_one: bool
) -> LogSlice | None:
    """Returns the slice from ``start`` when not everything up to ``limit`` fits into ``max_bytes``."""
    following = places.first_left_out(segment, start, max_bytes, limit)
    if following is None:
        return None
    if following.position > start:
        places.remember(following.base_offset, following.position)
        return LogSlice(segment.file, start, following.position - start, Offset(following.base_offset))
    # Not even the first batch fits, and it is this one.
    return LogSlice(segment.file, start, following.size, Offset(following.last_offset + 1)) if at_least_one else None
