"""Which segments go, and what becomes of the log and its files when they do."""

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch
from skep.storage.log.retention import SegmentView, expired_count, segments_to_delete

DAY_MS = 86_400_000


def views(*segments: tuple[int, int]) -> list[SegmentView]:
    """Segments of ten records each, from (size, timestamp)."""
    return [
        SegmentView(10 * number, 10 * number + 10, size, timestamp) for number, (size, timestamp) in enumerate(segments)
    ]


def count(segments: list[SegmentView], now_ms: int = 0, *, start: int = 0, up_to: int = 1000, **config: int) -> int:
    size = sum(segment.size for segment in segments)
    return expired_count(
        iter(segments), len(segments), size, TopicConfig(**config), now_ms, log_start_offset=start, up_to=up_to
    )


def test_segments_go_by_age_of_their_youngest_record() -> None:
    segments = views((5, 100), (5, 200), (5, 300))
    assert count(segments, 300, retention_ms=200) == 0
    assert count(segments, 301, retention_ms=200) == 1
    assert count(segments, 401, retention_ms=200) == 2
    assert count(segments, 10**6, retention_ms=200) == 3
    assert count(segments, 10**6, retention_ms=-1) == 0


def test_a_younger_segment_keeps_the_older_ones_behind_it() -> None:
    assert count(views((5, 900), (5, 100), (5, 900)), 1000, retention_ms=200) == 0


def test_segments_go_by_size_as_long_as_enough_is_left() -> None:
    segments = views((40, 0), (40, 0), (40, 0))
    assert count(segments, retention_bytes=81) == 0
    assert count(segments, retention_bytes=80) == 1
    assert count(segments, retention_bytes=40) == 2
    assert count(segments, retention_bytes=0) == 3
    assert count(segments, retention_bytes=-1) == 0


def test_segments_below_the_log_start_go() -> None:
    segments = views((5, 0), (5, 0), (5, 0))
    assert count(segments, start=19) == 1
    assert count(segments, start=20) == 2
    assert count(segments, start=30) == 3


def test_nothing_past_the_high_watermark_goes() -> None:
    assert count(views((5, 0), (5, 0), (5, 0)), 10**12, up_to=19) == 1


def test_an_empty_active_segment_stays() -> None:
    assert count(views((5, 0), (0, 0)), 10**12, retention_ms=1) == 1


