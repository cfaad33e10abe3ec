"""Reads a segment for compaction: many batches at a time, checked and decompressed, as a table for the kernels.

Every CRC is checked: a record that is dropped because a damaged one seemed to replace it would be lost, and a damaged
batch that is rewritten would get a CRC that hides the damage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from skep.base.errors import KafkaError
from skep.base.files.files import File
from skep.records.batch import CODEC_MASK, CRC_END, HEADER_SIZE, LENGTH_END, SMALLEST_RECORD, read_header
from skep.records.compression import decompress
from skep.storage.compaction import kernels

PIECE_BYTES = 2 << 20
UNPACKED_BYTES = 32 << 20
"""The number of decompressed bytes from which on a group of batches is full; its last batch may exceed it."""


class DamagedLog(Exception):
    """A segment is damaged; the log is not compacted."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Neighbouring batches of one segment. ``table`` has a row for each, see ``kernels``; ``rows`` are the same numbers
    as lists."""

    data: bytes
    table: memoryview
    rows: list[list[int]]
    unpacked: bytes

    def batch(self, number: int) -> bytes:
        start = self.rows[number][kernels.POSITION]
        return self.data[start : start + self.rows[number][kernels.SIZE]]


class BatchReader:
    def __init__(self, spend: Callable[[int], None]) -> None:
        """``spend`` is called with the number of bytes read, and may wait."""
        self._spend = spend

    def read(self, file: File, size: int) -> Iterator[Batches]:
        """Yields all batches in the first ``size`` bytes."""
        position, wanted = 0, PIECE_BYTES
        while position < size:
            data = file.read(position, min(wanted, size - position))
            self._spend(len(data))
            table = kernels.signed_table(len(data) // HEADER_SIZE + 1, kernels.COLUMNS)
            count, end = kernels.find_batches(data, 0, len(data), table)
            if count < 0:
                raise DamagedLog(f"{file.path}: no record batch at byte {position + end}")
            if count == 0:
                wanted = self._size_of_next(file, position, len(data), size)
                continue
            rows = kernels.rows_of(table[:count])
            _check(file, position, data, rows)
            yield from self._unpacked(file, position, data, table, rows)
            position += end
            wanted = PIECE_BYTES

    @staticmethod
    def _size_of_next(file: File, position: int, have: int, size: int) -> int:
        header = file.read(position, HEADER_SIZE)
        wanted = read_header(header).batch_length + LENGTH_END if len(header) == HEADER_SIZE else 0
        if not have < wanted <= size - position:
            raise DamagedLog(f"{file.path}: ends inside the batch at byte {position}")
        return wanted

    @staticmethod
    def _unpacked(
        file: File, position: int, data: bytes, table: memoryview, rows: list[list[int]]
    ) -> Iterator[Batches]:
        pieces: list[bytes] = []
        first = held = 0
        view = memoryview(data)
        for number, row in enumerate(rows):
            if not (codec := row[kernels.ATTRIBUTES] & CODEC_MASK):
                continue
            packed = view[row[kernels.AREA_START] : row[kernels.AREA_END]]
            try:
                # An empty batch has nothing to decompress, whatever its codec.
                records = decompress(codec, packed) if len(packed) else b""
            except KafkaError as error:
                raise DamagedLog(f"{file.path}: batch at byte {position + row[kernels.POSITION]}: {error}") from None
            row[kernels.AREA_START] = table[number, kernels.AREA_START] = held
            held += len(records)
            row[kernels.AREA_END] = table[number, kernels.AREA_END] = held
            pieces.append(records)
            if held >= UNPACKED_BYTES:
                last = number + 1
                yield _batches(file, position, data, table[first:last], rows[first:last], pieces)
                pieces, first, held = [], last, 0
        if first < len(rows):
            yield _batches(file, position, data, table[first : len(rows)], rows[first:], pieces)


def _batches(
    file: File, position: int, data: bytes, table: memoryview, rows: list[list[int]], pieces: list[bytes]
) -> Batches:
    for row in rows:
        if row[kernels.COUNT] * SMALLEST_RECORD > row[kernels.AREA_END] - row[kernels.AREA_START]:
            raise DamagedLog(f"{file.path}: a batch after byte {position} claims more records than fit into it")
    return Batches(data, table, rows, b"".join(pieces))


def _check(file: File, position: int, data: bytes, rows: list[list[int]]) -> None:
    view = memoryview(data)
    for row in rows:
        start = row[kernels.POSITION]
        if crc32c(view[start + CRC_END : start + row[kernels.SIZE]]) != row[kernels.CRC]:
            raise DamagedLog(f"{file.path}: the CRC of the batch at byte {position + start} is wrong")
