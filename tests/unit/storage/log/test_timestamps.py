"""Lookups by time, compared with looking at every record."""

from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.records.batch import HEADER_SIZE, crc_of, read_header
from skep.records.compression import Codec

CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=120)


@given(
    batches=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), min_size=1, max_size=25),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    is_reopened=st.booleans(),
    data=st.data(),
)
def test_the_first_record_at_or_after_a_time_is_found(kit, batches, codec: int, is_reopened: bool, data) -> None:
    files = kit.files()
    log = kit.log(CONFIG, files)
    records = []
    for timestamps in batches:
        base_offset = kit.append(log, timestamps, codec=codec).base_offset
        records += [(base_offset + n, timestamp) for n, timestamp in enumerate(timestamps)]
    if is_reopened:
        log.close()
        log = kit.log(CONFIG, files)
    ends = [0]
    for timestamps in batches:
        ends.append(ends[-1] + len(timestamps))
    log_start_offset = data.draw(st.integers(0, log.log_end_offset))
    log.delete_records_before(log_start_offset)
    up_to = data.draw(st.sampled_from(ends))
    seen = [(offset, timestamp) for offset, timestamp in records if log_start_offset <= offset < up_to]
    for wanted in range(-1, 42):
        expected = next(((timestamp, offset) for offset, timestamp in seen if timestamp >= wanted), None)
        found = log.offset_for_timestamp(wanted, up_to=up_to)
        assert (None if found is None else found[:2]) == expected
    largest = max((timestamp for _, timestamp in seen), default=None)
    expected = next(((timestamp, offset) for offset, timestamp in seen if timestamp == largest), None)
    found = log.latest_timestamp(up_to=up_to)
    assert (None if found is None else found[:2]) == expected


def test_under_append_time_the_first_record_of_the_batch_is_found(kit) -> None:
    log = kit.log(TopicConfig(message_timestamp_type="LogAppendTime"))
    kit.append(log, 3, now_ms=100)
    kit.append(log, 3, now_ms=200)
    assert log.offset_for_timestamp(150, up_to=6) == (200, 3, 0)
    assert log.offset_for_timestamp(100, up_to=6) == (100, 0, 0)
    assert log.offset_for_timestamp(201, up_to=6) is None
    assert log.latest_timestamp(up_to=6) == (200, 3, 0)


def test_the_leader_epoch_comes_with_the_answer(kit) -> None:
    log = kit.log()
    kit.append(log, [10], epoch=4)
    assert log.offset_for_timestamp(5, up_to=1) == (10, 0, 4)


def test_records_without_timestamps_are_not_found(kit) -> None:
    log = kit.log()
    kit.append(log, [-1, -1])
    assert log.offset_for_timestamp(0, up_to=2) is None
    assert log.latest_timestamp(up_to=2) is None
    assert kit.log().latest_timestamp(up_to=0) is None


def test_a_batch_that_cannot_be_opened_is_answered_by_its_first_offset(kit) -> None:
    log = kit.log()
    kit.append(log, [5])
    batch = bytearray(kit.batch([10, 20], codec=Codec.ZSTD))
    batch[HEADER_SIZE:] = b"?" * (len(batch) - HEADER_SIZE)
    batch[17:21] = crc_of(batch).to_bytes(4, "big")
    log.append(bytes(batch), read_header(batch), 0, kit.now_ms)
    assert log.offset_for_timestamp(15, up_to=3) == (20, 1, 0)
