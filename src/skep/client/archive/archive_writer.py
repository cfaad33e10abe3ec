"""Writes to the folder of an archive, so that a run that is killed at any point leaves a valid archive.

Records arrive in pieces of a partition; several pieces are committed together:

    1. their files, one for each day, are written to ``_skep.tmp`` and synced
    2. ``_skep.json`` is replaced by one with the new ends and the names of these files: now they count
    3. the files are moved to their folders

After a kill before step 2 the next run removes the files and reads the records again. After a kill past step 2 the next
run completes step 3. So every record is in one file, in the order of its partition; a file in a folder is always whole
and never has records of another file.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from skep.base.ids import show_topic_id
from skep.client.archive.archive_folder import (
    DAY_US,
    FIRST_DAY,
    LAST_DAY,
    LOCK,
    STATE,
    TEMPORARY,
    ArchivedPartition,
    ArchiveError,
    ArchiveState,
    relative_name,
    temporary_name,
)

ROW_GROUP_BYTES = 16 << 20
"""What a reader holds in memory."""


class Piece(NamedTuple):
    """The records of a partition from ``start`` up to ``end``.

    A ``start`` past the end of the archive leaves a gap.
    """

    partition: int
    start: int
    end: int
    rows: pa.Table
    """With the columns ``offset`` and ``timestamp``, in the order of offsets."""


class ArchiveWriter:
    """Owns the folder: another run is refused meanwhile. ``state`` is the content of ``_skep.json``."""

    def __init__(self, folder: Path, topic: str, topic_id: UUID) -> None:
        """Raises ArchiveError for the folder of another topic, one that another run writes to, and a damaged one."""
        self._folder = folder
        self.files_written = 0
        self.bytes_written = 0
        _make(folder)
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take_lock()
            self.state = self._read(topic, topic_id)
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def commit(self, pieces: Sequence[Piece]) -> None:
        """Adds the pieces to the archive, all or none. Each begins where its partition ends, or later."""
        new = self._settled()
        for piece in pieces:
            before = new.partitions.get(piece.partition) or ArchivedPartition(piece.start, piece.start)
            assert before.end <= piece.start <= piece.end, "pieces are given in order"
            gaps = [*before.gaps, (before.end, piece.start)] if before.end < piece.start else before.gaps
            new.partitions[piece.partition] = ArchivedPartition(before.start, piece.end, gaps)
            new.settled.setdefault(piece.partition, before.end)
            for day, rows in _by_day(piece.rows):
                offsets = rows.column("offset")
                name = relative_name(piece.partition, offsets[0].as_py(), offsets[-1].as_py(), day)
                self._write(self._folder / temporary_name(name), rows)
                new.unfinished.append(name)
                new.count(name)
        if new.unfinished:
            _sync_folder(self._folder / TEMPORARY)
        self._replace_state(new)
        self._move_in()

    def _take_lock(self) -> None:
        try:
            # The system releases the lock when the process ends, in whatever way.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(f"another run is archiving to {self._folder}; wait for its end") from None

    def _read(self, topic: str, topic_id: UUID) -> ArchiveState:
        try:
            state = ArchiveState.read(self._folder / STATE)
        except FileNotFoundError:
            if any(self._folder.glob("date=*")):
                raise ArchiveError(
                    f"{self._folder} has files of days but no {STATE}; archive to another folder"
                ) from None
            # A run that created the folder may have been killed before this.
            _sync_folder(self._folder.parent)
            return ArchiveState(topic, topic_id, {})
        if (state.topic, state.topic_id) != (topic, topic_id):
            raise ArchiveError(
                f"{self._folder} is the archive of topic '{state.topic}' with the id {show_topic_id(state.topic_id)}; "
                f"'{topic}' has the id {show_topic_id(topic_id)}: it was created again, or is on another "
                f"cluster. Archive it to another folder"
            )
        return state

    def _recover(self) -> None:
        """Completes step 3 of a killed run, and removes its uncommitted files."""
        _make(self._folder / TEMPORARY)
        if self.state.unfinished:
            self._move_in()
        for remains in (self._folder / TEMPORARY).iterdir():
            remains.unlink()
        (self._folder / f"{STATE}.new").unlink(missing_ok=True)

    def _move_in(self) -> None:
        folders = set()
        for name in self.state.unfinished:
            place, temporary = self._folder / name, self._folder / temporary_name(name)
            _make(place.parent)
            try:
                os.replace(temporary, place)
            except FileNotFoundError:
                if not place.exists():
                    raise ArchiveError(
                        f"{place} is missing, and {self._folder / STATE} names it; restore it from a copy"
                    ) from None
            folders.add(place.parent)
        for folder in folders:
            _sync_folder(folder)
        if folders:
            # The folders of days themselves: a killed run may have created them without this sync.
            _sync_folder(self._folder)
            self._replace_state(self._settled())

    def _settled(self) -> ArchiveState:
        """Returns a copy of the state without unfinished files: all of them are moved."""
        state = self.state
        return ArchiveState(state.topic, state.topic_id, dict(state.partitions), dict(state.counts))

    def _replace_state(self, state: ArchiveState) -> None:
        new = self._folder / f"{STATE}.new"
        with _synced(new) as file, os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(state.to_json().encode())
        os.replace(new, self._folder / STATE)
        _sync_folder(self._folder)
        self.state = state

    def _write(self, path: Path, rows: pa.Table) -> None:
        rows_at_once = max(1, rows.num_rows * ROW_GROUP_BYTES // max(rows.nbytes, 1))
        with _synced(path) as file, os.fdopen(file, "wb", closefd=False) as stream:
            pq.write_table(
                rows,
                stream,
                compression="zstd",
                row_group_size=rows_at_once,
                use_dictionary=["key", "partition", "timestampType"],
                write_statistics=["partition", "offset", "timestamp"],
            )
        self.files_written += 1
        self.bytes_written += path.stat().st_size


def _by_day(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    if not rows.num_rows:
        return
    # All timestamps outside the calendar are one day, or each of them would make a file.
    days = np.clip(rows.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US, FIRST_DAY - 1, LAST_DAY + 1)
    if days[0] == days[-1] and not np.any(days != days[0]):
        yield int(days[0]), rows
        return
    # A stable sort keeps the rows of a day in the order of their offsets.
    order = np.argsort(days, kind="stable")
    found, starts = np.unique(days[order], return_index=True)
    for day, places in zip(found, np.split(order, starts[1:]), strict=True):
        yield int(day), rows.take(places)


@contextmanager
def _synced(path: Path) -> Iterator[int]:
    """Opens a new file for writing; syncs it at the end."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def _make(folder: Path) -> None:
    """Creates the folder and those above it, and syncs their entries."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
