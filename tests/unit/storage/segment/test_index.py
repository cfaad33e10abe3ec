"""The sparse indexes: lookups against a plain list, groups in memory, and what is on disk."""

import struct
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.files.os_file import OsFile
from skep.base.files.os_files import OsFiles
from skep.storage.segment.index import BLOCK_ENTRIES, GROUP_ENTRIES, NEAR_ENTRIES, OffsetIndex, TimeIndex
from skep.storage.segment.segment import LARGEST_INDEX_INTERVAL
from tests.memory_files import MemoryFiles

BASE = 1000


def offset_index(entries: list[tuple[int, int]], files: MemoryFiles | None = None) -> OffsetIndex:
    index = OffsetIndex(files or MemoryFiles(), "/index", BASE)
    for offset, position in entries:
        index.add(offset, position)
    return index


# Steps of very different sizes, so that the guess by even growth is often wrong, and more than one block of them.
steps = st.lists(st.tuples(st.sampled_from([1, 2, 50, 9000]), st.sampled_from([61, 100, 70_000])), max_size=60).flatmap(
    lambda some: st.integers(1, 30).map(lambda times: some * times)
)


def growing(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    offset, position, entries = BASE, 0, []
    for more_offsets, more_bytes in steps:
        offset, position = offset + more_offsets, position + more_bytes
        entries.append((offset, position))
    return entries


@given(steps, st.data())
def test_lookup_by_offset_finds_the_last_entry_at_or_before(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    entries = growing(steps)
    index = offset_index(entries)
    highest = entries[-1][0] if entries else BASE
    for offset in data.draw(st.lists(st.integers(BASE, highest + 2), min_size=1, max_size=20)):
        slot = bisect_right(entries, offset, key=lambda entry: entry[0])
        assert index.position_before(offset) == (entries[slot - 1][1] if slot else 0)


@given(steps, st.data())
def test_lookup_by_position_finds_the_last_boundary(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    entries = growing(steps)
    index = offset_index(entries)
    size = (entries[-1][1] if entries else 0) + 100
    for position in data.draw(st.lists(st.integers(0, size), min_size=1, max_size=20)):
        slot = bisect_right(entries, position, key=lambda entry: entry[1])
        assert index.last_up_to_position(position, size) == (entries[slot - 1][1] if slot else 0)


@given(
    st.lists(st.integers(61, 5000), min_size=1, max_size=40),
    st.integers(NEAR_ENTRIES - 2, 3 * BLOCK_ENTRIES),
    st.floats(0.5, 2.0),
    st.data(),
)
def test_lookup_by_position_is_right_however_good_the_guess(
    sizes: list[int], count: int, size_error: float, data: st.DataObject
) -> None:
    entries = growing([(1, sizes[number % len(sizes)]) for number in range(count)])
    positions = [position for _, position in entries]
    index = offset_index(entries)
    guessed_by = int(positions[-1] * size_error)
    at_entries = st.sampled_from(positions).flatmap(lambda position: st.sampled_from([-1, 0, 1]).map(position.__add__))
    for wanted in data.draw(st.lists(at_entries | st.integers(0, positions[-1] + 5000), min_size=1, max_size=30)):
        slot = bisect_right(positions, wanted)
        assert index.last_up_to_position(wanted, guessed_by) == (positions[slot - 1] if slot else 0)


def test_lookup_by_position_in_batches_of_one_size_reads_a_few_entries_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = OffsetIndex(OsFiles(), str(tmp_path / "index"), BASE)
    count = 4 * GROUP_ENTRIES
    for number in range(count):
        index.add(BASE + number, 65_536 * number)
    read_sizes: list[int] = []
    read = OsFile.read

    def noted(file: OsFile, position: int, size: int) -> bytes:
        read_sizes.append(size)
        return read(file, position, size)

    monkeypatch.setattr(OsFile, "read", noted)
    for number in range(NEAR_ENTRIES, count - NEAR_ENTRIES):
        assert index.last_up_to_position(65_536 * number + 100, 65_536 * count) == 65_536 * number
    assert read_sizes == [NEAR_ENTRIES * 8] * (count - 2 * NEAR_ENTRIES)


@given(st.lists(st.integers(-5, 10_000), unique=True, max_size=700).map(sorted), st.data())
def test_lookup_by_time_finds_the_first_entry_at_or_after(timestamps: list[int], data: st.DataObject) -> None:
    index = TimeIndex(MemoryFiles(), "/index", BASE)
    for number, timestamp in enumerate(timestamps):
        index.add(timestamp, BASE + number)
    assert index.last() == ((timestamps[-1], BASE + len(timestamps) - 1) if timestamps else None)
    for wanted in data.draw(st.lists(st.integers(-6, 10_001), min_size=1, max_size=20)):
        slot = bisect_left(timestamps, wanted)
        assert index.first_at_or_after(wanted) == (BASE + slot if slot < len(timestamps) else None)


def test_entries_are_written_in_groups_as_kafka_writes_them() -> None:
    files = MemoryFiles()
    index = offset_index([(BASE + n, 100 * n) for n in range(1, GROUP_ENTRIES)], files)
    assert not files.exists("/index")
    index.add(BASE + GROUP_ENTRIES, 100 * GROUP_ENTRIES)
    index.add(BASE + GROUP_ENTRIES + 1, 100 * GROUP_ENTRIES + 100)
    assert files.size("/index") == GROUP_ENTRIES * 8
    assert files.read_whole("/index")[:16] == struct.pack(">iiii", 1, 100, 2, 200)
    index.finish()
    assert files.size("/index") == (GROUP_ENTRIES + 1) * 8
    assert index.count == GROUP_ENTRIES + 1


def test_an_index_is_found_again_on_disk() -> None:
    files = MemoryFiles()
    entries = [(BASE + n, 10 * n) for n in range(1, 3 * BLOCK_ENTRIES)]
    offset_index(entries, files).finish()
    again = OffsetIndex(files, "/index", BASE, files.size("/index"))
    assert again.entries() == [(n, 10 * n) for n in range(1, 3 * BLOCK_ENTRIES)]
    assert again.position_before(BASE + 700) == 7000


def test_a_group_that_cannot_be_written_waits() -> None:
    files = MemoryFiles()
    files.fail("write")
    index = offset_index([(BASE + n, 10 * n) for n in range(1, GROUP_ENTRIES + 10)], files)
    assert index.position_before(BASE + 200) == 2000
    with pytest.raises(StorageError):
        index.finish()
    files.heal()
    index.finish()
    assert files.size("/index") == index.size == (GROUP_ENTRIES + 9) * 8


def test_what_lies_behind_the_entries_that_count_is_cut() -> None:
    files = MemoryFiles()
    files.write_atomically("/index", b"from a segment that is no more", sync=False)
    index = offset_index([(BASE + 1, 10)], files)
    index.finish()
    assert files.read_whole("/index") == struct.pack(">ii", 1, 10)
    index.truncate(0)
    assert files.read_whole("/index") == b""
    assert index.position_before(BASE + 5) == 0


def test_the_offset_index_has_entries_however_large_its_interval_is(kit) -> None:
    log = kit.log(TopicConfig(index_interval_bytes=(1 << 31) - 1))
    while log.size < 20 * LARGEST_INDEX_INTERVAL:
        kit.append(log, 1)
    (segment,) = log.segments
    positions = [0, *(position for _, position in segment.offset_index.entries()), log.size]
    largest = max(after - before for before, after in pairwise(positions))
    assert largest <= LARGEST_INDEX_INTERVAL + 2 * len(kit.batch())
