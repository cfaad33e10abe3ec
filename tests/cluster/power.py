"""A power cut, as far as a test can make one: files lose what was not synced, and the machine has another boot id.

What was synced is known from the broker itself (``in_broker/sync_journal.py``). Of what was written to a file behind
that, a ``Tail`` is left. Files whose names were not synced are gone. What was renamed or deleted stays so, synced or
not.
"""

import enum
import json
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

ANOTHER_BOOT = "the run of the machine before this one"
SECTOR_BYTES = 512


class Tail(enum.Enum):
    """What is left behind the part of a file that was synced."""

    NOTHING = "nothing"
    BEGINNING = "the first bytes; the file ends behind them"
    ZEROS = "zeros: the file was made longer, and nothing was written"
    SECTORS = "the first sectors, and zeros behind them"


class SyncedFiles:
    """What a journal says: by inode, the size of a file that is on the disk, and the inodes that a directory names."""

    def __init__(self, journal: Path) -> None:
        self.sizes: defaultdict[int, int] = defaultdict(int)
        self.named: defaultdict[int, set[int]] = defaultdict(set)
        for line in journal.read_bytes().splitlines():
            kind, inode, *more = json.loads(line)
            if kind == "new":
                self.sizes[inode] = 0
            elif kind == "synced":
                self.sizes[inode] = more[0]
            elif kind == "cut":
                self.sizes[inode] = min(self.sizes[inode], more[0])
            else:
                self.named[inode] = set(more[0].values())


def lose_unsynced(
    data_dir: Path,
    journal: Path,
    is_spared: Callable[[str], bool] = lambda partition: False,
    *,
    tails: Sequence[Tail] = (Tail.NOTHING,),
    chance: random.Random | None = None,
) -> int:
    """Says how many bytes were lost. The broker is dead; it starts as on a machine that was booted since.

    The directories of partitions that are spared lose nothing: all that was written there had reached the disk.
    ``chance`` says which of ``tails`` each file has, and how long it is.
    """
    chance = chance or random.Random(0)
    synced = SyncedFiles(journal)

    def lose_tail(path: Path, kept: int) -> int:
        return _lose_tail(path, kept, chance.choice(tails), chance)

    lost = _lose(data_dir, synced, is_spared, lose_tail)
    if (boot_id := data_dir / "boot-id").exists():
        boot_id.write_text(ANOTHER_BOOT)
    _write_all_synced(data_dir, journal)
    return lost


def _lose(
    directory: Path, synced: SyncedFiles, is_spared: Callable[[str], bool], lose_tail: Callable[[Path, int], int]
) -> int:
    named, lost = synced.named[directory.stat().st_ino], 0
    for path in sorted(directory.iterdir()):
        status = path.stat()
        if path.is_dir() and is_spared(path.name):
            continue
        if path.is_dir():
            if status.st_ino in named:
                lost += _lose(path, synced, is_spared, lose_tail)
            else:
                lost += sum(found.stat().st_size for found in path.iterdir())
                shutil.rmtree(path)
        elif status.st_ino not in named:
            lost += status.st_size
            path.unlink()
        elif status.st_size > (kept := synced.sizes[status.st_ino]):
            lost += lose_tail(path, kept)
    return lost


def _lose_tail(path: Path, synced: int, tail: Tail, chance: random.Random) -> int:
    """How many bytes of it were lost: one at least."""
    size = path.stat().st_size
    boundaries = range(-(-(synced + 1) // SECTOR_BYTES) * SECTOR_BYTES, size, SECTOR_BYTES)
    if tail is Tail.SECTORS and not boundaries:
        tail = Tail.ZEROS
    written = synced
    if tail is Tail.BEGINNING:
        written = chance.randrange(synced, size)
    elif tail is Tail.SECTORS:
        written = chance.choice(boundaries)
    os.truncate(path, written)
    if tail in (Tail.ZEROS, Tail.SECTORS):
        os.truncate(path, chance.randint(written + 1, size))
    return size - written


def _write_all_synced(data_dir: Path, journal: Path) -> None:
    """What a power cut has left is on the disk."""
    events: list[tuple[object, ...]] = []
    for directory, _, files in os.walk(data_dir):
        names = {entry.name: entry.inode() for entry in os.scandir(directory)}
        events.append(("names", Path(directory).stat().st_ino, names))
        for name in files:
            status = Path(directory, name).stat()
            events.append(("synced", status.st_ino, status.st_size))
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
