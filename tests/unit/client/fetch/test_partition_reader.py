"""A partition read through all that can go wrong, against a log in memory."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.client.errors import TimedOut, TopicGone, TopicRecreated, Unreachable
from skep.client.fetch.partition_reader import PartitionReader
from tests.raw_requests import batch_of
from tests.unit.client.fake_cluster import TOPIC_ID, FakeCluster, FakeLog, Fault

OTHER_ID = UUID(int=78)
PASSING = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.leader_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.unknown_topic_id,
    Unreachable,
]


def log_of(*sizes_and_gaps: tuple[int, int]) -> FakeLog:
    """Batches of so many records, each after a gap of so many offsets."""
    offset, batches = 0, []
    for size, gap in sizes_and_gaps:
        offset += gap
        batches.append(batch_of(*[b"v%d" % (offset + number) for number in range(size)], base_offset=offset))
        offset += size
    return FakeLog(batches, offset)


def reader_of(cluster: FakeCluster, start: int, end: int, **options: Any) -> PartitionReader:
    return PartitionReader(cluster, "t", TOPIC_ID, 0, start=start, end=end, **options)


def read(cluster: FakeCluster, start: int, end: int, **options: Any) -> list[int]:
    reader = reader_of(cluster, start, end, **options)
    rows = [row for batch in reader for row in batch.to_pylist()]
    assert all(row["value"] == b"v%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


def test_the_next_response_is_asked_for_before_the_rows_of_this_one_are_given_out() -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0), (5, 0)))
    batches = iter(reader_of(cluster, 0, 15, fetch_max_bytes=1))
    next(batches)
    assert cluster.asked == [0, 5]
    assert len(list(batches)) == 2
    assert cluster.asked == [0, 5, 10]


def test_a_reader_that_is_left_in_the_middle_gives_no_connection_back_on_which_a_response_is_due() -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0)))
    batches: Any = iter(reader_of(cluster, 0, 10, fetch_max_bytes=1))
    next(batches)
    batches.close()
    assert cluster.free == []
    assert read(cluster, 0, 10) == list(range(10))
    assert len(cluster.free) == 1


def test_nothing_is_asked_when_there_is_nothing_to_read() -> None:
    cluster = FakeCluster(log_of((5, 0)))
    assert read(cluster, 5, 5) == read(cluster, 7, 3) == []
    assert cluster.lookups == 0


@pytest.mark.parametrize("fault", PASSING)
def test_what_can_pass_is_asked_again_at_the_place_that_is_looked_up_anew(fault: Fault) -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0), (5, 0)), [None, fault, fault])
    assert read(cluster, 0, 15, fetch_max_bytes=1) == list(range(15))
    assert cluster.lookups == 3


def test_a_refusal_that_does_not_pass_names_broker_and_partition() -> None:
    cluster = FakeCluster(log_of((5, 0)), [ErrorCode.topic_authorization_failed])
    with pytest.raises(KafkaError, match="b1:9092 refuses partition t-0") as refused:
        read(cluster, 0, 5)
    assert refused.value.code is ErrorCode.topic_authorization_failed


def test_without_progress_it_ends_with_what_was_met_last() -> None:
    cluster = FakeCluster(log_of((5, 0)), [ErrorCode.not_leader_or_follower] * 1000)
    with pytest.raises(TimedOut, match=r"partition t-0: no progress for 10 s: .* b1:9092 returned not_leader"):
        read(cluster, 0, 5)
    assert 10 <= cluster.manual.monotonic() < 12


def test_time_that_the_user_of_the_rows_takes_is_not_waiting() -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0)), [None, ErrorCode.not_leader_or_follower, Unreachable])
    count = 0
    for batch in reader_of(cluster, 0, 10, fetch_max_bytes=1):
        cluster.manual.advance_ms(3_600_000)
        count += batch.num_rows
    assert count == 10


def test_an_open_transaction_is_named_when_the_time_is_over() -> None:
    log = log_of((5, 0), (5, 0))
    log.last_stable_offset = 5
    cluster = FakeCluster(log)
    seen = []
    with pytest.raises(TimedOut, match="open transaction holds back records from offset 5 on") as failure:
        for batch in reader_of(cluster, 0, 10):
            seen.extend(batch.column("offset").to_pylist())
    assert seen == list(range(5))
    assert "t-0" in str(failure.value)
    assert "b1:9092" in str(failure.value)


def test_an_end_that_nobody_has_written_up_to_is_named_when_the_time_is_over() -> None:
    with pytest.raises(TimedOut, match="reading up to offset 9, and the log ends at 5"):
        read(FakeCluster(log_of((5, 0))), 0, 9, committed=False)


def test_a_log_whose_last_records_were_compacted_away_is_read_to_its_end() -> None:
    log = log_of((5, 0))
    log.end = 50
    cluster = FakeCluster(log)
    assert read(cluster, 0, 50) == list(range(5))
    assert cluster.asked == [0, 5, 5]


def test_a_topic_made_again_is_noticed_and_not_read() -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0)), [None, ErrorCode.unknown_topic_id], [TOPIC_ID, OTHER_ID])
    seen = []
    with pytest.raises(TopicRecreated, match="'t' was deleted and created again"):
        for batch in reader_of(cluster, 0, 10, fetch_max_bytes=1):
            seen.extend(batch.column("offset").to_pylist())
    assert seen == list(range(5))


def test_without_an_id_the_topic_of_the_beginning_is_held_on_to() -> None:
    cluster = FakeCluster(log_of((5, 0), (5, 0)), [None, Unreachable], [TOPIC_ID, OTHER_ID])
    reader = PartitionReader(cluster, "t", None, 0, start=0, end=10, fetch_max_bytes=1)
    with pytest.raises(TopicRecreated):
        list(reader)


def test_a_deleted_topic_is_gone_once_that_was_said_for_a_while() -> None:
    cluster = FakeCluster(log_of((5, 0)), [ErrorCode.unknown_topic_id], [TOPIC_ID, None])
    with pytest.raises(TopicGone, match="'t' was deleted"):
        read(cluster, 0, 5)
    assert 1 <= cluster.manual.monotonic() < 3


def test_a_broker_that_has_not_heard_of_the_topic_yet_is_no_deletion() -> None:
    cluster = FakeCluster(log_of((5, 0)), (), [None, OTHER_ID, None, TOPIC_ID])
    assert read(cluster, 0, 5) == list(range(5))


def test_a_batch_larger_than_asked_for_is_read() -> None:
    log = FakeLog([batch_of(b"x" * 5_000_000), batch_of(b"y", base_offset=1)], 2)
    cluster = FakeCluster(log)
    sizes = [
        len(value) for batch in reader_of(cluster, 0, 2, fetch_max_bytes=10) for value in batch["value"].to_pylist()
    ]
    assert sizes == [5_000_000, 1]


def test_a_short_range_is_not_fetched_with_all_that_follows() -> None:
    batches = [batch_of(*[b"x" * 90] * 100, base_offset=100 * number) for number in range(1000)]
    cluster = FakeCluster(FakeLog(batches, 100_000))
    reader = reader_of(cluster, 0, 2_000)
    assert sum(batch.num_rows for batch in reader) == 2_000
    assert reader.bytes_fetched < 2 * 20 * len(batches[0])
    assert len(cluster.asked) == 1


def test_damage_names_partition_and_offset_and_what_was_before_it_is_given() -> None:
    log = log_of((5, 0), (5, 0))
    damaged = bytearray(log.batches[1])
    damaged[-1] ^= 1
    log.batches = [log.batches[0], bytes(damaged)]
    seen = []
    with pytest.raises(KafkaError, match="partition t-0: the batch at offset 5 is damaged"):
        for batch in reader_of(FakeCluster(log), 0, 10, fetch_max_bytes=1):
            seen.extend(batch.column("offset").to_pylist())
    assert seen == list(range(5))


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=12),
    faults=st.lists(st.sampled_from([None, None, *PASSING]), max_size=12),
    data=st.data(),
)
def test_each_offset_comes_once_and_in_order_whatever_happens(shape: Any, faults: list[Fault], data: Any) -> None:
    log = log_of(*shape)
    start = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(start, log.end))
    there = []
    offset = 0
    for size, gap in shape:
        there += range(offset + gap, offset + gap + size)
        offset += gap + size
    options = {"fetch_max_bytes": data.draw(st.integers(1, 600)), "max_rows": data.draw(st.integers(1, 8))}
    assert read(FakeCluster(log, faults), start, end, **options) == [one for one in there if start <= one < end]


@pytest.mark.parametrize(("timeout_s", "silence_s"), [(30, 10), (6, 2), (0.5, 1)])
def test_a_silent_broker_takes_only_a_part_of_the_time_that_there_is(timeout_s: float, silence_s: float) -> None:
    cluster = FakeCluster(log_of((5, 0)))
    read(cluster, 0, 5, timeout_s=timeout_s)
    assert cluster.free[0].timeout_s == silence_s, "at least as long as a broker waits for records"
