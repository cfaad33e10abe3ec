"""One pass of compaction over one log: finds the newest offset of each key, then rewrites the segments.

Runs in the helper process (``compaction_helper.py``) and uses only the log's files and the request; it changes no file
that the broker uses. Kafka's rules, for each record that is not past the end of the map:

- without a key, or with a newer record of its key: removed;
- a tombstone (null value): kept until its batch's delete horizon, which is set ``delete.retention.ms`` ahead by the
  first pass that finds it the newest of its key;
- of an aborted transaction: removed; a transaction's marker: ``cleaned_transactions.py``.

A batch without records is removed, unless it is the last of its producer (its sequence would be lost with it) or ends
at the high watermark.

Small neighbours become one segment, so that a log that is compacted again and again does not end in many tiny ones.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from skep.base.files.files import File, Files
from skep.records.batch import CONTROL_FLAG, NO_TIMESTAMP, TRANSACTIONAL_FLAG, read_header
from skep.storage.compaction import kernels
from skep.storage.compaction.batch_reader import Batches, BatchReader, DamagedLog
from skep.storage.compaction.cleaned_segments import CleanedSegments, emptied, rewritten
from skep.storage.compaction.cleaned_transactions import CleanedTransactions
from skep.storage.compaction.compaction_plan import CleanedGroup, CompactionRequest, PassResult
from skep.storage.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_name

_ROW_BYTES = 24
_LOAD = 0.75
_LARGEST_RANGE = (1 << 31) - 1
_SMALLEST_MAP = 64
_FIRST_MAP = 1 << 14


class CompactionPass:
    """Owns the map of keys, the state of the kernels and the counts of one pass."""

    def __init__(self, files: Files, request: CompactionRequest, spend: Callable[[int], None]) -> None:
        """``spend`` is called with the number of bytes read or written, and may wait."""
        self._files = files
        self._request = request
        self._spend = spend
        self._reader = BatchReader(spend)
        self._secret = memoryview(os.urandom(16)).cast("Q")
        self._state = kernels.new_state()
        self._block = kernels.new_block()
        self._state[kernels.LATEST] = request.first_dirty_offset - 1
        self._most_slots = max(request.map_bytes // _ROW_BYTES, _SMALLEST_MAP)
        self._map = kernels.unsigned_table(min(_FIRST_MAP, self._most_slots), kernels.MAP_COLUMNS)
        self._out = bytearray()
        self._retained_ends = {offset for _, offset, _ in request.last_records if offset >= 0}
        self._horizon_ms = request.now_ms + request.delete_retention_ms
        self._epochs = {producer: epoch for producer, offset, epoch in request.last_records if offset < 0}
        self._bytes_before = self._bytes_after = self._records_after = 0

    def run(self) -> Iterator[CleanedGroup]:
        """Yields the groups as they are done; ``result`` is valid afterwards. Raises DamagedLog and StorageError."""
        self._map_dirty_part()
        end = self._state[kernels.LATEST] + 1
        transactions = CleanedTransactions(self._request.aborted)
        for group in group_segments(self._files, self._request, end):
            output = self._clean(group, transactions)
            if output is not None:
                yield CleanedGroup([base for base, _ in group], [int(base) for base in output])

    def result(self) -> PassResult:
        return PassResult(
            clean_up_to=self._state[kernels.LATEST] + 1,
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_after,
            records_before=self._state[kernels.READ],
            records_after=self._records_after,
            keyless_records=self._state[kernels.KEYLESS],
        )

    def _open(self, base_offset: int) -> File:
        return self._files.open(os.path.join(self._request.directory, offset_name(base_offset, LOG)))

    # The first half: the newest offset of each key.

    def _map_dirty_part(self) -> None:
        transactions = CleanedTransactions(self._request.aborted)
        ends = [*(base for base, _ in self._request.segments[1:]), self._request.end_offset]
        for (base, size), end in zip(self._request.segments, ends, strict=True):
            if end <= self._request.first_dirty_offset:
                continue
            if not self._map_segment(base, size, transactions):
                return
            self._state[kernels.LATEST] = max(self._state[kernels.LATEST], end - 1)

    def _map_segment(self, base_offset: int, size: int, transactions: CleanedTransactions) -> bool:
        """Returns False when the map is full: the pass ends at the record before the one that did not fit."""
        file = self._open(base_offset)
        status = 0
        for batches in self._reader.read(file, size):
            modes = self._modes(batches, transactions)
            while (status := self._map_batches(batches, modes)) == kernels.FULL and self._grow_map():
                pass
            if status == kernels.FULL:
                break
            _check_status(status, file, batches)
        file.close()
        return status != kernels.FULL

    def _map_batches(self, batches: Batches, modes: bytearray) -> int:
        status: int = kernels.map_keys(
            batches.data,
            batches.unpacked,
            batches.table,
            modes,
            self._map,
            int(len(self._map) * _LOAD),
            self._secret,
            self._request.first_dirty_offset,
            self._state,
            *self._block,
        )
        return status

    def _grow_map(self) -> bool:
        """Doubles the map, if it may grow; it starts small because a small map stays in the processor's cache."""
        if len(self._map) == self._most_slots:
            return False
        larger = kernels.unsigned_table(min(2 * len(self._map), self._most_slots), kernels.MAP_COLUMNS)
        kernels.rehash(self._map, larger)
        self._map = larger
        return True

    def _modes(self, batches: Batches, transactions: CleanedTransactions) -> bytearray:
        """Returns what happens to the records of each batch, as far as that does not depend on their keys."""
        modes = bytearray(len(batches.rows))
        for number, row in enumerate(batches.rows):
            if not row[kernels.ATTRIBUTES] & (TRANSACTIONAL_FLAG | CONTROL_FLAG):
                continue
            batch = batches.batch(number)
            header = read_header(batch)
            if not header.is_control:
                modes[number] = kernels.DISCARD if transactions.is_aborted(header) else kernels.FILTER
            elif not transactions.is_marker_free(header, batch):
                modes[number] = kernels.KEEP
            elif header.has_delete_horizon and header.base_timestamp <= self._request.now_ms:
                modes[number] = kernels.DISCARD
            else:
                modes[number] = kernels.KEEP_MARKED
        return modes

    # The second half: rewriting the segments.

    def _clean(self, group: list[tuple[int, int]], transactions: CleanedTransactions) -> list[int] | None:
        """Returns the base offsets of the segments that replace the group; None when nothing would change."""
        request = self._request
        output = CleanedSegments(
            self._files, request.directory, group[0][0], request.now_ms, request.index_interval_bytes
        )
        has_changed = len(group) > 1
        for base_offset, size in group:
            file = self._open(base_offset)
            for batches in self._reader.read(file, size):
                has_changed |= self._clean_batches(file, batches, transactions, output)
            file.close()
            self._bytes_before += size
        self._bytes_after += output.size
        if not has_changed:
            output.discard()
            return None
        return [int(base_offset) for base_offset in output.finish()]

    def _clean_batches(
        self, file: File, batches: Batches, transactions: CleanedTransactions, output: CleanedSegments
    ) -> bool:
        results = self._filter(file, batches, self._modes(batches, transactions))
        self._records_after += sum(result[kernels.KEPT] for result in results)
        self._keep_empty(batches, results)
        for verdict, numbers in groupby(range(len(results)), key=lambda number: results[number][kernels.VERDICT]):
            if verdict == kernels.COPY:
                self._add_copies(batches, list(numbers), output)
            else:
                for number in numbers:
                    self._add_changed(batches, number, results[number], output)
        for aborted in transactions.retained:
            output.add_aborted(aborted)
        transactions.retained.clear()
        return any(result[kernels.VERDICT] != kernels.COPY for result in results)

    def _filter(self, file: File, batches: Batches, modes: bytearray) -> list[list[int]]:
        """Returns a row of results for each batch; the changed records are in ``_out``."""
        request, rows = self._request, batches.rows
        results = kernels.signed_table(len(rows), kernels.RESULTS)
        area = sum(row[kernels.AREA_END] - row[kernels.AREA_START] for row in rows)
        room = area + kernels.GROWTH_PER_RECORD * sum(row[kernels.COUNT] for row in rows)
        if len(self._out) < room:
            # Reused: new memory from the kernel for each piece would cost as much as the copying.
            self._out = bytearray(room)
        status = kernels.filter_records(
            batches.data,
            batches.unpacked,
            batches.table,
            modes,
            self._map,
            self._secret,
            request.now_ms,
            self._horizon_ms,
            self._state,
            *self._block,
            bytearray(max(row[kernels.COUNT] for row in rows)),
            self._out,
            results,
        )
        _check_status(status, file, batches)
        return kernels.rows_of(results)

    def _keep_empty(self, batches: Batches, results: list[list[int]]) -> None:
        """Gives batches without records that have to stay the verdict REWRITE, or COPY if they were empty before."""
        for number, (row, result) in enumerate(zip(batches.rows, results, strict=True)):
            if result[kernels.VERDICT] == kernels.EMPTY and self._stays_empty(batches, number, row):
                result[kernels.VERDICT] = kernels.REWRITE if row[kernels.COUNT] else kernels.COPY

    def _stays_empty(self, batches: Batches, number: int, row: list[int]) -> bool:
        last_offset = row[kernels.BASE_OFFSET] + row[kernels.LAST_DELTA]
        if last_offset + 1 == self._request.high_watermark:
            return True
        if row[kernels.PRODUCER_ID] >= 0 and last_offset in self._retained_ends:
            return True
        if not self._epochs or not row[kernels.ATTRIBUTES] & CONTROL_FLAG:
            return False
        header = read_header(batches.batch(number))
        return self._epochs.get(header.producer_id) == header.producer_epoch

    def _add_copies(self, batches: Batches, numbers: list[int], output: CleanedSegments) -> None:
        rows = batches.rows[numbers[0] : numbers[-1] + 1]
        start, end = rows[0][kernels.POSITION], rows[-1][kernels.POSITION] + rows[-1][kernels.SIZE]
        copied = [
            (
                row[kernels.SIZE],
                row[kernels.BASE_OFFSET] + row[kernels.LAST_DELTA],
                # The timestamp of an empty batch is that of a removed record.
                row[kernels.MAX_TIMESTAMP] if row[kernels.COUNT] else NO_TIMESTAMP,
            )
            for row in rows
        ]
        output.make_room(rows[0][kernels.BASE_OFFSET], copied[-1][1], end - start)
        output.add(memoryview(batches.data)[start:end], copied)
        self._spend(end - start)

    def _add_changed(self, batches: Batches, number: int, result: list[int], output: CleanedSegments) -> None:
        verdict, kept, timestamp, start, end = result
        if verdict == kernels.EMPTY:
            return
        header = read_header(batches.batch(number))
        if kept == 0:
            batch, timestamp = emptied(header), NO_TIMESTAMP
        else:
            horizon_ms = self._horizon_ms if verdict == kernels.REWRITE_MARKED else None
            batch = rewritten(header, memoryview(self._out)[start:end], kept, timestamp, horizon_ms)
        output.make_room(header.base_offset, header.last_offset, len(batch))
        output.add(batch, [(len(batch), header.last_offset, timestamp)])
        self._spend(len(batch))


