"""Writing to the folder of an archive, so that a run that is killed at any point leaves an archive.

Records come in pieces of a partition; some pieces are made part of the archive at once:

    1. their files, one for each day, are written to ``_skep.tmp`` and synced
    2. ``_skep.json`` is replaced by one that has the new ends and names these files: now they count
    3. the files are moved to their folders

Killed before 2, the files are remains that the next run removes, and it reads the records again. Killed after 2, the
next run does 3 to its end. So a record is in one file, in the order of its partition, whatever happens; there is no
moment at which a file in a folder is not whole or has records of another file.
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
"""What a reader holds at once."""


class Piece(NamedTuple):
    """The records of a partition from ``start`` up to ``end``; what was lost before ``start`` is a gap."""

    partition: int
    start: int
    end: int
    rows: pa.Table
    """With the columns ``offset`` and ``timestamp``, in the order of offsets."""


class ArchiveWriter:
    """Owns the folder while it lives: another run is refused. ``state`` is what ``_skep.json`` says."""

    def __init__(self, folder: Path, topic: str, topic_id: UUID) -> None:
        """ArchiveError when it is another topic's folder, when another run is writing to it, or when it is damaged."""
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
        """Makes the pieces part of the archive, all or none. Each begins where its partition ends, or later."""
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
            # Of the process: the system lets go of it whatever way that ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(f"another run is archiving to {self._folder}; wait for its end") from None

    def _read(self, topic: str, topic_id: UUID) -> ArchiveState:
        try:
            state = ArchiveState.read(self._folder / STATE)
        except FileNotFoundError:
            if any(self._folder.glob("date=*")):
                raise ArchiveError(
                    f"{self._folder} has files and no {STATE}, which says what they are; archive to another folder"
                ) from None
            # Whoever made the folder may have been killed before this.
            _sync_folder(self._folder.parent)
            return ArchiveState(topic, topic_id, {})
        if (state.topic, state.topic_id) != (topic, topic_id):
            raise ArchiveError(
                f"{self._folder} is the archive of topic '{state.topic}' with the id {state.topic_id}; '{topic}' has "
                f"the id {topic_id}: it was made anew, or is on another cluster. Archive it to another folder"
            )
        return state

    def _recover(self) -> None:
        """Ends what a killed run began, and removes what it had not finished."""
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
                        f"{place} is lost: {self._folder / STATE} names it and it is not there"
                    ) from None
            folders.add(place.parent)
        for folder in folders:
            _sync_folder(folder)
        if folders:
            # The folders of days themselves: a killed run may have made them and not come to this.
            _sync_folder(self._folder)
            self._replace_state(self._settled())

    def _settled(self) -> ArchiveState:
        """A copy of the state without what is unfinished, for all of it is moved."""
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
    # What lies outside the calendar is one day, or wild timestamps would each make a file.
    days = np.clip(rows.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US, FIRST_DAY - 1, LAST_DAY + 1)
    if days[0] == days[-1] and not np.any(days != days[0]):
        yield int(days[0]), rows
        return
    # Stable, so that the rows of a day stay in the order of their offsets.
    order = np.argsort(days, kind="stable")
    found, starts = np.unique(days[order], return_index=True)
    for day, places in zip(found, np.split(order, starts[1:]), strict=True):
        yield int(day), rows.take(places)


@contextmanager
def _synced(path: Path) -> Iterator[int]:
    """A new file to write to; on the disk when this ends."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def _make(folder: Path) -> None:
    """The folder and those above it; on the disk when this returns."""
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
