"""Notes in a file what a broker process syncs, so that a test can take the rest away as a power cut does.

The file is the one that SKEP_TEST_SYNCS names, a line of JSON for each event. Files are known by their inodes, which
they keep when they are renamed::

    ["new", inode]              a file was created, or opened while it was empty
    ["synced", inode, size]     so much of it is on the disk; what was written during the sync does not count
    ["cut", inode, size]        it was made shorter; what is written from there on is not on the disk
    ["names", inode, names]     the directory was synced with these names, {name: inode}

``tests/cluster/power.py`` reads it.
"""

import json
import os
import stat
from collections.abc import Callable
from typing import Any

_path = os.environ.get("SKEP_TEST_SYNCS")


def _noting(sync: Callable[[int], None], note: Callable[..., None]) -> Callable[[int], None]:
    def synced(descriptor: int) -> None:
        before = os.fstat(descriptor)
        if not stat.S_ISDIR(before.st_mode):
            sync(descriptor)
            note("synced", before.st_ino, before.st_size)
            return
        with os.scandir(descriptor) as found:
            names = {entry.name: entry.inode() for entry in found}
        sync(descriptor)
        note("names", before.st_ino, names)

    return synced


def _install(path: str) -> None:
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    fsync, fdatasync, ftruncate, open_file = os.fsync, os.fdatasync, os.ftruncate, os.open

    def note(*event: Any) -> None:
        os.write(journal, json.dumps(event, separators=(",", ":")).encode() + b"\n")

    def truncated(descriptor: int, size: int) -> None:
        ftruncate(descriptor, size)
        note("cut", os.fstat(descriptor).st_ino, size)

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = open_file(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT and (status := os.fstat(descriptor)).st_size == 0:
            note("new", status.st_ino)
        return descriptor

    os.fsync, os.fdatasync, os.ftruncate, os.open = _noting(fsync, note), _noting(fdatasync, note), truncated, opened


if _path is not None:
    _install(_path)
