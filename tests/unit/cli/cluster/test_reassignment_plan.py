"""Plans of who holds what: even, apart, and with as little moved as can be."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.ids import TopicPartition
from skep.cli.cluster.reassignment_plan import (
    Assignment,
    drained,
    parse_brokers,
    plan_document,
    read_plan,
    rotated,
    spread,
)
from skep.cli.failures import UsageError

APART = {1: "a", 2: "b", 3: "c", 4: "d"}


def orders(*replicas: tuple[int, ...]) -> Assignment:
    return {TopicPartition("orders", number): held for number, held in enumerate(replicas)}


def replicas_of(assignment: Assignment) -> "Counter[int]":
    return Counter(broker for replicas in assignment.values() for broker in replicas)


def leaders_of(assignment: Assignment) -> "Counter[int]":
    return Counter(replicas[0] for replicas in assignment.values())


def test_the_same_brokers_lead_in_turn() -> None:
    partitions = [TopicPartition("orders", number) for number in range(4)]
    assert rotated(partitions, (1, 2, 3)) == orders((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3))


def test_one_partition_gets_the_brokers_in_the_order_given() -> None:
    assert rotated([TopicPartition("orders", 5)], (2, 3, 1)) == {TopicPartition("orders", 5): (2, 3, 1)}


def test_what_is_even_already_stays() -> None:
    assert spread(orders((1, 2), (2, 3), (3, 1)), {1: "a", 2: "b", 3: "c"}) == {}


def test_a_new_broker_gets_its_share_and_no_more_is_moved() -> None:
    before = orders((1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2))
    after = {**before, **spread(before, APART)}
    assert sorted(replicas_of(after).values()) == [3, 3, 3, 3]
    assert max(leaders_of(after).values()) == 2
    copied = sum(len(set(after[where]) - set(before[where])) for where in before)
    assert copied == 3, "the share of the new one, and nothing else"


def test_a_replication_factor_grows_on_the_emptiest_brokers() -> None:
    after = spread(orders((1,), (1,), (1,)), {1: "a", 2: "b", 3: "c"}, 2)
    assert replicas_of(after) == {1: 2, 2: 2, 3: 2}
    assert leaders_of(after) == {1: 1, 2: 1, 3: 1}


def test_a_replication_factor_shrinks() -> None:
    after = spread(orders((1, 2, 3), (2, 3, 1), (3, 1, 2)), {1: "a", 2: "b", 3: "c"}, 1)
    assert after == orders((1,), (2,), (3,))


def test_replicas_go_to_different_racks_before_they_go_to_emptier_brokers() -> None:
    places = {1: "a", 2: "a", 3: "b"}
    before = {**orders((1,)), TopicPartition("other", 0): (3,), TopicPartition("other", 1): (3,)}
    after = spread(before, places, 2)
    for replicas in ({**before, **after}).values():
        assert {places[broker] for broker in replicas} == {"a", "b"}


def test_too_few_brokers_are_a_refusal() -> None:
    with pytest.raises(UsageError, match="orders-0 needs 3 brokers for its replicas, and only 2 are available"):
        spread(orders((1, 2, 3)), {1: "a", 2: "b"})
    with pytest.raises(UsageError, match="orders-0 needs 2 brokers for its replicas, and only one is available"):
        drained(orders((1, 2)), 2, {1: "a", 2: "b"})


def test_draining_touches_only_what_the_broker_holds() -> None:
    before = orders((1, 2), (2, 3), (3, 1))
    assert drained(before, 2, {1: "a", 2: "b", 3: "c"}) == orders((1, 3), (3, 1))


def test_draining_gives_leadership_to_a_replica_that_is_in_place() -> None:
    plan = drained(orders((3, 1), (3, 2), (3, 1)), 3, APART)
    for where, replicas in plan.items():
        assert replicas[0] in orders((3, 1), (3, 2), (3, 1))[where]


def test_a_broker_that_is_gone_can_be_drained() -> None:
    assert drained(orders((9, 1)), 9, {1: "a", 2: "b"}) == orders((1, 2))


def test_a_broker_that_holds_nothing_is_drained() -> None:
    assert drained(orders((1, 2)), 3, APART) == {}


assignments = st.lists(
    st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(tuple), min_size=1, max_size=30
).map(lambda rows: orders(*rows))
brokers_with_racks = st.dictionaries(st.integers(1, 8), st.sampled_from("abc"), min_size=3, max_size=8)


@given(assignments, brokers_with_racks)
def test_a_spread_plan_is_even_complete_and_settled(before: Assignment, places: dict[int, str]) -> None:
    after = {**before, **spread(before, places)}
    for where, replicas in after.items():
        assert len(replicas) == len(before[where])
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= set(places)
    assert spread(after, places) == {}, "a plan carried out leaves nothing to plan"


@given(assignments, st.integers(3, 8))
def test_without_racks_brokers_differ_by_one_replica_at_the_most(before: Assignment, brokers: int) -> None:
    after = {**before, **spread(before, {broker: str(broker) for broker in range(1, brokers + 1)})}
    held = [replicas_of(after)[broker] for broker in range(1, brokers + 1)]
    assert max(held) - min(held) <= 1


@given(assignments, st.integers(1, 6), brokers_with_racks)
def test_a_drained_broker_holds_nothing_and_no_other_loses_a_replica(
    before: Assignment, broker: int, places: dict[int, str]
) -> None:
    places = {**places, 7: "a", 8: "b", 9: "c"}
    plan = drained(before, broker, places)
    assert set(plan) == {where for where, replicas in before.items() if broker in replicas}
    for where, replicas in plan.items():
        assert broker not in replicas
        assert len(set(replicas)) == len(before[where])
        assert set(before[where]) - {broker} <= set(replicas)


def test_ten_thousand_partitions_are_planned_in_seconds() -> None:
    before = orders(*[(1 + n % 3, 1 + (n + 1) % 3, 1 + (n + 2) % 3) for n in range(10_000)])
    after = {**before, **spread(before, {broker: str(broker) for broker in range(1, 7)})}
    assert set(replicas_of(after).values()) == {5_000}


def test_a_plan_is_read_as_it_is_written() -> None:
    plan = orders((1, 2), (2, 1))
    assert read_plan(json.dumps(plan_document(plan)), "plan.json") == plan


def test_a_plan_of_kafkas_tool_is_read() -> None:
    text = '{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[5,6],"log_dirs":["any","any"]}]}'
    assert read_plan(text, "plan.json") == orders((5, 6))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "plan.json is not a plan: Expecting value"),
        ("[]", "plan.json is not a plan; expected"),
        ("{}", "plan.json is not a plan; expected"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "expected"),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', '"0" is not the number of a partition'),
        ('{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}', "-1 is not the number of a partition"),
        ('{"partitions": [{"topic": 5, "partition": 0, "replicas": [1]}]}', "5 is not the name of a topic"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "has no replica, or one broker twice"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}',
            "has no replica, or one broker twice",
        ),
        ('{"version": 2, "partitions": []}', "version 2 is not supported, only version 1"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
            "plan.json names a partition twice",
        ),
    ],
)
def test_what_is_no_plan_is_told_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_plan(text, "plan.json")
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "1,", "1,one", "1,1", "-1"])
def test_what_is_no_list_of_brokers(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of different broker ids like 1,2,3"):
        parse_brokers(text)


def test_a_list_of_brokers_keeps_its_order() -> None:
    assert parse_brokers("3, 1,2") == (3, 1, 2)
