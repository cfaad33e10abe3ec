"""Appending: offsets, timestamps, limits, duplicates, rolling, and a disk that refuses."""

import errno

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError

DAY_MS = 86_400_000


def refusal(call) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_batches_get_consecutive_offsets(kit) -> None:
    log = kit.log()
    assert kit.append(log, 3)[:2] == (0, 2)
    assert kit.append(log, 1)[:2] == (3, 3)
    assert log.log_end_offset == 4
    assert [header.base_offset for header, _ in kit.batches(log)] == [0, 3]


def test_the_leader_epoch_is_written_and_the_rest_of_the_batch_is_not_touched(kit) -> None:
    log = kit.log()
    kit.append(log, 2, epoch=5)
    ((header, batch),) = kit.batches(log)
    assert header.partition_leader_epoch == 5
    assert batch[16:] == kit.batch(2)[16:]


def test_a_log_without_records_has_no_files(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    assert files.list_directory("/data") == []
    kit.append(log)
    assert files.list_directory(kit.path) == ["00000000000000000000.log", "partition.metadata"]
    assert files.read_whole(f"{kit.path}/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def test_log_append_time_stamps_the_batch(kit) -> None:
    log = kit.log(TopicConfig(message_timestamp_type="LogAppendTime"))
    appended = kit.append(log, [1, 2, 3], now_ms=99)
    assert appended.append_time_ms == 99
    ((header, _),) = kit.batches(log)
    assert header.is_append_time
    assert header.max_timestamp == 99


def test_create_time_answers_no_append_time(kit) -> None:
    assert kit.append(kit.log()).append_time_ms == -1


def test_timestamps_too_far_from_the_clock_are_refused(kit) -> None:
    log = kit.log(TopicConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=20))
    kit.append(log, [kit.now_ms + 10])
    kit.append(log, [kit.now_ms - 20])
    kit.append(log, [-1])
    assert refusal(lambda: kit.append(log, [kit.now_ms, kit.now_ms + 11])) is ErrorCode.invalid_timestamp
    assert refusal(lambda: kit.append(log, [kit.now_ms - 21])) is ErrorCode.invalid_timestamp
    assert refusal(lambda: kit.append(log, [kit.now_ms], append_time=5)) is ErrorCode.invalid_timestamp
    assert log.log_end_offset == 3


def test_a_batch_larger_than_a_segment_is_refused(kit) -> None:
    log = kit.log(TopicConfig(segment_bytes=100))
    assert refusal(lambda: kit.append(log, 1, size=100)) is ErrorCode.record_list_too_large
    assert log.segments == []


def test_segments_are_rolled_by_size(kit) -> None:
    size = len(kit.batch())
    log = kit.log(TopicConfig(segment_bytes=2 * size))
    for _ in range(5):
        kit.append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert [segment.size for segment in log.segments] == [2 * size, 2 * size, size]
    assert log.size == 5 * size


def test_segments_are_rolled_by_the_time_of_their_records(kit) -> None:
    log = kit.log(TopicConfig(segment_ms=DAY_MS))
    kit.append(log, [kit.now_ms - 3 * DAY_MS])
    kit.append(log, [kit.now_ms - 2 * DAY_MS])
    kit.append(log, [kit.now_ms - 2 * DAY_MS + 1])
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segments_without_timestamps_are_rolled_by_the_clock(kit) -> None:
    log = kit.log(TopicConfig(segment_ms=DAY_MS))
    kit.append(log, [-1])
    kit.append(log, [-1], now_ms=kit.now_ms + DAY_MS)
    kit.append(log, [-1], now_ms=kit.now_ms + DAY_MS + 1)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_an_old_segment_is_rolled_without_an_append(kit) -> None:
    log = kit.log(TopicConfig(segment_ms=DAY_MS))
    assert not log.roll_if_due(kit.now_ms)
    kit.append(log)
    assert not log.roll_if_due(kit.now_ms + DAY_MS)
    assert log.roll_if_due(kit.now_ms + DAY_MS + 1)
    assert not log.roll_if_due(kit.now_ms + 9 * DAY_MS), "an empty one is not rolled"
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_segments_are_rolled_when_their_index_is_full(kit) -> None:
    log = kit.log(TopicConfig(segment_index_bytes=48, index_interval_bytes=0))
    for _ in range(8):
        kit.append(log)
    assert len(log.segments) > 1
    assert all(segment.offset_index.size <= 48 and segment.time_index.size <= 48 for segment in log.segments)


def test_segments_are_rolled_before_a_relative_offset_overflows(kit) -> None:
    log = kit.log(log_start_offset=0)
    kit.append(log)
    log.state.log_end_offset = (1 << 31) - 1
    kit.append(log)
    kit.append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31]


