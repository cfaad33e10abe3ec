"""What every implementation of Files promises; what only one of them has is tested at the end."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.base.errors import StorageError
from skep.base.files.files import Files
from skep.base.files.os_files import OsFiles
from tests.memory_files import Crashed, MemoryFiles, Survivors


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, str]]:
    """A file system and an empty directory in it."""
    if request.param == "os":
        yield OsFiles(max_open_files=4), str(tmp_path)
    else:
        files = MemoryFiles()
        files.make_directory("/place")
        yield files, "/place"


def test_appends_go_to_the_end_and_are_read_back(place: tuple[Files, str]) -> None:
    files, path = place
    file = files.open(f"{path}/a", create=True)
    file.append((b"one", b"two"))
    file.append((memoryview(b"three"),))
    assert file.size == 11
    assert file.read(0, 100) == b"onetwothree"
    assert file.read(3, 3) == b"two"
    assert file.read(11, 5) == b""
    assert file.read(50, 5) == b""
    assert files.read_whole(f"{path}/a") == b"onetwothree"
    assert files.size(f"{path}/a") == 11


def test_what_was_just_written_is_cached_though_the_descriptor_was_closed(place: tuple[Files, str]) -> None:
    files, path = place
    file = files.open(f"{path}/a", create=True)
    file.append((b"x" * 10_000,))
    assert file.is_cached(0, 10_000)
    file.close()
    assert file.is_cached(9_999, 1)


def test_a_file_goes_on_where_it_ended(place: tuple[Files, str]) -> None:
    files, path = place
    first = files.open(f"{path}/a", create=True)
    first.append((b"one",))
    first.close()
    again = files.open(f"{path}/a")
    assert again.size == 3
    again.append((b"two",))
    assert again.read(0, 10) == b"onetwo"


def test_creating_a_file_that_is_there_keeps_its_content(place: tuple[Files, str]) -> None:
    files, path = place
    files.open(f"{path}/a", create=True).append((b"one",))
    assert files.open(f"{path}/a", create=True).read(0, 10) == b"one"


def test_a_missing_file_is_a_storage_error_that_names_it(place: tuple[Files, str]) -> None:
    files, path = place
    for attempt in (files.open, files.size, files.read_whole, files.sync_file):
        with pytest.raises(StorageError, match=r"missing: No such file"):
            attempt(f"{path}/missing")


def test_truncating_cuts_and_appending_goes_on_there(place: tuple[Files, str]) -> None:
    files, path = place
    file = files.open(f"{path}/a", create=True)
    file.append((b"123456789",))
    file.truncate(4)
    assert file.size == 4
    file.append((b"x",))
    assert file.read(0, 10) == b"1234x"


def test_overwriting_leaves_size_and_surroundings(place: tuple[Files, str]) -> None:
    files, path = place
    file = files.open(f"{path}/a", create=True)
    file.append((b"123456789",))
    file.overwrite(2, b"345")
    file.sync()
    assert file.size == 9
    assert file.read(0, 10) == b"123456789"


def test_writing_atomically_replaces(place: tuple[Files, str]) -> None:
    files, path = place
    files.write_atomically(f"{path}/a", b"old and longer")
    files.write_atomically(f"{path}/a", b"new", sync=False)
    assert files.read_whole(f"{path}/a") == b"new"
    assert files.list_directory(path) == ["a"]


def test_directories_are_made_listed_renamed_and_removed(place: tuple[Files, str]) -> None:
    files, path = place
    files.make_directory(f"{path}/b/c")
    files.make_directory(f"{path}/b/c")
    files.write_atomically(f"{path}/b/c/file", b"x")
    files.write_atomically(f"{path}/a", b"x")
    files.sync_directory(path)
    assert files.list_directory(path) == ["a", "b"]
    files.rename(f"{path}/b", f"{path}/d")
    assert files.read_whole(f"{path}/d/c/file") == b"x"
    assert not files.exists(f"{path}/b")
    files.remove_tree(f"{path}/d")
    files.remove_tree(f"{path}/d")
    files.remove(f"{path}/a")
    files.remove(f"{path}/a")
    assert files.list_directory(path) == []


def test_a_renamed_file_stays_valid(place: tuple[Files, str]) -> None:
    files, path = place
    file = files.open(f"{path}/a", create=True)
    file.append((b"one",))
    files.rename_file(file, f"{path}/a.deleted")
    file.close()
    assert file.path == f"{path}/a.deleted"
    assert file.read(0, 3) == b"one"


def test_a_lock_is_held_by_one(place: tuple[Files, str]) -> None:
    files, path = place
    lock = files.lock(f"{path}/.lock")
    assert lock is not None
    assert files.lock(f"{path}/.lock") is None
    lock.release()
    assert files.lock(f"{path}/.lock") is not None


def test_disk_space_is_known(place: tuple[Files, str]) -> None:
    files, path = place
    space = files.disk_space(path)
    assert 0 <= space.used_bytes <= space.total_bytes
    assert 0 <= space.used_ratio <= 1


# Descriptors of the operating system


def test_descriptors_are_bounded_and_files_stay_valid(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=4)
    opened = [files.open(str(tmp_path / str(number)), create=True) for number in range(20)]
    for turn in range(3):
        for number, file in enumerate(opened):
            file.append((f"{turn}-{number} ".encode(),))
            assert files.open_count <= 4
    for number, file in enumerate(opened):
        assert file.read(0, 100).split() == [f"{turn}-{number}".encode() for turn in range(3)]
        assert files.open_count <= 4


def test_a_pinned_descriptor_is_not_taken_away(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=2)
    pinned = files.open(str(tmp_path / "pinned"), create=True)
    pinned.append((b"here",))
    with pinned.pinned() as descriptor:
        for number in range(10):
            files.open(str(tmp_path / str(number)), create=True).append((b"x",))
        assert os.pread(descriptor, 4, 0) == b"here"
        pinned.close()
        assert os.pread(descriptor, 4, 0) == b"here"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_reads_and_syncs_in_threads_while_descriptors_are_scarce(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=2)
    opened = [files.open(str(tmp_path / str(number)), create=True) for number in range(6)]
    for number, file in enumerate(opened):
        file.append((bytes([number]) * 100,))
    wrong: list[str] = []

    def read() -> None:
        for turn in range(300):
            number = turn % 6
            if opened[number].read(turn % 50, 50) != bytes([number]) * 50:
                wrong.append(f"turn {turn}")
            if turn % 10 == 0:
                opened[number].sync()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        opened[turn % 6].append((bytes([turn % 6]) * 10,))
    for thread in threads:
        thread.join()
    assert wrong == []
    for number, file in enumerate(opened):
        assert file.read(0, 10_000) == bytes([number]) * (100 + 50 * 10)


def test_out_of_descriptors_a_file_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles(max_open_files=100)
    first, second = (files.open(str(tmp_path / name), create=True) for name in "ab")
    first.append((b"one",))
    real = os.open

    def scarce(path: str, *args: int) -> int:
        if files.open_count:
            raise OSError(errno.EMFILE, "too many")
        return real(path, *args)

    monkeypatch.setattr(os, "open", scarce)
    second.append((b"two",))
    assert first.read(0, 3) == b"one"
    assert second.read(0, 3) == b"two"


def test_a_failed_append_leaves_the_size_and_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(str(tmp_path / "a"), create=True)
    file.append((b"good",))
    real = os.pwritev

    def half(descriptor: int, buffers: tuple[bytes, ...], position: int) -> int:
        return real(descriptor, (b"".join(buffers)[:3],), position)

    monkeypatch.setattr(os, "pwritev", half)
    with pytest.raises(StorageError, match="only 3 of 6 bytes"):
        file.append((b"broken",))
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"good"
    file.append((b"again",))
    assert (tmp_path / "a").read_bytes() == b"goodagain"


def no_room(descriptor: int, buffers: tuple[bytes, ...], position: int) -> int:
    raise OSError(errno.ENOSPC, "full")


def test_a_failed_append_closes_no_descriptor_that_was_pinned_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles()
    file = files.open(str(tmp_path / "a"), create=True)
    file.append((b"good",))
    pinned = []

    class TakenFirst:
        """The pool's mutex, which a thread that pins the file gets just before the append does."""

        def __init__(self, mutex: threading.RLock) -> None:
            self._mutex = mutex

        def __enter__(self) -> None:
            if not pinned:
                pinned.append(None)
                reader = threading.Thread(target=lambda: pinned.append(file._pool.pin(file)))
                reader.start()
                reader.join()
            self._mutex.acquire()

        def __exit__(self, *error: object) -> None:
            self._mutex.release()

    monkeypatch.setattr(os, "pwritev", no_room)
    monkeypatch.setattr(file._pool, "mutex", TakenFirst(file._pool.mutex))
    with pytest.raises(StorageError, match="No space left on device"):
        file.append((b"lost",))
    assert os.pread(pinned[1], 10, 0) == b"good"


