"""The data directory: who has it, how it was left, which logs are in it."""

import uuid
from pathlib import Path

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StartupError, StorageError
from skep.base.files.os_files import OsFiles
from skep.base.ids import TopicPartition
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

CONFIG = TopicConfig(segment_bytes=300)
TOPIC_ID = uuid.UUID(int=1)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def opened(files, path: str = "/data") -> LogDirectory:
    directory = LogDirectory(files, path, ManualClock())
    directory.open()
    return directory


def log_of(directory: LogDirectory, partition: TopicPartition = A, topic_id: uuid.UUID = TOPIC_ID):
    return directory.log(partition, CONFIG, topic_id)


def killed(files: MemoryFiles) -> None:
    files.crash(names=Survivors.ALL, content=Survivors.ALL)


def test_a_second_broker_is_refused_with_a_line_that_names_the_directory(tmp_path: Path) -> None:
    directory = opened(OsFiles(), str(tmp_path))
    with pytest.raises(StartupError, match=f"{tmp_path}: another broker is using this directory"):
        opened(OsFiles(), str(tmp_path))
    directory.close()
    opened(OsFiles(), str(tmp_path)).close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StartupError, match=r"data directory .*file"):
        opened(OsFiles(), str(tmp_path / "file" / "data"))


def test_a_new_directory_is_removed_with_the_parents_that_were_created(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for path in (tmp_path / "a" / "b" / "data", tmp_path / "kept"):
        directory = opened(OsFiles(), str(path))
        directory.check_identity("cluster", 1)
        assert directory.discard_if_new()
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]
    opened(OsFiles(), str(tmp_path / "kept")).close()


def test_a_directory_that_was_used_before_is_not_discarded(tmp_path: Path) -> None:
    opened(OsFiles(), str(tmp_path)).close()
    names = {path.name for path in tmp_path.iterdir()}
    directory = opened(OsFiles(), str(tmp_path))
    assert not directory.discard_if_new()
    directory.close()
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_directory_with_a_log_is_not_discarded(kit) -> None:
    directory = opened(MemoryFiles())
    kit.append(log_of(directory), 1)
    assert not directory.discard_if_new()
    directory.close()


