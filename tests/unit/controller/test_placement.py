"""Placement: leaders even, copies apart, nothing on a broker that stops."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.controller.placement import place
from tests.unit.controller.clusters import broker

SIX_IN_THREE_RACKS = [broker(n, rack) for n, rack in zip(range(1, 7), "aabbcc", strict=True)]
RACK_OF = {one.id: one.rack for one in SIX_IN_THREE_RACKS}


def in_racks(*racks):
    return [broker(number, rack) for number, rack in enumerate(racks, 1)]


def test_one_broker_gets_everything():
    assert place([broker(1)], 3, 1, start=7) == [[1], [1], [1]]


def test_leaders_go_round_and_followers_come_after_them():
    assert place([broker(3), broker(1), broker(2)], 3, 2) == [[1, 2], [2, 3], [3, 1]]


def test_the_next_time_around_each_leader_has_another_follower():
    assert place([broker(1), broker(2), broker(3)], 6, 2)[3:] == [[1, 3], [2, 1], [3, 2]]


def test_topics_of_one_partition_begin_where_the_last_one_ended():
    three = [broker(1), broker(2), broker(3)]
    assert [place(three, 1, 1, start=start) for start in range(4)] == [[[1]], [[2]], [[3]], [[1]]]


@pytest.mark.parametrize("start", range(7))
def test_new_partitions_of_a_topic_go_on_behind_its_last_leader(start):
    (first, *_), (second, *_) = place([broker(1), broker(2), broker(3)], 2, 2, start=start, after=2)
    assert (first, second) == (3, 1)


def test_a_last_leader_that_is_gone_does_not_matter():
    assert place([broker(1), broker(2)], 2, 1, start=1, after=9) == [[2], [1]]


def test_the_worked_example_of_the_module():
    assert place(SIX_IN_THREE_RACKS, 7, 3)[::6] == [[1, 3, 5], [1, 5, 4]]
    assert place(SIX_IN_THREE_RACKS, 2, 3)[1] == [3, 5, 2]


def test_a_stopping_broker_gets_nothing():
    assert place([broker(1), broker(2, stopping=True), broker(3)], 4, 2) == [[1, 3], [3, 1], [1, 3], [3, 1]]


def test_without_a_rack_the_machine_counts():
    brokers = [broker(1, machine="x"), broker(2, machine="x"), broker(3, machine="y"), broker(4, machine="y")]
    assert all({1, 2} & set(replicas) and {3, 4} & set(replicas) for replicas in place(brokers, 20, 2))


@pytest.mark.parametrize(
    ("brokers", "factor"),
    [([broker(1)], 2), ([], 1), ([broker(1), broker(2, stopping=True)], 2), (SIX_IN_THREE_RACKS, 7)],
)
def test_more_replicas_than_brokers_are_refused(brokers, factor):
    with pytest.raises(KafkaError, match="broker\\(s\\) are registered") as refused:
        place(brokers, 1, factor)
    assert refused.value.code is ErrorCode.invalid_replication_factor


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.integers(1, 40), st.integers(0, 1000), st.data())
def test_copies_are_on_different_brokers_in_as_many_places_as_there_are_and_leaders_are_even(racks, count, start, data):
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(in_racks(*racks), count, factor, start=start)
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[number - 1] for number in replicas}) == min(factor, len(set(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[number] for number in range(1, len(racks) + 1)) <= 1


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_followers_are_even_over_many_partitions_too(factor):
    placed = place(SIX_IN_THREE_RACKS, 600, factor)
    copies = Counter(number for replicas in placed for number in replicas)
    assert max(copies.values()) - min(copies.values()) <= 0.05 * 100 * factor
    beside_broker_1 = {number for replicas in placed if replicas[0] == 1 for number in replicas[1:]}
    assert len(beside_broker_1) >= 4
