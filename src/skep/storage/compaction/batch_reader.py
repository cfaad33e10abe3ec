"""Reads a segment for compaction: many batches at a time, checked and decompressed, as a table for the kernels.

Every CRC is checked: a record that is dropped because a damaged one seemed to replace it would be lost, and a damaged
batch that is rewritten would get a CRC that hides the damage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from crc32c import crc32c

from skep.base.errors import KafkaError
from skep.base.files.files import File
from skep.records.batch import CODEC_MASK, CRC_END, HEADER_SIZE, LENGTH_END, SMALLEST_RECORD, read_header
from skep.records.compression import decompress
from skep.storage.compaction import kernels

PIECE_BYTES = 2 << 20
UNPACKED_BYTES = 32 << 20
"""The number of decompressed bytes from which on a group of batches is full; its last batch may exceed it."""

Array = Any
"""A numpy array."""


class DamagedLog(Exception):
    """A segment is damaged; the log is not compacted."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Neighbouring batches of one segment. ``rows`` has a row for each, see ``kernels``."""

    data: bytes
    raw: Array
    rows: Array
    unpacked: Array

    def batch(self, number: int) -> bytes:
        start = int(self.rows[number, kernels.POSITION])
        return self.data[start : start + int(self.rows[number, kernels.SIZE])]


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
            raw = np.frombuffer(data, np.uint8)
            rows = np.empty((len(raw) // HEADER_SIZE + 1, kernels.COLUMNS), np.int64)
            count, end = kernels.find_batches(raw, 0, len(raw), rows)
            if count < 0:
                raise DamagedLog(f"{file.path}: no record batch at byte {position + end}")
            if count == 0:
                wanted = self._size_of_next(file, position, len(data), size)
                continue
            rows = rows[:count]
            _check(file, position, data, rows)
            yield from self._unpacked(file, position, data, raw, rows)
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
    def _unpacked(file: File, position: int, data: bytes, raw: Array, rows: Array) -> Iterator[Batches]:
        pieces: list[bytes] = []
        first = held = 0
        for number in np.flatnonzero(rows[:, kernels.ATTRIBUTES] & CODEC_MASK).tolist():
            row = rows[number]
            packed = memoryview(data)[row[kernels.AREA_START] : row[kernels.AREA_END]]
            try:
                # An empty batch has nothing to decompress, whatever its codec.
                records = decompress(int(row[kernels.ATTRIBUTES] & CODEC_MASK), packed) if len(packed) else b""
            except KafkaError as error:
                raise DamagedLog(f"{file.path}: batch at byte {position + row[kernels.POSITION]}: {error}") from None
            row[kernels.AREA_START], row[kernels.AREA_END] = held, held + len(records)
            pieces.append(records)
            held += len(records)
            if held >= UNPACKED_BYTES:
                yield _batches(file, position, data, raw, rows[first : number + 1], pieces)
                pieces, first, held = [], number + 1, 0
        if first < len(rows):
            yield _batches(file, position, data, raw, rows[first:], pieces)


def _batches(file: File, position: int, data: bytes, raw: Array, rows: Array, pieces: list[bytes]) -> Batches:
    room = rows[:, kernels.AREA_END] - rows[:, kernels.AREA_START]
    if (rows[:, kernels.COUNT] * SMALLEST_RECORD > room).any():
        raise DamagedLog(f"{file.path}: a batch after byte {position} claims more records than fit into it")
    return Batches(data, raw, rows, np.frombuffer(b"".join(pieces), np.uint8))


def _check(file: File, position: int, data: bytes, rows: Array) -> None:
    view = memoryview(data)
    columns = rows[:, (kernels.POSITION, kernels.SIZE, kernels.CRC)].tolist()
    for start, size, crc in columns:
        if crc32c(view[start + CRC_END : start + size]) != crc:
            raise DamagedLog(f"{file.path}: the CRC of the batch at byte {position + start} is wrong")
