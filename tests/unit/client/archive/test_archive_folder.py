from pathlib import Path
from uuid import UUID

import pytest

from skep.client.archive.archive_folder import (
    NO_DATE,
    STATE,
    Archive,
    ArchivedPartition,
    ArchiveError,
    ArchiveFile,
    ArchiveState,
    FileCount,
    date_of_day,
    day_of_ms,
    find_archives,
    is_after,
    is_before,
    list_files,
    relative_name,
    temporary_name,
)
from skep.client.archive.archive_reader import in_groups, in_tasks

ID = UUID(int=7)
MIDNIGHT_MS = 1_769_904_000_000  # 2026-02-01 in UTC


def file(first: int, last: int, date: str = "2026-01-31", size: int = 10, partition: int = 0) -> ArchiveFile:
    return ArchiveFile(f"{date}/{partition}-{first}-{last}", partition, first, last, date, size)


def put(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"")


def test_a_day_is_that_of_utc_and_what_the_calendar_lacks_is_null() -> None:
    assert date_of_day(day_of_ms(MIDNIGHT_MS - 1)) == "2026-01-31"
    assert date_of_day(day_of_ms(MIDNIGHT_MS)) == "2026-02-01"
    assert date_of_day(day_of_ms(-1)) == "1969-12-31"
    assert date_of_day(day_of_ms(MIDNIGHT_MS * 1000)) == NO_DATE
    assert date_of_day(day_of_ms(-(1 << 62) // 1000)) == NO_DATE


def test_a_file_that_is_not_moved_in_yet_has_no_ending_that_others_look_for() -> None:
    name = relative_name(3, 5, 9, day_of_ms(MIDNIGHT_MS))
    assert name == "date=2026-02-01/3-00000000000000000005-00000000000000000009.parquet"
    assert temporary_name(name) == "_skep.tmp/date=2026-02-01.3-00000000000000000005-00000000000000000009"


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = ArchiveState(
        "orders", ID, {0: ArchivedPartition(1, 9, [(3, 5)]), 10: ArchivedPartition(0, 0)}, settled={0: 5}
    )
    for first, day in ((1, 3), (6, 3), (8, 9)):
        state.unfinished.append(relative_name(0, first, first + 1, day))
        state.count(state.unfinished[-1])
    assert state.counts == {("1970-01-04", 0): FileCount(2, 1, 7), ("1970-01-10", 0): FileCount(1, 8, 9)}
    (tmp_path / STATE).write_text(state.to_json())
    assert ArchiveState.read(tmp_path / STATE) == state


def test_files_that_a_killed_run_has_not_moved_in_do_not_count_nor_do_those_that_it_has(tmp_path: Path) -> None:
    names = [relative_name(0, first, first + 9, day) for first, day in ((0, 1), (10, 1), (11, 2))]
    state = ArchiveState("orders", ID, {0: ArchivedPartition(0, 25, [(7, 8)])}, unfinished=names[1:], settled={0: 10})
    for name in names:
        state.count(name)
    (tmp_path / STATE).write_text(state.to_json())
    put(tmp_path, names[0])
    put(tmp_path, names[1])
    archive = Archive.open(tmp_path)
    assert archive.partitions[0] == ArchivedPartition(0, 10, [(7, 8)])
    assert [one.first for one in archive.files(0, 0, 100)] == [0]
    assert archive.lost(0, 0, 100) == []
    put(tmp_path, names[2])
    archive = Archive.open(tmp_path)
    assert archive.partitions[0].end == 25
    assert [one.first for one in archive.files(0, 0, 100)] == [0, 10, 11]
    assert archive.lost(0, 0, 100) == []


def test_a_file_that_was_deleted_is_missed_by_who_would_read_it(tmp_path: Path) -> None:
    # Two on the first day and one, with late records, on the second; and one of another partition.
    names = [
        relative_name(0, 0, 9, 0),
        relative_name(0, 10, 19, 0),
        relative_name(0, 5, 12, 1),
        relative_name(1, 0, 9, 0),
    ]
    state = ArchiveState("orders", ID, {0: ArchivedPartition(0, 20), 1: ArchivedPartition(0, 10)})
    for name in names:
        state.count(name)
        put(tmp_path, name)
    (tmp_path / STATE).write_text(state.to_json())
    assert Archive.open(tmp_path).lost(0, 0, 20) == []
    (tmp_path / names[2]).unlink()
    archive = Archive.open(tmp_path)
    [lost] = archive.lost(0, 0, 20)
    assert str(lost) == (
        f"{tmp_path}/date=1970-01-02 has 0 of the 1 files that were archived of partition 0 (between offsets 5 and 12)"
    )
    day_ms = 86_400_000
    assert archive.lost(0, 0, 5) == archive.lost(0, 13, 20) == archive.lost(1, 0, 20) == []
    assert archive.lost(0, 12, 13) == archive.lost(0, 0, 6) == archive.lost(0, 0, 20, day_ms, day_ms) == [lost]
    assert archive.lost(0, 0, 20, 2 * day_ms) == archive.lost(0, 0, 20, None, day_ms - 1) == []
    (tmp_path / names[0]).unlink()
    assert [(one.there, one.counted) for one in Archive.open(tmp_path).lost(0, 0, 20)] == [
        (1, FileCount(2, 0, 19)),
        (0, FileCount(1, 5, 12)),
    ]


def test_what_was_never_archived_of_a_range_is_known() -> None:
    archive = Archive(Path("lake"), ArchiveState("orders", ID, {0: ArchivedPartition(10, 50, [(20, 30)])}), [])
    assert archive.missing(0, 10, 20) == []
    assert archive.missing(0, 0, 60) == [(0, 10), (20, 30), (50, 60)]
    assert archive.missing(0, 25, 28) == [(25, 28)]
    assert archive.missing(0, 0, 5) == [(0, 5)]
    assert archive.missing(0, 70, 80) == [(70, 80)]
    assert archive.missing(1, 0, 5) == [(0, 5)]
    assert archive.missing(1, 5, 5) == []


def test_a_day_rules_a_file_out_only_if_all_of_it_lies_on_the_other_side() -> None:
    january = "2026-01-31"
    assert is_before(january, MIDNIGHT_MS)
    assert not is_before(january, MIDNIGHT_MS - 1)
    assert not is_before(january, None)
    february = "2026-02-01"
    assert is_after(february, MIDNIGHT_MS - 1)
    assert not is_after(february, MIDNIGHT_MS)
    assert not is_before(NO_DATE, MIDNIGHT_MS)
    assert not is_after(NO_DATE, 0)


def test_a_file_of_somebody_else_is_named_and_hidden_ones_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "date=2026-01-31/_SUCCESS")
    put(tmp_path, "date=2026-01-31/.part.crc")
    assert list(list_files(tmp_path)) == []
    put(tmp_path, "date=2026-01-31/part-0.parquet")
    with pytest.raises(ArchiveError, match=r"part-0\.parquet is not a file of an archive"):
        list(list_files(tmp_path))


def test_archives_are_found_in_their_folder_and_above_it(tmp_path: Path) -> None:
    for topic in ("a", "b"):
        put(tmp_path, f"topic={topic}/{STATE}")
    put(tmp_path, "topic=none/file")
    assert [path.name for path in find_archives(tmp_path)] == ["topic=a", "topic=b"]
    assert find_archives(tmp_path / "topic=a") == [tmp_path / "topic=a"]
    assert find_archives(tmp_path / "topic=none") == []


def test_files_that_reach_over_each_other_are_brought_in_order_together() -> None:
    files = [file(0, 9), file(10, 30), file(12, 14, "2026-02-01"), file(29, 40, "2026-02-02"), file(41, 50)]
    assert [[one.first for one in group] for group in in_groups(files)] == [[0], [10, 12, 29], [41]]


def test_a_task_has_whole_groups_up_to_a_size() -> None:
    files = [file(0, 9), file(10, 30), file(12, 14, "2026-02-01"), file(31, 40), file(41, 50, size=100), file(51, 52)]
    assert [[one.first for one in task] for task in in_tasks(files, task_bytes=30)] == [[0, 10, 12], [31], [41], [51]]
