"""Ranges cut and limited, offsets as the checkpoint has them, filters as bounds: all without a broker."""

import datetime
import json
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyspark_skep.read.filters import Pushed
from pyspark_skep.read.offset_ranges import OffsetRange, limit_offsets, split_ranges
from pyspark_skep.read.stream_offsets import StreamOffsets, TopicOffsets, losses

ID, OTHER = UUID(int=1), UUID(int=2)


def piece(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange("t", ID, partition, start, end)


def shape(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.start, one.end) for one in ranges]


def test_without_a_wish_each_partition_with_records_is_a_task():
    assert shape(split_ranges([piece(0, 1, 5), piece(1, 7, 7), piece(2, 9, 3)])) == [(0, 1, 5)]


def test_one_partition_is_cut_into_the_tasks_asked_for_and_the_last_has_the_rest():
    assert shape(split_ranges([piece(0, 1, 5)], min_partitions=3)) == [(0, 1, 2), (0, 2, 3), (0, 3, 5)]


def test_small_partitions_stay_whole_and_do_not_count_in_the_share_of_large_ones():
    # Of 24 offsets, 3 tasks: 4/24*3 = 0.5 counts as one task; the other 2 are for the 20 offsets of the large one.
    found = split_ranges([piece(0, 1, 5), piece(1, 1, 21)], min_partitions=3)
    assert shape(found) == [(0, 1, 5), (1, 1, 11), (1, 11, 21)]


def test_enough_partitions_are_not_cut():
    ranges = [piece(0, 0, 1000), piece(1, 0, 1)]
    assert split_ranges(ranges, min_partitions=2) == ranges


def test_no_task_has_more_offsets_than_allowed():
    found = split_ranges([piece(0, 0, 10), piece(1, 0, 4)], max_records_per_partition=4)
    assert shape(found) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 4)]


def test_both_wishes_hold_together():
    found = split_ranges([piece(0, 0, 100)], min_partitions=2, max_records_per_partition=10)
    assert len(found) == 10
    found = split_ranges([piece(0, 0, 100)], min_partitions=20, max_records_per_partition=50)
    assert len(found) == 20


SIZES = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8)


@given(SIZES, st.integers(0, 50), st.integers(0, 1 << 40))
def test_cutting_loses_no_offset_and_doubles_none(sizes, min_partitions, max_records):
    if max_records and sum(sizes) // max_records > 1000:
        max_records = 0
    ranges = [piece(number, 5, 5 + size) for number, size in enumerate(sizes)]
    found = split_ranges(ranges, min_partitions=min_partitions, max_records_per_partition=max_records)
    for one in ranges:
        parts = [part for part in found if part.partition == one.partition]
        assert all(part.size > 0 for part in parts)
        assert all(before.end == after.start for before, after in pairwise(parts))
        assert (parts[0].start, parts[-1].end) == (one.start, one.end) if one.size else not parts
        assert not max_records or all(part.size <= max_records for part in parts)


def test_a_limit_is_shared_out_by_what_each_partition_has():
    begin = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7}
    end = {("t", 0): 900, ("t", 1): 200, ("t", 2): 7}
    assert limit_offsets(100, begin, end) == {("t", 0): 90, ("t", 1): 110, ("t", 2): 7}


def test_a_small_partition_is_not_starved_and_a_limit_beyond_the_end_ends_there():
    begin, end = {("t", 0): 0, ("t", 1): 0}, {("t", 0): 10_000, ("t", 1): 1}
    assert limit_offsets(10, begin, end)["t", 1] == 1
    assert limit_offsets(1 << 62, begin, end) == end


def test_a_log_that_was_cut_is_followed_back():
    assert limit_offsets(10, {("t", 0): 50}, {("t", 0): 20}) == {("t", 0): 20}


def offsets(topic_id: UUID = ID, **numbers: int) -> StreamOffsets:
    return StreamOffsets({"t": TopicOffsets(topic_id, {int(name[1:]): offset for name, offset in numbers.items()})})


def test_offsets_in_the_checkpoint_are_the_same_text_whatever_their_order():
    one = StreamOffsets({"b": TopicOffsets(ID, {10: 1, 2: 3}), "a": TopicOffsets(OTHER, {0: 0})})
    text = json.dumps(one.to_json())
    assert text == f'{{"a": {{"id": "{OTHER}", "0": 0}}, "b": {{"id": "{ID}", "2": 3, "10": 1}}}}'
    assert json.dumps(StreamOffsets.from_json(json.loads(text)).to_json()) == text


