"""Decodes record batches into Arrow columns: the records of one partition from one Fetch response.

Batches are found and checked many at a time; Python computes the CRC of each, and decompresses those that are
compressed. They are then read in groups of about ``max_rows`` and ``max_bytes``, one RecordBatch for each group, so
memory is bounded by the group and not by the response. The columns are described in ``arrays.py``.

A group whose batches are all uncompressed is read in place. As soon as one is compressed, the records of all are copied
one after the other into a buffer that is reused for the next group.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_END,
    HEADER_SIZE,
    SMALLEST_RECORD,
    TRANSACTIONAL_FLAG,
    Buffer,
)
from skep.records.columnar import columnar_kernels as kernels
from skep.records.columnar.aborted_transactions import AbortedTransactions
from skep.records.columnar.arrays import BadBatch, columns_of
from skep.records.columnar.unpacker import Unpacker

DEFAULT_MAX_ROWS = 10_000
DEFAULT_MAX_BYTES = 16 << 20
_LARGEST_GROUP = 1 << 30
"""Offsets of Arrow's binary columns have 31 bits; the last batch of a group may add its whole decompressed size."""
_SPARE = 1 << 20
"""Room for one batch of the usual size after a full group."""
_BATCHES_AT_ONCE = 16_384
_LARGEST_OFFSET = (1 << 63) - 1
_FOR_CRC = [kernels.POSITION, kernels.AREA_END, kernels.CRC, kernels.BASE_OFFSET]


