"""What a start makes of the names that an interrupted swap left; the content tells the old segments from the new."""

import pytest

from skep.records.builder import NewRecord, build_batch
from skep.storage.log.segment_swap import finish_swaps, remove_leftovers

DIRECTORY = "/data/t-0"
OLD, NEW = b"old", b"new"


def segment(value: bytes, first: int, last: int) -> bytes:
    """A ``.log`` whose batches reach from one offset to the other."""
    offsets = sorted({first, last})
    return b"".join(build_batch([NewRecord(b"k", value)], base_offset=offset) for offset in offsets)


def lay_out(kit, names: dict[str, bytes]):
    files = kit.files()
    files.make_directory(DIRECTORY)
    for name, content in names.items():
        base, suffix = name.split(".", 1)
        files.open(f"{DIRECTORY}/{int(base):020d}.{suffix}", create=True).append((content,))
    return files


def found(files) -> dict[str, str]:
    """Which of the files are there, and whether they are the old ones or the new."""
    return {
        f"{int(name[:20])}{name[20:]}": "new" if NEW in files.read_whole(f"{DIRECTORY}/{name}") else "old"
        for name in files.list_directory(DIRECTORY)
    }


def old(*bases: int) -> dict[str, bytes]:
    names = {}
    for base in bases:
        names |= {f"{base}.log": segment(OLD, base, base + 9), f"{base}.index": OLD, f"{base}.txnindex": OLD}
    return names


def new(suffix: str, base: int, last: int) -> dict[str, bytes]:
    return {f"{base}.log{suffix}": segment(NEW, base, last), f"{base}.index{suffix}": NEW}


OLD_ONES = dict.fromkeys(old(0, 10, 20), "old")

CASES = {
    "nothing was going on": (old(0, 10, 20), OLD_ONES),
    "written, perhaps not all": ({**old(0, 10, 20), **new(".cleaned", 0, 15)}, OLD_ONES),
    "indexes renamed, not the log": (
        {**old(0, 10, 20), "0.log.cleaned": segment(NEW, 0, 15), "0.index.swap": NEW},
        OLD_ONES,
    ),
    "all renamed": (
        {**old(0, 10, 20), **new(".swap", 0, 15)},
        {"0.log": "new", "0.index": "new", "20.log": "old", "20.index": "old", "20.txnindex": "old"},
    ),
    "one of the old ones gone": (
        {**old(10, 20), **new(".swap", 0, 15)},
        {"0.log": "new", "0.index": "new", "20.log": "old", "20.index": "old", "20.txnindex": "old"},
    ),
    "the log in place, not its index": (
        {**old(20), "0.log": segment(NEW, 0, 15), "0.index.swap": NEW},
        {"0.log": "new", "0.index": "new", "20.log": "old", "20.index": "old", "20.txnindex": "old"},
    ),
    "the first of two outputs is not renamed yet": (
        {**old(0, 10, 20), **new(".cleaned", 0, 5), **new(".swap", 12, 15)},
        OLD_ONES,
    ),
    "both outputs are": (
        {**old(0, 10, 20), **new(".swap", 0, 10), **new(".swap", 12, 15)},
        {
            **dict.fromkeys(("0.log", "0.index", "12.log", "12.index"), "new"),
            **dict.fromkeys(("20.log", "20.index", "20.txnindex"), "old"),
        },
    ),
    "the next group is being written": (
        {**old(0, 10, 20), **new(".swap", 0, 15), **new(".cleaned", 20, 25)},
        {"0.log": "new", "0.index": "new", "20.log": "old", "20.index": "old", "20.txnindex": "old"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_start_ends_with_the_old_segments_or_the_new(kit, case: str) -> None:
    names, expected = CASES[case]
    files = lay_out(kit, names)
    finish_swaps(files, DIRECTORY)
    assert found(files) == expected
    finish_swaps(files, DIRECTORY)
    assert found(files) == expected, "once more changes nothing"


def test_leftovers_of_a_pass_that_failed_go_and_nothing_else(kit) -> None:
    names = {**old(0, 10), **new(".cleaned", 10, 15), **new(".swap", 0, 5), "0.log.3.deleted": OLD}
    files = lay_out(kit, names)
    remove_leftovers(files, DIRECTORY)
    assert found(files) == {**dict.fromkeys(old(0, 10), "old"), "0.log.3.deleted": "old"}
