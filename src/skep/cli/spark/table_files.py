"""The Parquet files of a pipeline's tables: how many rows they have, and their first rows.

A streaming table lists its files in ``_spark_metadata``: one file for each micro-batch with the files it added, as a
line of JSON each, after a line with the version. Every tenth batch repeats all earlier ones and is named ``9.compact``.
Files that no batch lists are of failed attempts. A materialized view has no such list: all its files count.

Only local storage is read. Counts are None where files cannot be read, as those of another format than Parquet.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

METADATA = "_spark_metadata"
_COMPACT = ".compact"


def rows_of_batch(folder: Path, batch_id: int) -> int | None:
    """Returns how many rows a micro-batch added to a streaming table; None if that is not known."""
    log = folder / METADATA
    try:
        if (log / str(batch_id)).exists():
            added = _listed(log / str(batch_id))
        else:
            # The tenth batch lists its own files and those of all before.
            added = _listed(log / f"{batch_id}{_COMPACT}") - _listed_before(log, batch_id)
    except (OSError, ValueError):
        return None
    return count_rows(added)


def rows_of_table(folder: Path) -> int | None:
    """Returns how many rows a table has; None if that is not known."""
    try:
        return count_rows(files_of_table(folder))
    except (OSError, ValueError):
        return None


def files_of_table(folder: Path) -> list[Path]:
    """Returns the files with the rows of a table, oldest first. Raises OSError if the folder does not exist."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    log = folder / METADATA
    if log.is_dir():
        batches = [int(path.name.removesuffix(_COMPACT)) for path in log.iterdir() if _is_batch(path)]
        files: Iterable[Path] = _listed_before(log, max(batches, default=-1) + 1)
    else:
        files = (path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder)))
    return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))


def count_rows(files: Iterable[Path]) -> int | None:
    """Returns the sum of the row counts in the files' footers; None if a file is not Parquet."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return sum(int(pyarrow.parquet.read_metadata(path).num_rows) for path in files)
    except (OSError, pa.ArrowException):
        return None


def read_rows(files: Iterable[Path], limit: int) -> "pa.Table | None":
    """Returns at most ``limit`` rows, those of the first files first; None if there is no file."""
    import pyarrow as pa
    import pyarrow.parquet

    parts: list[pa.Table] = []
    for batch in _batches(files):
        taken = pa.Table.from_batches([batch]).slice(0, limit - sum(part.num_rows for part in parts))
        parts.append(taken)
        if sum(part.num_rows for part in parts) >= limit:
            break
    return pa.concat_tables(parts, promote_options="permissive") if parts else None


def _batches(files: Iterable[Path]) -> "Iterator[pa.RecordBatch]":
    import pyarrow.parquet

    for path in files:
        with pyarrow.parquet.ParquetFile(path) as opened:
            yield from opened.iter_batches()


def _listed_before(log: Path, batch_id: int) -> set[Path]:
    found: set[Path] = set()
    for number in range(batch_id - 1, -1, -1):
        if (log / f"{number}{_COMPACT}").exists():
            return found | _listed(log / f"{number}{_COMPACT}")
        found |= _listed(log / str(number))
    return found


def _listed(path: Path) -> set[Path]:
    """Returns the files of one entry of the list. Raises ValueError if it is not as Spark writes it."""
    version, *lines = path.read_text().splitlines()
    if version != "v1":
        raise ValueError(f"{path} has the version {version}")
    entries = [json.loads(line) for line in lines]
    return {Path(entry["path"].removeprefix("file://")) for entry in entries if entry.get("action") == "add"}


def _is_batch(path: Path) -> bool:
    return path.name.removesuffix(_COMPACT).isdecimal()


def _is_hidden(path: Path) -> bool:
    """Spark's files that are not data: ``_SUCCESS``, ``.part-0.parquet.crc``."""
    return any(part.startswith(("_", ".")) for part in path.parts)
