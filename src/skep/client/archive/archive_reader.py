"""Reads archived partitions as Arrow batches, in the order of their offsets.

Files of different days may overlap in offsets (late records). Overlapping files are sorted together; they come from one
piece of a run, whose size bounds the memory. A file without an overlap, which is the rule, is read one row group after
the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from skep.client.archive.archive_folder import Archive, ArchiveError, ArchiveFile
from skep.records.columnar import record_schema

ROWS_PER_BATCH = 10_000
TASK_BYTES = 128 << 20
"""About the size of the files that one task reads."""

Group = tuple[ArchiveFile, ...]
"""Files that have to be sorted together."""


def in_groups(files: Iterable[ArchiveFile]) -> list[Group]:
    """Returns groups that do not overlap in offsets, of files of one partition sorted by their first offset."""
    groups: list[list[ArchiveFile]] = []
    last = -1
    for one in files:
        if one.first > last:
            groups.append([])
        groups[-1].append(one)
        last = max(last, one.last)
    return [tuple(group) for group in groups]


def in_tasks(files: Iterable[ArchiveFile], task_bytes: int = TASK_BYTES) -> list[Group]:
    """Returns the groups of ``in_groups``, with small ones joined up to ``task_bytes``."""
    tasks: list[Group] = []
    for group in in_groups(files):
        if tasks and sum(one.size for one in tasks[-1] + group) <= task_bytes:
            tasks[-1] += group
        else:
            tasks.append(group)
    return tasks


def read_files(
    files: Iterable[ArchiveFile], start: int, end: int, *, headers: bool, max_rows: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yields the records of one partition from ``start`` up to ``end``, with the columns of ``record_schema``."""
    schema = record_schema(headers=headers)
    for group in in_groups(files):
        if len(group) == 1:
            batches = _read_file(group[0], start, end, schema, max_rows)
        else:
            tables = [pa.Table.from_batches(_read_file(one, start, end, schema, max_rows), schema) for one in group]
            together = pa.concat_tables(tables).sort_by("offset")
            batches = iter(together.to_batches(max_chunksize=max_rows))
        yield from batches


def _read_file(file: ArchiveFile, start: int, end: int, schema: pa.Schema, max_rows: int) -> Iterator[pa.RecordBatch]:
    with _opened(file) as parquet:
        for number in _row_groups(parquet, "offset", start, end):
            for batch in parquet.iter_batches(max_rows, row_groups=[number], columns=schema.names, use_threads=False):
                offsets = batch.column("offset").to_numpy()
                first, stop = np.searchsorted(offsets, (start, end))
                if first < stop:
                    columns = [batch.column(field.name).slice(first, stop - first) for field in schema]
                    yield pa.RecordBatch.from_arrays(
                        [
                            one if one.type == field.type else one.cast(field.type)
                            for one, field in zip(columns, schema, strict=True)
                        ],
                        schema=schema,
                    )


def first_offset_from(archive: Archive, partition: int, timestamp_ms: int, below: int) -> int | None:
    """Returns the first archived offset below ``below`` whose record is not older; None when there is none."""
    part = archive.partitions.get(partition)
    files = [] if part is None else archive.files(partition, part.start, min(part.end, below), timestamp_ms)
    found: int | None = None
    for one in files:
        if found is not None and found < one.first:
            break
        first = _first_in_file(one, timestamp_ms)
        if first is not None and first < below:
            found = first if found is None else min(found, first)
    return found


def _first_in_file(file: ArchiveFile, timestamp_ms: int) -> int | None:
    with _opened(file) as parquet:
        for number in range(parquet.metadata.num_row_groups):
            rows = parquet.read_row_group(number, columns=["offset", "timestamp"], use_threads=False)
            places = np.flatnonzero(rows.column("timestamp").cast(pa.int64()).to_numpy() >= timestamp_ms * 1000)
            if len(places):
                return int(rows.column("offset")[int(places[0])].as_py())
    return None


def _row_groups(parquet: Any, column: str, start: int, end: int) -> Sequence[int]:
    """Returns the row groups that can have values in the range, by the statistics in the file."""
    place = parquet.schema_arrow.names.index(column)
    # A Parquet file counts columns by leaves; offset comes before headers, which have several.
    found = []
    for number in range(parquet.metadata.num_row_groups):
        statistics = parquet.metadata.row_group(number).column(place).statistics
        if statistics is None or not statistics.has_min_max or (statistics.min < end and statistics.max >= start):
            found.append(number)
    return found


class _opened:
    """An open Parquet file. Raises ArchiveError when it is damaged or missing, also while it is read."""

    def __init__(self, file: ArchiveFile) -> None:
        self._path = file.path
        self._parquet: Any = None

    def __enter__(self) -> Any:
        try:
            self._parquet = pq.ParquetFile(self._path)
        except (OSError, pa.ArrowException) as error:
            raise self._failure(error) from None
        return self._parquet

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._parquet.close()
        if isinstance(error, OSError | pa.ArrowException):
            raise self._failure(error) from None

    def _failure(self, error: BaseException) -> ArchiveError:
        words = str(error).splitlines()
        return ArchiveError(f"{self._path} cannot be read: {words[0] if words else type(error).__name__}")