def test_a_jitter_makes_segments_roll_earlier(kit) -> None:
    log = kit.log(TopicConfig(segment_ms=1000, segment_jitter_ms=1000))
    ages = set()
    for n in range(20):
        kit.append(log)
        ages.add(log.segments[-1].jitter_ms)
        log.roll_if_due(kit.now_ms + (n + 1) * 10_000)
    assert len(ages) > 5
    assert all(0 <= age <= 1000 for age in ages)


def test_a_write_that_fails_changes_nothing(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=250), files)
    kit.append(log, producer_id=1, producer_epoch=0, base_sequence=0)
    kit.append(log, epoch=0)
    before = (log.log_end_offset, log.size)
    for _ in range(2):
        files.fail("write", times=1, error=errno.ENOSPC)
        with pytest.raises(StorageError, match="No space left on device"):
            kit.append(log, producer_id=2, producer_epoch=0, base_sequence=0, epoch=3)
        assert (log.log_end_offset, log.size) == before
        assert log.end_offset_for_epoch(3) == (-1, -1)
    files.heal()
    again = kit.append(log, producer_id=2, producer_epoch=0, base_sequence=0, epoch=3)
    assert (again.base_offset, again.is_duplicate) == (2, False)
    assert log.end_offset_for_epoch(3) == (3, 3)
    assert kit.offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("failing_step", range(1, 10))
def test_a_roll_that_fails_at_any_step_can_be_tried_again(kit, failing_step: int) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=len(kit.batch())), files)
    kit.append(log)
    start = files.steps
    real_step = files.step

    def step(kind: str, path: str) -> None:
        real_step(kind, path)
        if files.steps == start + failing_step:
            raise StorageError(f"{path}: no")

    files.step = step
    try:
        kit.append(log)
    except StorageError:
        assert log.log_end_offset == 1
        assert kit.append(log).base_offset == 1
    assert kit.offsets(log) == [0, 1]
    log.close()
    assert kit.offsets(kit.log(log.config, files)) == [0, 1]


def test_a_duplicate_is_answered_as_the_first_time_and_not_written(kit) -> None:
    log = kit.log()
    for sequence in range(0, 14, 2):
        kit.append(log, 2, producer_id=7, producer_epoch=0, base_sequence=sequence)
    again = kit.append(log, 2, producer_id=7, producer_epoch=0, base_sequence=4)
    assert again.is_duplicate
    assert again[:2] == (4, 5)
    assert log.log_end_offset == 14
    code = refusal(lambda: kit.append(log, 2, producer_id=7, producer_epoch=0, base_sequence=2))
    assert code is ErrorCode.out_of_order_sequence_number


def test_old_records_get_no_segment_of_their_own_from_the_timer(kit) -> None:
    log = kit.log(TopicConfig(segment_ms=1000))
    for _ in range(5):
        kit.append(log, [kit.now_ms - 10**9])
        assert not log.roll_if_due(kit.now_ms + 500)
    assert log.roll_if_due(kit.now_ms + 1001)
    assert len(log.segments) == 2
