"""Flushing: when it is due, what a plan covers, and disks that refuse a sync."""

import errno

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.storage.log.retention import segments_to_delete
from skep.storage.producers import producer_snapshots
from tests.memory_files import Survivors

POWER_CUT = {"names": Survivors.SYNCED, "content": Survivors.SYNCED}


def test_a_flush_moves_the_flushed_offset_and_survives_a_power_cut(kit) -> None:
    files = kit.files()
    files.sync_directory("/")
    log = kit.log(files=files)
    kit.append(log, 3)
    assert (log.flushed_offset, log.unflushed_records) == (0, 3)
    log.flush()
    assert (log.flushed_offset, log.unflushed_records) == (3, 0)
    kit.append(log, 2)
    files.crash(**POWER_CUT)
    assert kit.offsets(kit.log(files=files, recovery_point=0)) == [0, 1, 2]


def test_appends_during_a_flush_are_not_covered_by_it(kit) -> None:
    log = kit.log()
    kit.append(log, 3)
    plan = log.flush_plan()
    kit.append(log, 4)
    plan.run()
    log.flushed(plan)
    assert log.flushed_offset == 3
    assert log.unflushed_records == 4


def test_only_one_plan_is_made_at_a_time(kit) -> None:
    log = kit.log()
    assert log.flush_plan() is None
    kit.append(log)
    plan = log.flush_plan()
    kit.append(log)
    assert log.is_flushing
    assert log.flush_plan() is None
    plan.run()
    log.flushed(plan)
    assert log.flush_plan() is not None


def test_a_flush_is_due_by_count_by_time_and_after_a_roll(kit) -> None:
    by_count = kit.log(TopicConfig(flush_messages=3))
    kit.append(by_count, 2)
    assert not by_count.flush_is_due(kit.now_ms + 10**9)
    kit.append(by_count)
    assert by_count.flush_is_due(kit.now_ms)
    by_time = kit.log(TopicConfig(flush_ms=100))
    assert not by_time.flush_is_due(kit.now_ms + 10**9)
    kit.append(by_time)
    assert not by_time.flush_is_due(kit.now_ms + 99)
    assert by_time.flush_is_due(kit.now_ms + 100)
    by_roll = kit.log(TopicConfig(segment_bytes=len(kit.batch())))
    kit.append(by_roll)
    assert not by_roll.flush_is_due(kit.now_ms)
    kit.append(by_roll)
    assert by_roll.flush_is_due(kit.now_ms)
    for log in (by_count, by_time, by_roll):
        log.flush()
        assert not log.flush_is_due(kit.now_ms + 10**9)


def test_the_time_of_a_flush_counts_from_the_first_append_that_it_did_not_cover(kit) -> None:
    log = kit.log(TopicConfig(flush_ms=100))
    kit.append(log)
    plan = log.flush_plan()
    kit.append(log, now_ms=kit.now_ms + 50)
    plan.run()
    log.flushed(plan)
    assert not log.flush_is_due(kit.now_ms + 149)
    assert log.flush_is_due(kit.now_ms + 150)


def test_after_a_failed_sync_nothing_is_taken_until_one_goes_through(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    kit.append(log, 3)
    files.fail("sync", error=errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        log.flush()
    assert log.flushed_offset == 0
    assert log.flush_is_due(kit.now_ms)
    with pytest.raises(StorageError, match="Input/output error"):
        kit.append(log)
    assert log.log_end_offset == 3
    with pytest.raises(StorageError):
        log.flush()
    files.heal()
    log.flush()
    assert log.failure is None
    assert kit.append(log).base_offset == 3
    assert kit.offsets(log) == [0, 1, 2, 3]


@pytest.mark.parametrize("failing_sync", range(1, 9))
def test_a_flush_that_fails_anywhere_is_durable_when_it_is_made_up_for(kit, failing_sync: int) -> None:
    files = kit.files()
    files.sync_directory("/")
    log = kit.log(TopicConfig(segment_bytes=300, index_interval_bytes=50), files)
    for number in range(8):
        kit.append(log, producer_id=1, producer_epoch=0, base_sequence=number)
    plan = log.flush_plan()
    real_sync, syncs = files.step, 0

    def step(kind: str, path: str) -> None:
        nonlocal syncs
        syncs += kind == "sync"
        if kind == "sync" and syncs == failing_sync:
            raise StorageError(f"{path}: no")
        real_sync(kind, path)

    files.step = step
    with pytest.raises(StorageError) as caught:
        plan.run()
    log.flush_failed(plan, caught.value)
    files.step = real_sync
    log.flush()
    files.crash(**POWER_CUT)
    recovered = kit.log(log.config, files, recovery_point=8)
    assert kit.offsets(recovered) == list(range(8))
    assert kit.append(recovered, producer_id=1, producer_epoch=0, base_sequence=5).is_duplicate


def test_a_tail_that_cannot_be_read_back_keeps_the_log_failed(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    kit.append(log, 3)
    log.flush()
    kit.append(log, 3)
    files.fail("sync", times=1)
    with pytest.raises(StorageError):
        log.flush()
    # The page was dropped and what is on the disk came back.
    segment = log.segments[0]
    segment.file.overwrite(segment.size - 5, b"\0\0\0\0\0")
    with pytest.raises(StorageError, match="cannot read from byte"):
        log.flush()
    assert log.failure is not None
    assert log.flushed_offset == 3


def test_retention_during_a_flush_does_not_fail_it(kit) -> None:
    log = kit.log(TopicConfig(segment_bytes=len(kit.batch()), retention_ms=10))
    for _ in range(4):
        kit.append(log)
    plan = log.flush_plan()
    later = kit.now_ms + 1000
    removal = log.detach(segments_to_delete(log, later, up_to=4), later)
    removal.mark()
    removal.remove()
    plan.run()
    log.flushed(plan)
    assert log.flushed_offset == 4
    assert log.log_start_offset == 4
    log.flush()
    assert log.failure is None


def test_a_long_segment_gets_snapshots_of_its_producers_and_keeps_the_newest(kit, monkeypatch) -> None:
    monkeypatch.setattr(producer_snapshots, "INTERVAL_BYTES", 300)
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=2000), files)
    for number in range(60):
        kit.append(log, producer_id=1, producer_epoch=0, base_sequence=number)
        log.flush()
        bases = {segment.base_offset for segment in log.segments[1:]}
        names = [name for name in files.list_directory(kit.path) if name.endswith(".snapshot")]
        loose = [name for name in names if int(name[:20]) not in bases]
        assert len(loose) <= 1
        assert len(names) == len(bases) + len(loose)
    assert len(log.segments) > 1
    newest = max(int(name[:20]) for name in names)
    assert newest > log.log_end_offset - 5
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    log = kit.log(log.config, files, recovery_point=0)
    assert kit.append(log, producer_id=1, producer_epoch=0, base_sequence=57).is_duplicate
    names = [name for name in files.list_directory(kit.path) if name.endswith(".snapshot")]
    assert len(names) == len(log.segments), "one per segment but the first, and one at the end"


def test_a_failure_when_all_batches_were_synced_already_heals_too(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    kit.append(log, 5)
    log.flush()
    log.delete_records_before(3)
    files.fail("sync", times=1)
    with pytest.raises(StorageError):
        log.flush()
    log.flush()
    assert log.failure is None
    assert kit.append(log).base_offset == 5