def _check_status(status: int, file: File, batches: Batches) -> None:
    if status < 0:
        offset = batches.rows[-1 - status][kernels.BASE_OFFSET]
        raise DamagedLog(f"{file.path}: the records of the batch at offset {offset} cannot be decoded")


def group_segments(files: Files, request: CompactionRequest, end_offset: int) -> Iterable[list[tuple[int, int]]]:
    """Yields the segments that begin before ``end_offset``, in groups that become one segment each."""
    ends = [*(base for base, _ in request.segments[1:]), request.end_offset]
    group: list[tuple[int, int]] = []
    held = [0, 0, 0]
    for (base, size), end in zip(request.segments, ends, strict=True):
        if base >= end_offset:
            break
        paths = [os.path.join(request.directory, offset_name(base, suffix)) for suffix in (OFFSET_INDEX, TIME_INDEX)]
        sizes = [size, *(files.size(path) for path in paths)]
        fits = (
            held[0] + sizes[0] <= request.segment_bytes
            and held[1] + sizes[1] <= request.segment_index_bytes
            and held[2] + sizes[2] <= request.segment_index_bytes
        )
        if group and not (fits and end - 1 - group[0][0] <= _LARGEST_RANGE):
            yield group
            group, held = [], [0, 0, 0]
        group.append((base, size))
        held = [total + one for total, one in zip(held, sizes, strict=True)]
    if group:
        yield group
