"""Whether a log knows, after a power cut, that all it ever acknowledged was synced."""

import uuid

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.files.files import File
from skep.base.ids import Offset, TopicPartition
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

A = TopicPartition("a", 0)
SYNCED, LAZY = TopicConfig(flush_messages=1), TopicConfig()
MARK = "/data/a-0/synced"


def opened(files: MemoryFiles, config: TopicConfig, boot_id: str = "boot 1") -> tuple[LogDirectory, Log]:
    directory = LogDirectory(files, "/data", ManualClock(), boot_id=boot_id)
    directory.open()
    directory.check_identity("heap", 1)
    directory.losses_settled()
    return directory, directory.log(A, config, uuid.UUID(int=1))


def after_power_cut(files: MemoryFiles, config: TopicConfig) -> Log:
    files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
    directory = LogDirectory(files, "/data", ManualClock(), boot_id="boot 2")
    directory.open()
    assert directory.may_have_lost_data
    assert not directory.may_have_lost_synced_data
    return directory.log(A, config, uuid.UUID(int=1))


@pytest.mark.parametrize("config", [SYNCED, LAZY], ids=["synced", "lazy"])
def test_a_log_that_was_synced_before_each_acknowledgement_says_so(kit, config: TopicConfig) -> None:
    files = MemoryFiles()
    _, log = opened(files, config)
    for _ in range(3):
        kit.append(log)
        log.flush()
    kit.append(log)
    log = after_power_cut(files, config)
    assert (log.was_synced, log.log_end_offset) == (config is SYNCED, 3)


def test_what_was_acknowledged_before_the_topic_was_synced_has_to_be_synced_first(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, LAZY)
    kit.append(log)
    log.flush()
    kit.append(log)
    log.configure(SYNCED)
    log.flush()
    assert not files.exists(MARK)
    kit.append(log)
    log.flush()
    assert files.exists(MARK)
    assert after_power_cut(files, LAZY).was_synced


def test_a_log_that_is_no_longer_synced_does_not_say_so_when_it_is_again(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    log.configure(LAZY)
    log.flush()
    assert log.config is LAZY
    kit.append(log)
    assert not after_power_cut(files, SYNCED).was_synced


def test_a_log_syncs_before_it_acknowledges_until_its_mark_is_gone(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    files.fail("sync")  # the event loop must not wait for one
    log.configure(TopicConfig(retention_ms=5))
    files.heal()
    assert files.exists(MARK)
    assert log.config == TopicConfig(retention_ms=5, flush_messages=1)
    assert log.flush_is_due(0)
    log.flush()
    assert not files.exists(MARK)
    assert log.config == TopicConfig(retention_ms=5)
    assert not log.flush_is_due(0)


@pytest.mark.parametrize("last", [SYNCED, LAZY], ids=["synced", "lazy"])
def test_a_config_that_changes_while_the_mark_is_made_or_removed_is_the_one_that_holds(kit, last: TopicConfig) -> None:
    files = MemoryFiles()
    _, log = opened(files, LAZY)
    kit.append(log)
    log.flush()
    log.configure(SYNCED)
    kit.append(log)
    kit.append(log)
    making = log.flush_plan()
    log.configure(LAZY)
    making.run()
    log.flushed(making)
    assert log.config.syncs_before_acknowledging
    removing = log.flush_plan()
    log.configure(SYNCED)
    log.configure(last)
    removing.run()
    log.flushed(removing)
    assert log.config is last
    assert not files.exists(MARK)
    kit.append(log)
    log.flush()
    assert files.exists(MARK) == (last is SYNCED)


def test_one_that_is_opened_with_another_config_says_so_once(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    log = after_power_cut(files, LAZY)
    assert log.was_synced
    log.flush()
    assert not after_power_cut(files, SYNCED).was_synced


def test_a_disk_that_keeps_the_mark_keeps_the_config(kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise StorageError(path)

    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    log.configure(LAZY)
    with monkeypatch.context() as patched:
        patched.setattr(files, "sync_directory", refuse)
        log.flush()
    assert log.config == SYNCED
    assert log.failure is None
    log.flush()
    assert log.config is LAZY


def test_a_mark_that_was_made_and_could_not_be_synced_is_removed_all_the_same(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, LAZY)
    kit.append(log)
    log.configure(SYNCED)
    kit.append(log)
    log.flush()
    files.remove(MARK)
    log.state.mark.is_made = False
    kit.append(log)
    plan = log.flush_plan()
    files.open(MARK, create=True)
    log.flushed(plan)  # the plan could not be carried out to its end
    log.configure(LAZY)
    assert log.config.syncs_before_acknowledging
    log.flush()
    assert log.config is LAZY
    assert not files.exists(MARK)


def test_a_log_that_is_damaged_below_its_recovery_point_no_longer_says_so(kit) -> None:
    files = MemoryFiles()
    directory, log = opened(files, SYNCED)
    for _ in range(3):
        kit.append(log)
        log.flush()
    directory.write_checkpoints()
    files.open("/data/a-0/00000000000000000000.log").truncate(80)
    files.sync_file("/data/a-0/00000000000000000000.log")
    log = after_power_cut(files, SYNCED)
    assert (log.lost_data, log.was_synced) == (True, False)
    # Nor does the next start, though it may not find the damage any more.
    assert not files.exists(MARK)
    log = after_power_cut(files, SYNCED)
    assert not log.was_synced
    kit.append(log)
    log.flush()
    assert files.exists(MARK)


def test_a_log_that_begins_anew_is_marked_from_its_beginning(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    log.start_over_at(Offset(7))
    log.flush()
    log = after_power_cut(files, SYNCED)
    assert (log.was_synced, log.log_end_offset) == (True, 7)


def test_a_mark_whose_segment_the_disk_refused_does_not_outlive_a_config_that_does_not_sync(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    real = files.open

    def refuse_segments(path: str, *, create: bool = False) -> File:
        if path.endswith(".log"):
            raise StorageError(f"{path}: No space left")
        return real(path, create=create)

    files.open = refuse_segments  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        kit.append(log)
    files.open = real  # type: ignore[method-assign]
    log.configure(LAZY)
    kit.append(log)
    log.flush()
    kit.append(log)
    assert not after_power_cut(files, LAZY).was_synced


def test_a_mark_that_could_not_be_removed_for_good_is_made_again(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    log.configure(LAZY)
    plan = log.flush_plan()
    real = files.sync_directory

    def refuse(path: str) -> None:
        raise StorageError(f"{path}: EIO")

    files.sync_directory = refuse  # type: ignore[method-assign]
    plan.run()
    files.sync_directory = real  # type: ignore[method-assign]
    log.flushed(plan)
    log.configure(SYNCED)
    for _ in range(2):
        kit.append(log)
        log.flush()
    assert after_power_cut(files, SYNCED).was_synced