def test_detaching_moves_the_log_start_and_renames_then_removes(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=2 * len(kit.batch()), retention_ms=DAY_MS), files)
    for number in range(5):
        kit.append(log, [kit.now_ms + number * DAY_MS // 2], now_ms=kit.now_ms + number * DAY_MS // 2)
    now_ms = kit.now_ms + 2 * DAY_MS
    gone = segments_to_delete(log, now_ms, up_to=5)
    assert [segment.base_offset for segment in gone] == [0]
    removal = log.detach(gone, now_ms)
    assert log.log_start_offset == 2
    assert removal.size == 2 * len(kit.batch())
    removal.mark()
    names = files.list_directory(kit.path)
    assert "00000000000000000000.log.deleted" in names
    assert "00000000000000000000.log" not in names
    removal.remove()
    assert not [name for name in files.list_directory(kit.path) if name.startswith("00000000000000000000.")]
    assert kit.offsets(log) == [2, 3, 4]


def test_when_all_has_expired_a_new_segment_keeps_the_end_offset(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(retention_ms=DAY_MS), files)
    kit.append(log, 7)
    log.flush()
    later = kit.now_ms + 2 * DAY_MS
    removal = log.detach(segments_to_delete(log, later, up_to=7), later)
    removal.mark()
    removal.remove()
    assert (log.log_start_offset, log.log_end_offset, log.size) == (7, 7, 0)
    assert segments_to_delete(log, later + DAY_MS, up_to=7) == []
    log.close()
    again = kit.log(log.config, files)
    assert (again.log_start_offset, again.log_end_offset) == (7, 7)
    assert kit.append(again).base_offset == 7


@pytest.mark.parametrize("recovery_point", [None, 0, 7], ids=["clean stop", "crash", "crash after a checkpoint"])
@pytest.mark.parametrize("is_flushed_after", [False, True])
def test_a_log_of_which_all_has_expired_knows_in_which_epoch_it_ended(kit, recovery_point, is_flushed_after) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(retention_ms=DAY_MS), files)
    kit.append(log, 3, epoch=2)
    kit.append(log, 4, epoch=4)
    log.flush()
    later = kit.now_ms + 2 * DAY_MS
    removal = log.detach(segments_to_delete(log, later, up_to=7), later)
    removal.mark()
    removal.remove()
    if is_flushed_after:
        log.flush()
    assert log.last_batch_epoch == 4
    if recovery_point is None:
        log.close()
    again = kit.log(log.config, files, recovery_point=recovery_point, log_start_offset=7)
    assert (again.log_start_offset, again.log_end_offset) == (7, 7)
    assert (again.last_batch_epoch, again.latest_epoch) == (4, 4)
    kit.append(again, epoch=6)
    assert (again.last_batch_epoch, again.end_offset_for_epoch(LeaderEpoch(4))) == (6, (4, 7))


def test_after_a_crash_the_epoch_that_a_log_ended_in_is_that_of_its_last_batch_also_if_the_file_lags(kit) -> None:
    files = kit.files()
    log = kit.log(None, files)
    kit.append(log, 3, epoch=2)
    log.flush()
    kit.append(log, 4, epoch=4)
    log.delete_records_before(7)
    again = kit.log(None, files, recovery_point=3, log_start_offset=7)
    assert (again.log_start_offset, again.log_end_offset, again.last_batch_epoch) == (7, 7, 4)


def test_a_log_whose_end_is_cut_to_its_start_knows_in_which_epoch_it_ended(kit) -> None:
    files = kit.files()
    log = kit.log(None, files)
    kit.append(log, 3, epoch=2)
    kit.append(log, 4, epoch=4)
    log.delete_records_before(3)
    assert log.truncate_to(3) == 3
    assert (log.last_batch_epoch, log.latest_epoch) == (2, 2)
    log.begin_epoch(LeaderEpoch(5))
    assert (log.last_batch_epoch, log.latest_epoch) == (2, 5)
    assert log.end_offset_for_epoch(LeaderEpoch(2)) == (2, 3)
    assert log.end_offset_for_epoch(LeaderEpoch(1)) == (1, 3), "not before the log start"
    assert log.divergence(LeaderEpoch(1)) == (1, 2), "a replica with offset 2 of epoch 1 has another record there"
    log.close()
    again = kit.log(None, files, log_start_offset=3)
    assert (again.last_batch_epoch, again.latest_epoch, again.lost_data) == (2, 2, False)


def test_delete_records_moves_the_start_and_never_back(kit) -> None:
    log = kit.log(TopicConfig(segment_bytes=2 * len(kit.batch())))
    for _ in range(6):
        kit.append(log, epoch=0)
    assert log.delete_records_before(3) == 3
    assert log.delete_records_before(1) == 3
    assert [segment.base_offset for segment in segments_to_delete(log, kit.now_ms, up_to=6)] == [0]
    assert kit.offsets(log) == [3, 4, 5]


def test_segments_below_the_log_start_go_after_a_restart(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=2 * len(kit.batch())), files)
    for _ in range(6):
        kit.append(log)
    log.close()
    again = kit.log(log.config, files, log_start_offset=4)
    assert [segment.base_offset for segment in segments_to_delete(again, kit.now_ms, up_to=6)] == [0, 2]


def test_without_delete_in_the_policy_only_what_lies_below_the_log_start_goes() -> None:
    segments = views((40, 100), (40, 100), (40, 100))
    expired = {"retention_ms": 1, "retention_bytes": 0}
    assert count(segments, 10**12, cleanup_policy=("compact",), **expired) == 0
    assert count(segments, 10**12, start=20, cleanup_policy=("compact",), **expired) == 2
    assert count(segments, 10**12, cleanup_policy=("compact", "delete"), **expired) == 3


def test_a_segment_that_compaction_has_emptied_keeps_none_behind_it() -> None:
    segments = views((0, 900), (5, 100), (5, 900))
    assert count(segments, 1000, retention_ms=200, cleanup_policy=("compact", "delete")) == 2
    assert count(segments, 1000, retention_ms=200, cleanup_policy=("compact",)) == 0


def test_no_segment_is_looked_at_behind_the_first_that_stays() -> None:
    looked_at = []

    def looked(segments):
        for segment in segments:
            looked_at.append(segment)
            yield segment

    segments = views(*[(5, number) for number in range(1000)])
    expired_count(looked(segments), 1000, 5000, TopicConfig(retention_ms=10), 12, log_start_offset=0, up_to=10**6)
    assert len(looked_at) == 3
