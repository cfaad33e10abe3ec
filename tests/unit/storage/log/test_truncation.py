"""Taking batches back: where the log ends then, what is left on disk, and what happens when the disk refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from tests.memory_files import Survivors

SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=60)


def filled(kit, files=None, sizes=(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8), config: TopicConfig = SMALL):
    """Batches of so many records, each of its own timestamp and, after every fourth, epoch."""
    log = kit.log(config, files)
    sequence = 0
    for number, count in enumerate(sizes):
        times = [kit.now_ms + number] * count
        kit.append(log, times, epoch=number // 4, producer_id=1, producer_epoch=0, base_sequence=sequence)
        sequence += count
    return log


def bases(kit, log) -> list[int]:
    return [header.base_offset for header, _ in kit.batches(log)]


def state(kit, log) -> tuple[object, ...]:
    indexes = [index.entries() for segment in log.segments for index in (segment.offset_index, segment.time_index)]
    latest = log.latest_timestamp(up_to=log.log_end_offset)
    return (
        bases(kit, log),
        log.log_end_offset,
        [segment.base_offset for segment in log.segments],
        [segment.size for segment in log.segments],
        indexes,
        latest,
        log.latest_epoch,
        [log.end_offset_for_epoch(epoch) for epoch in range(4)],
    )


@given(offset=st.integers(0, 60), is_flushed=st.booleans())
def test_a_truncated_log_is_as_if_it_had_never_had_more(kit, offset: int, is_flushed: bool) -> None:
    log = filled(kit)
    whole = [header for header, _ in kit.batches(log)]
    kept = [header for header in whole if header.next_offset <= offset]
    if is_flushed:
        log.flush()
    end = log.truncate_to(Offset(offset))
    assert end == log.log_end_offset == (kept[-1].next_offset if kept else 0)
    assert end <= offset
    assert log.flushed_offset <= end
    shorter = filled(kit, sizes=[header.last_offset_delta + 1 for header in kept])
    if kept:
        # One that begins where the log ends now is kept, empty: it would be begun with the next batch anyway.
        assert state(kit, log)[:2] == state(kit, shorter)[:2]
        assert state(kit, log)[5:] == state(kit, shorter)[5:]
    for one in (log, shorter):
        kit.append(one, [kit.now_ms + 50] * 2, epoch=7, producer_id=1, producer_epoch=0, base_sequence=end)
    assert state(kit, log)[:2] == state(kit, shorter)[:2]
    assert state(kit, log)[5:] == state(kit, shorter)[5:]


def test_batches_past_the_end_are_gone_from_every_file_and_stay_so(kit) -> None:
    for is_clean in (True, False):
        files = kit.files()
        files.sync_directory("/")
        log = filled(kit, files)
        log.flush()
        names = files.list_directory(kit.path)
        assert log.truncate_to(Offset(6)) == 4
        left = {name for name in files.list_directory(kit.path) if not name.endswith(".deleted")}
        assert {name[20:] for name in set(names) - left} >= {".log", ".index", ".timeindex", ".snapshot"}
        assert not [name for name in left if name[:20].isdigit() and int(name[:20]) > 4]
        if is_clean:
            log.close()
        else:
            files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
        again = kit.log(SMALL, files, recovery_point=None if is_clean else 4)
        assert (bases(kit, again), again.log_end_offset) == ([0, 3], 4)
        assert again.latest_epoch == 0
        assert not again.lost_data


def test_the_producers_are_as_they_were_then(kit) -> None:
    log = filled(kit)
    log.truncate_to(Offset(13))
    assert log.log_end_offset == 9
    again = kit.append(log, [kit.now_ms] * 5, epoch=5, producer_id=1, producer_epoch=0, base_sequence=9)
    assert (again.base_offset, again.is_duplicate) == (9, False)
    assert kit.append(log, [kit.now_ms] * 1, epoch=5, producer_id=1, producer_epoch=0, base_sequence=8).is_duplicate


def test_aborted_transactions_past_the_end_are_forgotten_and_open_again(kit) -> None:
    log = kit.log(SMALL)
    for number in range(4):
        batch = build_batch(
            [NewRecord(b"k", b"v" * 50, kit.now_ms)],
            producer_id=number,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        log.append(batch, read_header(batch), LeaderEpoch(0), kit.now_ms)
        log.append_marker(number, 0, 1, False, LeaderEpoch(0), kit.now_ms)
    assert len(log.segments) > 1
    log.truncate_to(Offset(5))
    log.producers.transactions.high_watermark_moved(Offset(5))
    assert log.first_unstable_offset == 4
    assert [one.producer_id for one in log.aborted_transactions(Offset(0), Offset(5))] == [0, 1]
    log.append_marker(2, 0, 1, True, LeaderEpoch(1), kit.now_ms)
    log.producers.transactions.high_watermark_moved(Offset(6))
    assert log.first_unstable_offset is None
    assert [one.producer_id for one in log.aborted_transactions(Offset(0), Offset(6))] == [0, 1]


def test_the_log_start_is_never_past_the_end(kit) -> None:
    for start, offset, expected in [(5, 30, 25), (5, 6, 5), (5, 5, 5), (5, 3, 3), (30, 2, 2), (0, 0, 0)]:
        log = filled(kit)
        log.delete_records_before(Offset(start))
        assert log.truncate_to(Offset(offset)) == expected, (start, offset)
        assert log.log_start_offset == min(start, expected)
        assert kit.append(log, epoch=9).base_offset == expected


def test_a_log_begins_anew_where_it_is_told(kit) -> None:
    for offset in (0, 7, 52, 1000):
        files = kit.files()
        log = filled(kit, files)
        log.flush()
        log.start_over_at(Offset(offset))
        assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (offset, offset, offset)
        assert (log.latest_epoch, len(log.producers), log.size) == (-1, 0, 0)
        assert kit.append(log, producer_id=1, producer_epoch=0, base_sequence=40).base_offset == offset
        log.close()
        again = kit.log(SMALL, files)
        assert (again.log_start_offset, again.log_end_offset) == (offset, offset + 1)
        assert len([name for name in files.list_directory("/data") if name.endswith("-delete")]) == 1


def test_an_empty_log_keeps_its_offset_over_a_stop(kit) -> None:
    files = kit.files()
    log = filled(kit, files)
    log.start_over_at(Offset(77))
    log.close()
    again = kit.log(SMALL, files)
    assert (again.log_start_offset, again.log_end_offset) == (77, 77)


def test_a_follower_moves_its_log_start_also_past_its_end(kit) -> None:
    log = filled(kit)
    assert log.move_start_to(Offset(20)) == 20
    assert log.move_start_to(Offset(10)) == 20, "it never goes back"
    assert log.move_start_to(Offset(90)) == 90
    assert log.log_end_offset == 90


def test_nothing_is_cut_while_a_flush_is_under_way(kit) -> None:
    log = filled(kit)
    plan = log.flush_plan()
    for cut in (log.truncate_to, log.start_over_at):
        with pytest.raises(StorageError, match="flush is under way"):
            cut(Offset(5))
    plan.run()
    log.flushed(plan)
    assert log.truncate_to(Offset(5)) == 4


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_truncation_that_the_disk_refuses_can_be_done_again(kit, kind: str) -> None:
    for number in range(1, 30):
        files = kit.files()
        log = filled(kit, files)
        log.flush()
        steps = iter(range(number))
        real_step = files.step

        def refuse(what: str, path: str, real_step=real_step, steps=steps) -> None:
            if what == kind and next(steps, None) is None:
                raise StorageError(f"{path}: Input/output error")
            real_step(what, path)

        files.step = refuse
        try:
            log.truncate_to(Offset(6))
        except StorageError:
            files.step = real_step
            with pytest.raises(StorageError):
                kit.append(log, epoch=3)
            assert log.is_half_cut
            # The one who began it does so again, or somebody who only knows that it is to be ended.
            assert log.truncate_to(Offset(6) if number % 2 else log.log_end_offset) == 4
            assert not log.is_half_cut
            log.flush()
        else:
            assert number > 3
            break
        assert bases(kit, log) == [0, 3]
        assert kit.append(log, epoch=3, producer_id=1, producer_epoch=0, base_sequence=4).base_offset == 4
        log.close()
        again = kit.log(SMALL, files)
        assert (bases(kit, again), again.latest_epoch) == ([0, 3, 4], 3)


def test_a_log_whose_truncation_was_not_finished_takes_nothing_until_it_is(kit) -> None:
    files = kit.files()
    log = filled(kit, files)
    files.fail("sync", times=1)
    with pytest.raises(StorageError):
        log.truncate_to(Offset(6))
    with pytest.raises(StorageError):
        log.flush()
    assert log.failure is not None
    with pytest.raises(StorageError):
        log.close()