def test_after_a_failed_append_the_end_of_a_pin_takes_no_descriptor_from_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().open(str(tmp_path / "a"), create=True)
    file.append((b"good",))
    real = os.pwritev
    pin = file.pinned()
    pin.__enter__()
    monkeypatch.setattr(os, "pwritev", no_room)
    with pytest.raises(StorageError, match="No space left on device"):
        file.append((b"lost",))

    def write_when_the_pin_has_gone(descriptor: int, buffers: tuple[bytes, ...], position: int) -> int:
        reader = threading.Thread(target=lambda: pin.__exit__(None, None, None))
        reader.start()
        reader.join()
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "pwritev", write_when_the_pin_has_gone)
    file.append((b"kept",))
    assert (tmp_path / "a").read_bytes() == b"goodkept"


def test_when_even_the_cut_fails_it_is_made_up_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(str(tmp_path / "a"), create=True)
    file.append((b"good",))
    real = os.pwritev

    def full(descriptor: int, buffers: tuple[bytes, ...], position: int) -> int:
        real(descriptor, (b"rest of it",), position)
        raise OSError(errno.ENOSPC, "full")

    def broken(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(StorageError, match="No space left on device"):
        file.append((b"lost",))
    assert file.read(0, 100) == b"good"
    monkeypatch.undo()
    file.append((b"!",))
    assert (tmp_path / "a").read_bytes() == b"good!"


# What files in memory add


def memory_file(path: str = "/d/a") -> tuple[MemoryFiles, str]:
    files = MemoryFiles()
    files.make_directory("/d")
    files.sync_directory("/")
    return files, path


@pytest.mark.parametrize(
    ("survivors", "left"),
    [
        (Survivors.SYNCED, b"safe"),
        (Survivors.TORN, b"safeun"),
        (Survivors.ZEROS, b"safeun\0\0"),
        (Survivors.CUT, b"safe"),
        (Survivors.ALL, b"safeunsa"),
    ],
)
def test_a_crash_leaves_what_was_synced(survivors: Survivors, left: bytes) -> None:
    files, path = memory_file()
    file = files.open(path, create=True)
    files.sync_directory("/d")
    file.append((b"safe",))
    file.sync()
    file.append((b"unsa",))
    files.crash(names=Survivors.ALL, content=survivors)
    assert files.read_whole(path) == left


@pytest.mark.parametrize(("survivors", "left"), [(Survivors.SYNCED, b"safe"), (Survivors.CUT, b"s")])
def test_that_a_file_was_made_shorter_may_survive_alone(survivors: Survivors, left: bytes) -> None:
    files, path = memory_file()
    file = files.open(path, create=True)
    file.append((b"safe",))
    file.sync()
    file.truncate(1)
    file.append((b"anew",))
    files.crash(names=Survivors.ALL, content=survivors)
    assert files.read_whole(path) == left


def test_a_name_that_was_not_synced_is_gone_after_a_crash() -> None:
    files, path = memory_file()
    file = files.open(path, create=True)
    file.append((b"safe",))
    file.sync()
    files.crash(names=Survivors.SYNCED, content=Survivors.ALL)
    assert not files.exists(path)


def test_after_a_failed_sync_the_bytes_have_to_be_written_again() -> None:
    for is_written_again in (False, True):
        files, path = memory_file()
        file = files.open(path, create=True)
        files.sync_directory("/d")
        file.append((b"lost",))
        files.fail("sync", times=1)
        with pytest.raises(StorageError, match="Input/output error"):
            file.sync()
        if is_written_again:
            file.overwrite(0, b"lost")
        file.append((b"kept",))
        file.sync()
        assert file.read(0, 8) == b"lostkept"
        files.crash(names=Survivors.ALL, content=Survivors.SYNCED)
        assert files.read_whole(path) == (b"lostkept" if is_written_again else b"\0\0\0\0kept")


def test_a_stop_ends_everything_that_follows() -> None:
    files, path = memory_file()
    file = files.open(path, create=True)
    files.stop_at(2)
    file.append((b"one",))
    for attempt in (file.sync, lambda: file.append((b"two",)), lambda: files.remove(path)):
        with pytest.raises(Crashed):
            attempt()
    assert files.read_whole(path) == b"one"
