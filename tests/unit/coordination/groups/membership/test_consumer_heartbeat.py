"""Consumer groups (KIP-848): joining, staying, epochs, subscriptions, and what members are told."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.consumer.consumer_member import MemberState
from tests.unit.coordination.groups.consumer_clients import (
    GROUP,
    JOINING,
    SESSION_MS,
    World,
    refusal,
    settle,
)


def test_the_first_member_gets_everything_at_once():
    world = World(t=3)
    response = world.beat("a", 0, **JOINING)
    assert response["member_epoch"] == 1
    assert response["assignment"] == {"topic_partitions": [{"topic_id": world.topic_id("t"), "partitions": [0, 1, 2]}]}
    assert response["heartbeat_interval"].total_seconds() == 5
    assert world.group().state_name == "Stable"


def test_a_heartbeat_without_news_writes_nothing_and_tells_nothing():
    world = World(t=3)
    world.beat("a", 0, **JOINING)
    written = len(world.driver.log)
    response = world.beat("a", 1)
    assert response["assignment"] is None
    assert len(world.driver.log) == written


def test_a_full_heartbeat_is_told_everything():
    world = World(t=1)
    world.beat("a", 0, **JOINING)
    response = world.beat("a", 1, **{**JOINING, "owned": {world.topic_id("t"): frozenset({0})}})
    assert response["assignment"]["topic_partitions"][0]["partitions"] == [0]


def test_version_0_is_given_a_member_id():
    world = World(t=1)
    response = world.beat("", 0, version=0, **JOINING)
    assert len(response["member_id"]) == 22
    assert world.beat(response["member_id"], response["member_epoch"], version=0)["member_epoch"] == 1


def test_a_partition_moves_only_when_its_owner_has_let_go_of_it():
    world = World(t=4)
    first = world.client("a", "t").join()
    first.is_slow = True
    second = world.client("b", "t").join()
    assert second.partitions("t") == set()
    first.beat()
    assert first.epoch == 1
    assert first.partitions("t") == {0, 1, 2, 3}
    assert world.group().members["a"].state is MemberState.UNREVOKED_PARTITIONS
    second.beat()
    assert second.partitions("t") == set()
    assert second.epoch == 2
    assert world.group().state_name == "Reconciling"

    first.let_go()
    first.beat()
    second.beat()
    assert first.epoch == second.epoch == 2
    assert first.partitions("t") == {0, 1}
    assert second.partitions("t") == {2, 3}
    settle(first, second)
    assert world.group().state_name == "Stable"


def test_a_member_that_does_not_let_go_in_time_is_fenced():
    world = World(t=2)
    first = world.client("a", "t", rebalance_timeout_ms=20_000).join()
    first.is_slow = True
    second = world.client("b", "t").join()
    first.beat()
    for _ in range(4):
        world.driver.pass_ms(5_000)
        if "a" in world.group().members:
            first.beat()
        second.beat()
    assert set(world.group().members) == {"b"}
    second.beat()
    assert second.partitions("t") == {0, 1}
    assert first.beat() is None
    assert first.epoch == 0
    assert first.join().epoch > 0


def test_letting_go_in_time_stops_the_rebalance_timer():
    world = World(t=2)
    first = world.client("a", "t", rebalance_timeout_ms=20_000).join()
    second = world.client("b", "t").join()
    settle(first, second, rounds=4)
    for _ in range(8):
        world.driver.pass_ms(5_000)
        settle(first, second, rounds=1)
    assert set(world.group().members) == {"a", "b"}


def test_a_silent_member_is_fenced_after_its_session():
    world = World(t=2)
    world.client("a", "t").join()
    second = world.client("b", "t").join()
    world.driver.pass_ms(SESSION_MS - 1)
    assert set(world.group().members) == {"a", "b"}
    second.beat()
    world.driver.pass_ms(1)
    assert set(world.group().members) == {"b"}
    settle(second, rounds=2)
    assert second.partitions("t") == {0, 1}


def test_a_group_may_have_a_session_and_an_interval_of_its_own():
    world = World(t=1)
    world.image = world.image.with_group_config(
        GROUP, {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "10000"}
    )
    assert world.beat("a", 0, **JOINING)["heartbeat_interval"].total_seconds() == 10
    world.driver.pass_ms(49_999)
    assert "a" in world.group().members
    world.driver.pass_ms(1)
    assert world.group().is_empty


def test_a_group_config_outside_the_limits_of_the_broker_is_bounded():
    world = World(t=1)
    world.image = world.image.with_group_config(GROUP, {"consumer.heartbeat.interval.ms": "1"})
    assert world.beat("a", 0, **JOINING)["heartbeat_interval"].total_seconds() == 5


def test_the_last_member_to_leave_leaves_an_empty_group():
    world = World(t=1)
    client = world.client("a", "t").join()
    assert client.leave()["member_epoch"] == -1
    group = world.group()
    assert group.state_name == "Empty"
    assert group.group_epoch == group.assignment_epoch == 2
    assert not group.owners
    assert not group.targets
    assert client.join().epoch == 3


def test_a_lost_response_is_told_again():
    world = World(t=4)
    first = world.client("a", "t").join()
    second = world.client("b", "t").join()
    first.beat()
    first.beat(is_response_lost=True)
    assert first.epoch == 1
    assert world.group().members["a"].member_epoch == 2
    first.beat(is_response_lost=True)
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert second.partitions("t") == {2, 3}


def test_a_join_whose_response_was_lost_is_repeated_without_a_second_member():
    world = World(t=1)
    client = world.client("a", "t")
    client.beat(is_response_lost=True)
    client.join()
    assert client.epoch == 1
    assert client.partitions("t") == {0}
    assert len(world.group().members) == 1


def test_a_member_one_epoch_behind_that_has_more_than_it_was_told_is_fenced():
    world = World(t=2)
    topic = world.topic_id("t")
    world.beat("a", 0, **JOINING)
    world.beat("b", 0, **JOINING)
    world.beat("a", 1)
    world.beat("a", 1, owned={topic: frozenset({0})})
    assert world.group().members["a"].member_epoch == 2
    assert refusal(world, "a", 1, owned={topic: frozenset({0, 1})}) is ErrorCode.fenced_member_epoch
    assert refusal(world, "a", 1) is ErrorCode.fenced_member_epoch
    assert world.beat("a", 1, owned={topic: frozenset({0})})["member_epoch"] == 2


def test_an_epoch_that_never_was_is_fenced():
    world = World(t=1)
    world.beat("a", 0, **JOINING)
    assert refusal(world, "a", 2, owned={}) is ErrorCode.fenced_member_epoch


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (("", 0), ErrorCode.invalid_request),
        (("", 1), ErrorCode.invalid_request),
        (("a", -3), ErrorCode.invalid_request),
        (("a", -2), ErrorCode.invalid_request),
        (("a", 0, ""), ErrorCode.invalid_request),
        (("a", 1, "nobody"), ErrorCode.group_id_not_found),
        (("a", -1, "nobody"), ErrorCode.group_id_not_found),
        (("other", 1), ErrorCode.unknown_member_id),
        (("other", -1), ErrorCode.unknown_member_id),
    ],
)
def test_what_makes_no_sense_is_refused(said, code):
    world = World(t=1)
    world.beat("a", 0, **JOINING)
    assert refusal(world, *said) is code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"owned": {1: frozenset({0})}}, ErrorCode.invalid_request),
        ({"topic_names": None}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": ""}, ErrorCode.invalid_request),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"topic_names": None, "topic_regex": "(a"}, ErrorCode.invalid_regular_expression),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_leaves_no_group(change, code):
    world = World(t=1)
    assert refusal(world, "a", 0, **{**JOINING, **change}) is code
    assert not world.driver.shard.groups
    assert not world.driver.log


def test_a_group_takes_only_so_many_members():
    world = World(t=1)
    world.set_option("group.consumer.max.size", "2")
    world.beat("a", 0, instance_id="i", **JOINING)
    world.beat("b", 0, **JOINING)
    assert refusal(world, "c", 0, **JOINING) is ErrorCode.group_max_size_reached
    assert world.beat("b", 0, **JOINING)["member_epoch"] > 0
    world.beat("a", -2, instance_id="i")
    assert world.beat("a2", 0, instance_id="i", **JOINING)["member_epoch"] > 0


def test_a_shard_takes_only_so_many_groups():
    world = World(t=1)
    world.set_option("skep.max.groups", "1")
    world.beat("a", 0, "one", **JOINING)
    assert refusal(world, "a", 0, "two", **JOINING) is ErrorCode.policy_violation


# Offsets.


def committed(world, member_id, epoch, *, version=9, is_transactional=False, instance_id=None):
    world.group().check_offset_commit(member_id, instance_id, epoch, is_transactional=is_transactional, version=version)


def test_only_members_of_this_epoch_commit_and_read():
    world = World(t=1)
    world.client("a", "t").join()
    group = world.group()
    committed(world, "a", 1)
    group.check_offset_fetch("a", 1)
    group.check_offset_fetch(None, -1)
    for check, code in (
        (lambda: committed(world, "a", 2), ErrorCode.stale_member_epoch),
        (lambda: committed(world, "a", 0), ErrorCode.stale_member_epoch),
        (lambda: committed(world, "b", 1), ErrorCode.unknown_member_id),
        (lambda: committed(world, "", -1), ErrorCode.unknown_member_id),
        (lambda: committed(world, "a", 1, version=8), ErrorCode.unsupported_version),
        (lambda: group.check_offset_fetch("a", 0), ErrorCode.stale_member_epoch),
        (lambda: group.check_offset_fetch("b", 1), ErrorCode.unknown_member_id),
    ):
        with pytest.raises(KafkaError) as caught:
            check()
        assert caught.value.code is code


def test_anybody_sets_the_offsets_of_an_empty_group():
    world = World(t=1)
    world.client("a", "t").join().leave()
    committed(world, "", -1)
    with pytest.raises(KafkaError):
        committed(world, "a", 1)


def test_a_transaction_need_not_say_for_whom_it_commits():
    world = World(t=1)
    world.client("a", "t").join()
    committed(world, "", -1, is_transactional=True)
    committed(world, "a", 1, is_transactional=True, version=3)
    with pytest.raises(KafkaError):
        committed(world, "a", 0, is_transactional=True)
