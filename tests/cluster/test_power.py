"""What a power cut takes away, by the journal that a broker process keeps of its syncs."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.power import ANOTHER_BOOT, SECTOR_BYTES, Tail, lose_unsynced

HOOKS = Path(__file__).parent / "in_broker"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "syncs"


def run(script: str, journal: Path, data: Path) -> None:
    """As a broker process would, in one of its own."""
    environment = {**os.environ, "PYTHONPATH": str(HOOKS), "SKEP_TEST_SYNCS": str(journal)}
    subprocess.run([sys.executable, "-c", f"import os\n{PRELUDE}\n{script}"], env=environment, cwd=data, check=True)


PRELUDE = """
def write(name, data, *, sync):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, data, os.fstat(descriptor).st_size)
    if sync:
        os.fdatasync(descriptor)
    os.close(descriptor)

def sync_directory(name):
    descriptor = os.open(name, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
"""


def test_content_is_cut_to_what_was_synced_and_names_that_were_not_are_gone(tmp_path: Path, journal: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    script = """
os.mkdir("a-0"); os.mkdir("b-0")
write("a-0/log", b"12345", sync=True)
write("a-0/log", b"67890", sync=False)
write("a-0/renamed.tmp", b"whole", sync=True)
os.rename("a-0/renamed.tmp", "a-0/renamed")
sync_directory("a-0")
write("a-0/late", b"a name that nobody synced", sync=True)
write("boot-id", b"now", sync=True)
sync_directory(".")
write("b-0/log", b"123", sync=True)
"""
    run(script, journal, data)
    spared = "b-0"
    assert lose_unsynced(data, journal, lambda partition: partition == spared) == 5 + len("a name that nobody synced")
    assert (data / "a-0" / "log").read_bytes() == b"12345"
    assert (data / "a-0" / "renamed").read_bytes() == b"whole"
    assert not (data / "a-0" / "late").exists()
    assert (data / "b-0" / "log").read_bytes() == b"123"
    assert (data / "boot-id").read_text() == ANOTHER_BOOT
    # What is left is on the disk, also by the journal of the next process.
    run('write("a-0/log", b"678", sync=False)', journal, data)
    assert lose_unsynced(data, journal) == 3
    assert (data / "a-0" / "log").read_bytes() == b"12345"


def test_what_replaces_bytes_that_were_cut_off_is_not_synced(tmp_path: Path, journal: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    script = """
write("log", b"1234567890", sync=True)
sync_directory(".")
descriptor = os.open("log", os.O_RDWR)
os.ftruncate(descriptor, 4)
os.pwrite(descriptor, b"abcdefgh", 4)
"""
    run(script, journal, data)
    assert lose_unsynced(data, journal) == 8
    assert (data / "log").read_bytes() == b"1234"


SYNCED, UNSYNCED = b"s" * 700, b"u" * 2000


def power_cut(tmp_path: Path, journal: Path, seed: int, *tails: Tail) -> tuple[bytes, int]:
    """What is left of a file with a synced and an unsynced part, and how many bytes are said to be lost."""
    data = tmp_path / str(seed)
    data.mkdir()
    run(
        f'write("log", {SYNCED!r}, sync=True); sync_directory("."); write("log", {UNSYNCED!r}, sync=False)',
        journal,
        data,
    )
    lost = lose_unsynced(data, journal, tails=tails, chance=random.Random(seed))
    return (data / "log").read_bytes(), lost


@pytest.mark.parametrize("tail", Tail)
def test_of_what_was_not_synced_a_tail_is_left(tmp_path: Path, journal: Path, tail: Tail) -> None:
    lengths = set()
    for seed in range(5):
        left, lost = power_cut(tmp_path, journal, seed, tail)
        kept = len(left.rstrip(b"\0"))
        zeros = len(left) - kept
        assert left.startswith(SYNCED)
        assert (SYNCED + UNSYNCED).startswith(left[:kept])
        assert len(left) <= len(SYNCED + UNSYNCED)
        assert lost == len(SYNCED + UNSYNCED) - kept > 0
        assert (zeros > 0) is (tail in (Tail.ZEROS, Tail.SECTORS))
        assert (kept > len(SYNCED)) is (tail in (Tail.BEGINNING, Tail.SECTORS))
        assert tail is not Tail.SECTORS or kept % SECTOR_BYTES == 0
        lengths.add(len(left))
    assert (len(lengths) > 1) is (tail is not Tail.NOTHING)


def test_the_seed_says_which_tail_is_left(tmp_path: Path, journal: Path) -> None:
    found = [power_cut(tmp_path, journal, seed, *Tail) for seed in range(10)]
    (tmp_path / "again").mkdir()
    assert found == [power_cut(tmp_path / "again", journal, seed, *Tail) for seed in range(10)]
    assert len({bytes(sorted(set(left[len(SYNCED) :]))) for left, _ in found}) > 2
