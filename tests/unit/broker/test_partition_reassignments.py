"""AlterPartitionReassignments and ListPartitionReassignments: begun, shown, cancelled, refused one by one."""

import asyncio

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS
from tests.unit.broker.clusters import kill, partition, partitions_of, register, set_partitions, topic_with

UNDER_WAY = partition([3, 1], isr=[1], leader=1, adding=[3], removing=[1])


@pytest.fixture
def three(broker):
    register(broker, 2, 3)
    return broker


def alter(broker, moves, version=None, **fields):
    """``moves``: {topic: {partition: replicas or None}}; the responses as {(topic, partition): (code, message)}."""
    topics = [
        {"name": name, "partitions": [{"partition_index": n, "replicas": to} for n, to in wanted.items()]}
        for name, wanted in moves.items()
    ]
    response = broker.ask(ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, **fields)
    assert response.error_code == ErrorCode.none
    return {
        (topic.name, one.partition_index): (one.error_code, one.error_message)
        for topic in response.responses
        for one in topic.partitions
    }


def listed(broker, topics=None):
    asked = topics and [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]
    response = broker.ask(LIST_PARTITION_REASSIGNMENTS, topics=asked)
    assert response.error_code == ErrorCode.none
    return {
        (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1])
def test_a_move_is_begun_shown_and_cancelled(three, version):
    topic_with(three, "a", partition([1]), partition([2]))
    assert alter(three, {"a": {0: [3]}}, version) == {("a", 0): (ErrorCode.none, None)}
    assert partitions_of(three, "a") == [UNDER_WAY, partition([2])]
    assert listed(three) == {("a", 0): ((3, 1), (3,), (1,))}
    assert alter(three, {"a": {0: None}}, version) == {("a", 0): (ErrorCode.none, None)}
    # The replica that goes again ends the epoch.
    assert partitions_of(three, "a") == [partition([1])._replace(leader_epoch=1), partition([2])]
    assert listed(three) == {}


def test_a_move_that_nobody_has_to_copy_for_is_done_at_once(three):
    topic_with(three, "a", partition([1, 2, 3]))
    assert alter(three, {"a": {0: [2, 1]}}) == {("a", 0): (ErrorCode.none, None)}
    assert partitions_of(three, "a") == [partition([2, 1], isr=[1, 2], leader=1)._replace(leader_epoch=1)]


def test_one_that_is_refused_does_not_keep_the_others_from_moving(three):
    topic_with(three, "a", partition([1]), partition([1]))
    results = alter(three, {"a": {0: [9], 1: [2], 7: [2]}, "none": {0: [1]}})
    assert {where: code for where, (code, _) in results.items()} == {
        ("a", 0): ErrorCode.invalid_replica_assignment,
        ("a", 1): ErrorCode.none,
        ("a", 7): ErrorCode.unknown_topic_or_partition,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert [one.is_reassigning for one in partitions_of(three, "a")] == [False, True]


@pytest.mark.parametrize(
    ("to", "code", "says"),
    [
        (None, ErrorCode.no_reassignment_in_progress, "No partition reassignment"),
        ([], ErrorCode.invalid_replica_assignment, "empty replica list"),
        ([2, 2], ErrorCode.invalid_replica_assignment, "more than once"),
        ([2, 8], ErrorCode.invalid_replica_assignment, "broker 8, but no such broker is registered"),
        ([-1], ErrorCode.invalid_replica_assignment, "broker -1"),
    ],
)
def test_what_cannot_be_is_refused_and_the_message_says_why(three, to, code, says):
    topic_with(three, "a", partition([1]))
    ((found, message),) = alter(three, {"a": {0: to}}).values()
    assert found == code
    assert says in message
    assert partitions_of(three, "a") == [partition([1])]


def test_a_replica_that_is_away_may_stay_and_another_that_is_away_may_not_come(three):
    topic_with(three, "a", partition([1, 2], isr=[1]))
    kill(three, 2, 3)
    assert alter(three, {"a": {0: [2, 1]}})["a", 0][0] == ErrorCode.none
    assert alter(three, {"a": {0: [2, 3]}})["a", 0][0] == ErrorCode.invalid_replica_assignment


def test_the_number_of_replicas_may_be_required_to_stay(three):
    topic_with(three, "a", partition([1, 2]), UNDER_WAY)
    moves = {"a": {0: [1, 2, 3], 1: [2]}}
    results = alter(three, moves, allow_replication_factor_change=False)
    assert results["a", 0] == (
        ErrorCode.invalid_replication_factor,
        "The replication factor would change from 2 to 3, which the request forbids.",
    )
    assert results["a", 1][0] == ErrorCode.none
    assert alter(three, moves, allow_replication_factor_change=True)["a", 0][0] == ErrorCode.none


def test_cancelling_what_only_the_new_replicas_are_in_sync_for_needs_leave_to_lose_records(three):
    only_new = UNDER_WAY._replace(isr=(3,), leader=3)
    topic_with(three, "a", only_new)
    topic_with(three, "b", only_new, unclean_leader_election_enable="true")
    results = alter(three, {"a": {0: None}, "b": {0: None}})
    assert results["a", 0][0] == ErrorCode.invalid_replica_assignment
    assert "unclean" in results["a", 0][1]
    assert results["b", 0][0] == ErrorCode.none
    assert partitions_of(three, "b") == [partition([1], epoch=1)]


def test_only_what_is_asked_for_is_listed(three):
    topic_with(three, "a", UNDER_WAY, UNDER_WAY, partition([1]))
    topic_with(three, "b", UNDER_WAY)
    assert listed(three).keys() == {("a", 0), ("a", 1), ("b", 0)}
    assert listed(three, {"a": [1, 2, 5, -1], "none": [0]}).keys() == {("a", 1)}


def test_two_requests_at_once_both_take_effect(three):
    topic_with(three, "a", partition([1]), partition([1]))

    async def both():
        moves = ([{"name": "a", "partitions": [{"partition_index": n, "replicas": [2]}]}] for n in (0, 1))
        return await asyncio.gather(
            *(three.ask_async(ALTER_PARTITION_REASSIGNMENTS, topics=topics) for topics in moves)
        )

    three.run(both())
    assert all(one.is_reassigning for one in partitions_of(three, "a"))


def test_asking_twice_for_the_same_changes_nothing_the_second_time(three):
    topic_with(three, "a", partition([1]))
    alter(three, {"a": {0: [3]}})
    version = three.image.topics["a"].version
    alter(three, {"a": {0: [3]}})
    assert three.image.topics["a"].version == version
    set_partitions(three, "a", UNDER_WAY._replace(isr=(1, 3)))
    alter(three, {"a": {0: [3]}})
    assert partitions_of(three, "a") == [partition([3], epoch=1)]
