"""Appends to a log as a follower: the batches of a Fetch response, byte for byte, after they were checked.

A copy equals the leader's log batch by batch; segments may end at other offsets.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import CRC_END, BatchHeader, headers_in
from skep.records.end_txn_marker import read_marker
from skep.storage.file_names import OFFSET_GAPS
from skep.storage.log.appender import Appender
from skep.storage.log.log_state import LogState
from skep.storage.log.truncator import Truncator
from skep.storage.segment.segment import Segment


class ReplicaAppender:
    """Appends what the leader sent, as far as it is good."""

    __slots__ = ("_appender", "_state", "_truncator")

    def __init__(self, state: LogState, appender: Appender, truncator: Truncator) -> None:
        self._state = state
        self._appender = appender
        self._truncator = truncator

    def append(self, records: bytes | memoryview, now_ms: int) -> int:
        """Appends the batches of a Fetch response unchanged; returns how many bytes were appended.

        Whole batches that end below the log end are skipped, and a batch that is cut off at the end of ``records`` is
        ignored. Gaps between batches come from compaction. Raises CORRUPT_MESSAGE for what no leader sends: bytes that
        are no batch, no whole batch, a wrong CRC, a batch that overlaps the log, an epoch that goes back. Raises
        StorageError when the disk refuses. The batches before the error are appended: the log end says how many.
        """
        state = self._state
        state.check_not_being_cut()
        if state.flush.failure is not None:
            raise StorageError(state.flush.failure)
        view = memoryview(records)
        log_start = state.log_start_offset
        is_empty = log_start == state.log_end_offset
        batches, problem = check_batches(view, state.log_end_offset, state.epochs.latest, may_overlap=is_empty)
        if batches:
            if (base_offset := batches[0][1].base_offset) < state.log_end_offset:
                # The leader's log start is inside a batch, which was sent whole: the files start with the batch.
                self._truncator.start_over_at(base_offset)
            self._append_batches(view, batches, now_ms)
            state.move_start(log_start)
        if problem is not None:
            raise problem
        return batches[-1][0] + batches[-1][1].size - batches[0][0] if batches else 0

    def _append_batches(self, view: memoryview, batches: Sequence[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Appends the batches with one write for each segment."""
        state = self._state
        segment = state.active if state.active is not None else state.roll(now_ms)
        if not state.has_gaps and _has_gap(batches, state.log_end_offset):
            # Before the batches are written, because recovery would take the gap for damage.
            state.files.open(os.path.join(state.path, OFFSET_GAPS), create=True)
            state.flush.name_made()
            state.has_gaps = True
        run: list[tuple[int, BatchHeader]] = []
        held = segment.size
        for position, header in batches:
            size, last_offset, timestamp = header.size, header.last_offset, header.max_timestamp
            if segment.must_roll(held, size, last_offset, timestamp, now_ms, state.config):
                self._write_run(segment, view, run, now_ms)
                state.log_end_offset = header.base_offset
                segment, run, held = state.roll(now_ms), [], 0
            if held == 0:
                # The next batch compares its time with this one to decide whether it rolls the segment.
                segment.first_timestamp = timestamp
            run.append((position, header))
            held += size
        self._write_run(segment, view, run, now_ms)

    def _write_run(
        self, segment: Segment, view: memoryview, run: Sequence[tuple[int, BatchHeader]], now_ms: int
    ) -> None:
        if not run:
            return
        begin, end = run[0][0], run[-1][0] + run[-1][1].size
        shift = segment.size - begin
        segment.file.append((view[begin:end],))
        for position, header in run:
            self._appender.written(
                segment,
                position + shift,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.partition_leader_epoch,
                header,
                read_marker(bytes(view[position : position + header.size])) if header.is_control else None,
                now_ms,
            )


class ReplicatedBatches(NamedTuple):
    """The good batches at the beginning of a response, and what is wrong with the one that follows them, if
    anything."""

    batches: list[tuple[int, BatchHeader]]
    """The position and the header of each."""
    problem: KafkaError | None


def check_batches(
    records: memoryview, end_offset: Offset, latest_epoch: LeaderEpoch, *, may_overlap: bool
) -> ReplicatedBatches:
    """Returns the whole batches that may follow ``end_offset``, where the last batch was of ``latest_epoch``.

    Batches at the beginning that end below ``end_offset`` are skipped. A first batch that contains it is accepted if it
    ``may_overlap``. A batch that is cut off at the end of ``records`` is no problem unless it is the only one.
    """
    batches: list[tuple[int, BatchHeader]] = []
    next_offset, epoch, has_any = end_offset, latest_epoch, False
    try:
        for position, header in headers_in(records):
            has_any = True
            problem = _problem_of(records, position, header)
            if problem is None and (batches or header.last_offset >= next_offset):
                if header.base_offset < next_offset and (batches or not may_overlap):
                    problem = f"batch {header.base_offset} to {header.last_offset} begins before offset {next_offset}"
                elif header.partition_leader_epoch < max(epoch, 0):
                    problem = f"batch {header.base_offset} is of epoch {header.partition_leader_epoch}, after {epoch}"
                else:
                    batches.append((position, header))
                    next_offset, epoch = header.next_offset, header.partition_leader_epoch
            if problem is not None:
                return ReplicatedBatches(batches, _corrupt(problem))
    except KafkaError as error:
        return ReplicatedBatches(batches, _corrupt(str(error.detail)))
    if len(records) and not has_any:
        return ReplicatedBatches([], _corrupt(f"{len(records)} bytes without one whole batch"))
    return ReplicatedBatches(batches, None)


def _problem_of(records: memoryview, position: int, header: BatchHeader) -> str | None:
    if header.last_offset_delta < 0 or header.base_offset < 0:
        return f"no record batch at byte {position}"
    if header.crc != crc32c(records[position + CRC_END : position + header.size]):
        return f"the CRC32C of batch {header.base_offset} is wrong"
    return None


def _corrupt(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, f"the leader's response is damaged: {detail}")


def _has_gap(batches: Sequence[tuple[int, BatchHeader]], next_offset: Offset) -> bool:
    for _, header in batches:
        if header.base_offset != next_offset:
            return True
        next_offset = header.next_offset
    return False