class Decoder:
    """Iterates over the records of ``data`` with offsets from ``start`` up to ``end``, as RecordBatches.

    Control batches are left out, and with ``committed`` also the transactions in ``aborted``: pairs of producer id and
    first offset, from the same response. A batch that is cut off at the end is left for the next fetch. Damage raises
    CORRUPT_MESSAGE with the offset of the batch when its group is read; the groups before it are right. ``data`` must
    not change meanwhile; nothing refers to it afterwards.
    """

    next_offset: int
    """Where the next fetch continues; final when the iteration has ended. ``end`` as soon as nothing below it can
    follow, and ``start`` when there was no whole batch."""

    def __init__(
        self,
        data: Buffer,
        *,
        start: int,
        end: int = _LARGEST_OFFSET,
        aborted: Sequence[tuple[int, int]] = (),
        committed: bool = False,
        headers: bool = False,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        if len(data) >= _LARGEST_GROUP:
            raise ValueError(f"a response of {len(data)} bytes is too large; the limit is {_LARGEST_GROUP - 1}")
        self.next_offset = start
        self._view = memoryview(data)
        self._raw = _bytes_of(data)
        self._start, self._end = start, min(end, _LARGEST_OFFSET)
        self._aborted = AbortedTransactions(aborted) if committed else None
        self._with_headers = headers
        self._unpacker = Unpacker(min(max_bytes, DEFAULT_MAX_BYTES, 8 * len(data)) + _SPARE)
        self._max_rows, self._max_bytes = max(max_rows, 1), min(max(max_bytes, 1), _LARGEST_GROUP)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        position = log_offset = 0
        batches = np.empty((min(len(self._raw) // HEADER_SIZE + 1, _BATCHES_AT_ONCE), kernels.COLUMNS), np.int64)
        while True:
            count, position = kernels.find_batches(self._raw, position, log_offset, batches)
            found = batches[: count if count >= 0 else -1 - count]
            if len(found):
                log_offset = int(found[-1, kernels.BASE_OFFSET] + found[-1, kernels.LAST_DELTA]) + 1
                yield from self._read(found)
            if count < 0 and self.next_offset < self._end:
                raise _no_batch(self._view, position, self.next_offset)
            if count < len(batches) or self.next_offset >= self._end:
                return

    def _read(self, batches: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yields the records of these batches, group by group."""
        last_offsets = batches[:, kernels.BASE_OFFSET] + batches[:, kernels.LAST_DELTA]
        first = int(np.searchsorted(last_offsets, self._start))
        stop = int(np.searchsorted(batches[:, kernels.BASE_OFFSET], self._end))
        is_at_end = stop < len(batches)
        passed, batches = batches[:first], batches[first:stop]
        self._check_crcs(passed)
        if self._aborted is not None and _has_transactions(passed):
            # A transaction that was aborted before the first offset must not count for what follows it.
            self._without_transactions(passed)
        chosen = self._without_transactions(batches) if _has_transactions(batches) else batches
        begin = 0
        while begin < len(chosen):
            # As many as fit by their headers; compressed ones turn out larger, and the group is cut again below.
            ends = np.cumsum(chosen[begin:, kernels.COUNT])
            sizes = np.cumsum(chosen[begin:, kernels.SIZE])
            most = int(min(np.searchsorted(ends, self._max_rows), np.searchsorted(sizes, self._max_bytes))) + 1
            group = chosen[begin : begin + most]
            data, taken = self._checked(group)
            columns = self._columns(data, group[:taken])
            if columns is not None:
                yield columns
            begin += taken
            self._reached(int(group[taken - 1, kernels.BASE_OFFSET] + group[taken - 1, kernels.LAST_DELTA]) + 1)
        if is_at_end:
            self._reached(self._end)
        elif len(last_offsets):
            self._reached(int(last_offsets[-1]) + 1)

    def _reached(self, offset: int) -> None:
        self.next_offset = max(self.next_offset, min(offset, self._end))

    def _without_transactions(self, batches: np.ndarray) -> np.ndarray:
        """Returns the batches without control batches and, if only committed ones are wanted, without aborted ones.

        The CRC of those that are left out is checked as well; otherwise a flipped bit could make records disappear.
        """
        keep = (batches[:, kernels.ATTRIBUTES] & CONTROL_FLAG) == 0
        if self._aborted is not None:
            for number in np.flatnonzero(batches[:, kernels.PRODUCER_ID] >= 0).tolist():
                row = batches[number].tolist()
                is_control = bool(row[kernels.ATTRIBUTES] & CONTROL_FLAG)
                batch = self._view[row[kernels.POSITION] : row[kernels.POSITION] + row[kernels.SIZE]]
                last_offset = row[kernels.BASE_OFFSET] + row[kernels.LAST_DELTA]
                if self._aborted.is_aborted(
                    row[kernels.PRODUCER_ID],
                    last_offset,
                    is_transactional=bool(row[kernels.ATTRIBUTES] & TRANSACTIONAL_FLAG),
                    control_batch=bytes(batch) if is_control else None,
                ):
                    keep[number] = False
        self._check_crcs(batches[~keep])
        kept: np.ndarray = batches[keep]
        return kept

    def _check_crcs(self, batches: np.ndarray) -> None:
        view = self._view
        for position, end, crc, offset in batches[:, _FOR_CRC].tolist():
            if crc32c(view[position + CRC_END : end]) != crc:
                raise _wrong_crc(offset)

    def _checked(self, group: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns the bytes with the records of the first batches, and how many batches; sets their areas."""
        data, taken = self._raw, len(group)
        if np.any(group[:, kernels.ATTRIBUTES] & CODEC_MASK):
            data, taken = self._unpacked(group)
            group = group[:taken]
        else:
            self._check_crcs(group)
        areas = group[:, kernels.AREA_END] - group[:, kernels.AREA_START]
        # Buffers are allocated for as many records as are claimed, so the bytes must be able to hold them.
        if np.any(too_many := group[:, kernels.COUNT] * SMALLEST_RECORD > areas):
            row = group[int(np.argmax(too_many))]
            raise _corrupt(row[kernels.BASE_OFFSET], f"it claims {row[kernels.COUNT]} records")
        return data, taken

    def _unpacked(self, group: np.ndarray) -> tuple[np.ndarray, int]:
        unpacker = self._unpacker
        unpacker.clear()
        ends = [0]
        for position, end, crc, offset, attributes in group[:, [*_FOR_CRC, kernels.ATTRIBUTES]].tolist():
            if crc32c(self._view[position + CRC_END : end]) != crc:
                raise _wrong_crc(offset)
            try:
                # A batch that compaction has emptied may have kept its codec, and no codec decompresses no bytes.
                if end > position + HEADER_SIZE:
                    unpacker.add(attributes & CODEC_MASK, self._view[position + HEADER_SIZE : end])
            except KafkaError as error:
                raise _corrupt(offset, error.detail) from None
            ends.append(unpacker.size)
            if unpacker.size >= self._max_bytes:
                break
        taken = len(ends) - 1
        group[:taken, kernels.AREA_START] = ends[:-1]
        group[:taken, kernels.AREA_END] = ends[1:]
        return unpacker.content(), taken

    def _columns(self, data: np.ndarray, group: np.ndarray) -> pa.RecordBatch | None:
        try:
            return columns_of(data, group, start=self._start, end=self._end, with_headers=self._with_headers)
        except BadBatch as bad:
            raise _corrupt(group[bad.number, kernels.BASE_OFFSET], "its records cannot be decoded") from None


def _has_transactions(batches: np.ndarray) -> bool:
    return bool(np.any(batches[:, kernels.ATTRIBUTES] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)))


def _bytes_of(data: Any) -> np.ndarray:
    """Returns a read-only array: a writable one is another type for numba, which would compile again."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def _no_batch(view: memoryview, position: int, offset: int) -> KafkaError:
    magic = view[position + 16]
    return KafkaError(
        ErrorCode.corrupt_message, f"no record batch with offset {offset} or more at byte {position} (magic {magic})"
    )


def _wrong_crc(base_offset: int) -> KafkaError:
    return _corrupt(base_offset, "its CRC32C does not match its bytes")


def _corrupt(base_offset: int, detail: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, f"the batch at offset {base_offset} is damaged: {detail}")