def test_a_stop_is_clean_only_when_it_was_closed(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    directory.close()
    directory = opened(files)
    assert directory.was_clean
    killed(files)
    assert not opened(files).was_clean


def test_a_close_that_cannot_flush_is_not_clean(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    kit.append(log_of(directory, B))
    files.fail("sync", times=1)
    directory.close()
    files.heal()
    directory = opened(files)
    assert not directory.was_clean
    assert [log_of(directory, partition).log_end_offset for partition in (A, B)] == [1, 1]


def test_after_a_crash_the_marker_waits_until_every_log_was_recovered(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    kit.append(log_of(directory, B))
    killed(files)
    directory = opened(files)
    log_of(directory)
    directory.close()
    directory = opened(files)
    assert not directory.was_clean, "b was never looked at"
    log_of(directory)
    log_of(directory, B)
    directory.close()
    assert opened(files).was_clean


def test_nothing_is_read_of_a_log_before_it_is_asked_for(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    directory.close()
    directory = opened(files)
    assert list(directory.partitions) == [A]
    assert dict(directory.logs) == {}
    assert log_of(directory) is log_of(directory)
    assert dict(directory.logs) == {A: log_of(directory)}


def test_checkpoints_have_recovery_points_and_log_starts(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = log_of(directory)
    for _ in range(3):
        kit.append(log)
    log.flush()
    kit.append(log)
    kit.append(log_of(directory, B))
    log.delete_records_before(2)
    directory.write_checkpoints()
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\na 0 3\n"
    assert files.read_whole("/data/log-start-offset-checkpoint") == b"0\n1\na 0 2\n"
    killed(files)
    directory = opened(files)
    directory.write_checkpoints()
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\na 0 3\n", (
        "logs not opened yet are kept"
    )
    assert log_of(directory).log_start_offset == 2


def test_an_older_checkpoint_does_not_overwrite_a_newer_one(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = log_of(directory)
    kit.append(log)
    log.flush()
    older = directory.checkpoint_work()
    kit.append(log)
    log.flush()
    directory.write_checkpoints()
    older()
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\na 0 2\n"


def test_a_checkpoint_is_durable_when_its_work_returns_though_another_was_asked_for(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    log_of(directory).flush()
    work = directory.checkpoint_work()
    directory.checkpoint_work()  # asked for, and never run
    work()
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n1\na 0 1\n"


def test_an_older_checkpoint_does_not_hide_what_one_that_was_asked_for_will_say(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    older = directory.checkpoint_work()
    kit.append(log_of(directory), 5)
    log_of(directory).flush()
    newer = directory.checkpoint_work()
    older()
    directory.delete_partition(A)
    kit.append(log_of(directory, A, uuid.UUID(int=2)))
    newer()
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n0\n", "5 was the deleted one's"


def test_a_checkpoint_that_was_only_asked_for_does_not_count_as_having_forgotten_a_partition(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory), 5)
    log_of(directory).flush()
    directory.write_checkpoints()
    directory.delete_partition(A)
    directory.checkpoint_work()  # without the partition, and never run
    kit.append(log_of(directory, A, uuid.UUID(int=2)))
    assert files.read_whole("/data/recovery-point-offset-checkpoint") == b"0\n0\n"


def test_a_damaged_checkpoint_costs_a_scan_and_nothing_else(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory), 3)
    log_of(directory).flush()
    directory.write_checkpoints()
    killed(files)
    files.write_atomically("/data/recovery-point-offset-checkpoint", b"garbage")
    assert log_of(opened(files)).log_end_offset == 3


def test_a_deleted_partition_is_gone_at_once_and_its_files_later(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory), 5)
    remove = directory.removal([directory.delete_partition(A)])
    assert list(directory.partitions) == []
    assert [name for name in files.list_directory("/data") if name.startswith("a-0.") and name.endswith("-delete")]
    assert log_of(directory).log_end_offset == 0
    kit.append(log_of(directory))
    remove()
    assert [name for name in files.list_directory("/data") if name.startswith("a-0")] == ["a-0"]
    assert directory.delete_partition(B) is None


def test_deletions_that_were_cut_short_are_finished_at_the_next_start(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    directory.delete_partition(A)
    killed(files)
    directory = opened(files)
    directory.leftovers()()
    assert not [name for name in files.list_directory("/data") if name.startswith("a-0")]


def test_the_checkpoint_of_a_deleted_partition_is_not_taken_for_a_new_one_of_that_name(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory), 5)
    log_of(directory).flush()
    log_of(directory).delete_records_before(4)
    directory.write_checkpoints()
    directory.delete_partition(A)
    log = log_of(directory, A, uuid.UUID(int=2))
    for _ in range(9):
        kit.append(log)
    killed(files)
    # One of the first batches, below the old recovery point, is damaged: it was never flushed, so it must be looked at.
    data = bytearray(files.read_whole(f"/data/a-0/{0:020d}.log"))
    data[len(data) // 4] ^= 1
    files.write_atomically(f"/data/a-0/{0:020d}.log", bytes(data))
    log = log_of(opened(files), A, uuid.UUID(int=2))
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


def test_strays_are_set_aside_and_kept(kit, caplog) -> None:
    files = MemoryFiles()
    directory = opened(files)
    for partition in (A, B):
        kit.append(log_of(directory, partition))
    directory.close()
    directory = opened(files)
    directory.set_aside_strays({"b": TOPIC_ID})
    assert list(directory.partitions) == [B]
    assert "a-0 is renamed to" in caplog.text
    (stray,) = [name for name in files.list_directory("/data") if name.endswith("-stray")]
    assert files.exists(f"/data/{stray}/00000000000000000000.log")
    assert log_of(directory, B).log_end_offset == 1


def test_a_partition_of_an_earlier_topic_of_that_name_is_set_aside(kit) -> None:
    for is_asked_first in (False, True):
        files = MemoryFiles()
        directory = opened(files)
        kit.append(log_of(directory))
        log_of(directory).flush()
        directory.close()
        directory = opened(files)
        assert directory.topic_id_of(A) == TOPIC_ID
        other = uuid.UUID(int=2)
        if not is_asked_first:
            directory.set_aside_strays({"a": other})
        assert log_of(directory, A, other).log_end_offset == 0
        assert len([name for name in files.list_directory("/data") if name.endswith("-stray")]) == 1


def test_a_log_that_cannot_be_opened_does_not_keep_others(kit, monkeypatch, caplog) -> None:
    files = MemoryFiles()
    directory = opened(files)
    for partition in (A, B):
        kit.append(log_of(directory, partition))
    killed(files)
    directory = opened(files)
    real = files.open

    def open_but_a(path: str, *, create: bool = False):
        if "/a-0/" in path:
            raise StorageError(f"{path}: Input/output error")
        return real(path, create=create)

    monkeypatch.setattr(files, "open", open_but_a)
    steps = []
    wanted = dict.fromkeys((A, B), (CONFIG, TOPIC_ID))
    directory.recover_all(wanted, lambda done, total: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]
    assert "a-0: cannot open the log" in caplog.text
    assert log_of(directory, B).log_end_offset == 1
    monkeypatch.undo()
    assert log_of(directory).log_end_offset == 1, "and it can be tried again"


def test_logs_on_a_real_disk_come_back(kit, tmp_path: Path) -> None:
    directory = opened(OsFiles(max_open_files=3), str(tmp_path))
    logs = [log_of(directory, TopicPartition("t", number)) for number in range(5)]
    for _ in range(20):
        for log in logs:
            kit.append(log, 2)
    logs[0].flush()
    directory.close()
    directory = opened(OsFiles(max_open_files=3), str(tmp_path))
    assert directory.was_clean
    for number in range(5):
        log = log_of(directory, TopicPartition("t", number))
        assert kit.offsets(log) == list(range(40))
        assert kit.append(log).base_offset == 40
    assert 0 < directory.disk_space().used_ratio < 1


def test_segments_that_were_deleted_before_a_stop_are_removed_in_a_thread_and_not_when_the_log_is_opened(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    for partition in (A, B):
        kit.append(log_of(directory, partition))
    directory.close()
    deleted = [f"/data/{partition}/00000000000000000009.log.deleted" for partition in (A, B)]
    for path in deleted:
        files.open(path, create=True)
    directory = opened(files)
    log_of(directory, A), log_of(directory, B)
    assert all(map(files.exists, deleted))
    directory.delete_partition(A)  # one that is moved away meanwhile does not hold the others up
    directory.leftovers()()
    assert not files.exists(deleted[1])
    assert files.exists("/data/b-0/00000000000000000000.log")
