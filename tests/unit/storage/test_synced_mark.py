"""Whether a log knows, after a power cut, that all it ever acknowledged was synced."""

import uuid

import pytest

from skep.base.clock import ManualClock
from skep.base.errors import StorageError
from skep.base.ids import Offset, TopicPartition
from skep.base.memory_files import MemoryFiles, Survivors
from skep.base.topic_config import TopicConfig
from skep.storage.directory import LogDirectory
from skep.storage.log import Log

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
    kit.append(log)
    assert not after_power_cut(files, SYNCED).was_synced


def test_one_that_is_opened_with_another_config_says_so_once(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    assert after_power_cut(files, LAZY).was_synced
    assert not after_power_cut(files, SYNCED).was_synced


def test_a_disk_that_keeps_the_mark_keeps_the_config(kit) -> None:
    files = MemoryFiles()
    _, log = opened(files, SYNCED)
    kit.append(log)
    log.flush()
    files.fail("sync", times=1)
    with pytest.raises(StorageError):
        log.configure(LAZY)
    assert log.config is SYNCED


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
    log.start_anew_at(Offset(7))
    log.flush()
    log = after_power_cut(files, SYNCED)
    assert (log.was_synced, log.log_end_offset) == (True, 7)
