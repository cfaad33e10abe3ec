"""The partition of a row: the given one, else by its key as Kafka's own clients choose it, else one after the other.

A row without a key may be in any partition. Spread one by one, every partition would get a batch of few rows; so a
stretch of neighbours is written to one partition, the next stretch to the next.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from skep.client.errors import RowRefused
from skep.client.produce.batch_cutter import Rows
from skep.records.columnar import partitions_of_keys

STRETCH_BYTES = 64 << 10
NO_PARTITION = -1

Numbers = np.ndarray[Any, np.dtype[np.int32]]


class Partitioner:
    """Owns the next partition for rows without a key, of one topic."""

    def __init__(self, topic: str, partition_count: int, first_turn: int = 0) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._turn = first_turn

    def choose(self, key: pa.Array | None, given: pa.Array | None, row_count: int, row_bytes: float) -> Numbers:
        """Returns a partition for each row. Raises RowRefused for a given one that does not exist."""
        chosen: Numbers
        if key is None or pa.types.is_null(key.type):
            chosen = np.full(row_count, NO_PARTITION, np.int32)
        else:
            chosen = partitions_of_keys(key, self._partition_count)
        if given is not None and given.null_count < len(given):
            self._prefer(given, chosen)
        keyless = np.flatnonzero(chosen == NO_PARTITION)
        if len(keyless):
            stretch = max(1, int(STRETCH_BYTES / max(row_bytes, 1.0)))
            turns = np.arange(len(keyless), dtype=np.int64) // stretch
            chosen[keyless] = (self._turn + turns) % self._partition_count
            self._turn = (self._turn + int(turns[-1]) + 1) % self._partition_count
        return chosen

    def _prefer(self, given: pa.Array, chosen: Numbers) -> None:
        is_given = np.asarray(given.is_valid())
        wanted = np.asarray(given.cast(pa.int64()).fill_null(0))
        bad = np.flatnonzero(is_given & ((wanted < 0) | (wanted >= self._partition_count)))
        if len(bad):
            row = int(bad[0])
            raise RowRefused(
                row, f"topic '{self._topic}' has partitions 0 to {self._partition_count - 1}, not {wanted[row]}"
            )
        chosen[is_given] = wanted[is_given]


def rows_by_number(numbers: Numbers) -> list[tuple[int, Rows]]:
    """Returns each number that occurs, with its rows in their order."""
    if not len(numbers):
        return []
    counts = np.bincount(numbers)
    # numpy sorts numbers of 16 bits by counting, which is several times as fast.
    order = np.argsort(numbers.astype(np.uint16) if len(counts) <= 1 << 16 else numbers, kind="stable")
    ends = np.cumsum(counts)
    return [(int(number), order[ends[number] - counts[number] : ends[number]]) for number in np.flatnonzero(counts)]