def test_a_checkpoint_of_the_kafka_source_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="offsets of another source"):
        StreamOffsets.from_json({"t": {"0": 5}})


def test_nothing_is_lost_when_logs_grow_and_partitions_are_added():
    assert not list(losses(offsets(p0=5), offsets(p0=9, p1=3)))


@pytest.mark.parametrize(
    ("latest", "words"),
    [
        (StreamOffsets(), "of the checkpoint was deleted"),
        (offsets(OTHER, p0=9), "deleted and created again"),
        (offsets(p1=9), "t-0 of the checkpoint does not exist"),
        (offsets(p0=4), "was read up to offset 5 and ends at 4"),
    ],
)
def test_what_must_have_been_lost_is_said(latest, words):
    [text] = losses(offsets(p0=5), latest)
    assert words in text


def pushed(*filters) -> tuple[Pushed, list]:
    found = Pushed()
    return found, found.take(filters)


def test_filters_on_topic_and_partition_choose_partitions_and_leave_nothing_to_check():
    found, rest = pushed(
        IsNotNull(("topic",)),
        StringStartsWith(("topic",), "or"),
        Not(EqualTo(("topic",), "orders-old")),
        In(("partition",), (0, 2)),
        LessThan(("partition",), 2),
    )
    assert rest == []
    read = [
        (topic, number) for topic in ("orders", "orders-old", "x") for number in range(3) if found.reads(topic, number)
    ]
    assert read == [("orders", 0)]


def test_filters_on_offset_are_bounds():
    found, rest = pushed(GreaterThan(("offset",), 10), LessThanOrEqual(("offset",), 20), IsNotNull(("offset",)))
    assert rest == []
    assert found.narrow(0, 100) == (11, 21)
    assert found.narrow(15, 17) == (15, 17)
    assert found.narrow(50, 60) == (50, 50)
    assert pushed(EqualTo(("offset",), 7))[0].narrow(0, 100) == (7, 8)
    assert pushed(EqualNullSafe(("offset",), 7), LessThan(("offset",), 5))[0].narrow(0, 100) == (7, 7)


def test_offsets_with_gaps_between_them_are_read_over_and_left_for_spark_to_check():
    gaps, dense = In(("offset",), (3, 9)), In(("offset",), (4, 3, 5))
    found, rest = pushed(gaps)
    assert (found.narrow(0, 100), rest) == ((3, 10), [gaps])
    found, rest = pushed(dense)
    assert (found.narrow(0, 100), rest) == ((3, 6), [])


def test_a_lower_bound_on_timestamp_is_used_and_still_checked_by_spark():
    moment = datetime.datetime(2024, 5, 1, 12, 0, 0, 1500, tzinfo=datetime.UTC)
    at_ms = 1714564800002  # 1.5 ms past the second: no record has a time between 1 and 2 ms
    for one in (GreaterThanOrEqual(("timestamp",), moment), EqualTo(("timestamp",), moment)):
        found, rest = pushed(one)
        assert (found.from_timestamp_ms, rest) == (at_ms, [one])


def test_an_upper_bound_on_timestamp_saves_nothing_for_logs_are_in_no_order():
    one = LessThan(("timestamp",), datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC))
    found, rest = pushed(one)
    assert (found.narrow(0, 100), found.from_timestamp_ms, rest) == ((0, 100), None, [one])


def test_a_time_before_1970_skips_nothing_because_records_may_have_no_time():
    one = GreaterThanOrEqual(("timestamp",), datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC))
    found, rest = pushed(one)
    assert (found.from_timestamp_ms, rest) == (None, [one])


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        IsNull(("topic",)),
        IsNotNull(("key",)),
        EqualTo(("offset",), 1.5),
        EqualTo(("partition",), True),
        Not(EqualTo(("offset",), 5)),
        Not(In(("topic",), ("a", None))),
        StringContains(("headers", "key"), "x"),
        GreaterThan(("timestamp",), datetime.datetime(2024, 5, 1)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(one):
    assert pushed(one) == (Pushed(), [one])
