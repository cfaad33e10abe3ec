"""Static members of consumer groups: they leave for a while, come back under another id, and keep their partitions."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from tests.unit.coordination.groups.consumer_clients import SESSION_MS, World, settle

JOINING = {"rebalance_timeout_ms": 60_000, "topic_names": frozenset({"t"}), "owned": {}}


@pytest.fixture
def world():
    return World(t=4)


def two_members(world):
    static, other = world.client("s1", "t", instance_id="i"), world.client("o", "t")
    settle(static, other)
    return static, other


def test_a_static_member_that_comes_back_has_what_it_had_and_nobody_else_notices(world):
    static, other = two_members(world)
    had, epoch = static.partitions("t"), world.group().group_epoch
    assert static.leave(for_a_while=True)["member_epoch"] == -2
    settle(other, rounds=3)
    assert len(other.partitions("t")) == 2
    again = world.client("s2", "t", instance_id="i").join()
    assert again.partitions("t") == had
    assert world.group().group_epoch == epoch
    assert set(world.group().members) == {"s2", "o"}
    settle(again, other, rounds=3)
    assert world.group().state_name == "Stable"


def test_a_static_member_that_does_not_come_back_is_fenced_after_its_session(world):
    static, other = two_members(world)
    static.leave(for_a_while=True)
    world.driver.pass_ms(SESSION_MS - 1)
    other.beat()
    world.driver.pass_ms(1)
    assert set(world.group().members) == {"o"}


def test_the_timers_of_the_member_that_was_replaced_do_not_touch_its_successor(world):
    static, other = two_members(world)
    world.driver.pass_ms(SESSION_MS - 1_000)
    other.beat()
    static.leave(for_a_while=True)
    again = world.client("s2", "t", instance_id="i").join()
    world.driver.pass_ms(SESSION_MS - 1)
    assert set(world.group().members) == {"s2", "o"}
    assert ("session", "g", "s1") not in world.driver.timers
    again.beat()


def test_a_static_member_that_leaves_for_good_is_gone(world):
    static, other = two_members(world)
    static.leave()
    settle(other, rounds=3)
    assert other.partitions("t") == {0, 1, 2, 3}
    assert not world.group().static_ids


def test_an_instance_that_is_in_use_is_not_given_away(world):
    two_members(world)
    with pytest.raises(KafkaError) as caught:
        world.beat("thief", 0, instance_id="i", **JOINING)
    assert caught.value.code is ErrorCode.unreleased_instance_id


def test_a_static_join_whose_response_was_lost_is_repeated(world):
    static = world.client("s1", "t", instance_id="i")
    static.beat(is_response_lost=True)
    static.join()
    assert static.partitions("t") == {0, 1, 2, 3}


def test_a_replaced_member_is_told_that_it_is_fenced(world):
    static, _ = two_members(world)
    static.leave(for_a_while=True)
    world.client("s2", "t", instance_id="i").join()
    for epoch in (1, -1, -2):
        with pytest.raises(KafkaError) as caught:
            world.beat("s1", epoch, instance_id="i")
        assert caught.value.code is ErrorCode.fenced_instance_id
    with pytest.raises(KafkaError) as caught:
        world.beat("s1", 3, instance_id="unheard-of")
    assert caught.value.code is ErrorCode.unknown_member_id


def test_what_a_static_member_was_giving_up_is_free_when_it_leaves_for_a_while(world):
    static = world.client("s1", "t", instance_id="i").join()
    static.is_slow = True
    other = world.client("o", "t").join()
    static.beat()
    static.leave(for_a_while=True)
    settle(other, rounds=2)
    assert other.partitions("t") == {2, 3}
    again = world.client("s2", "t", instance_id="i").join()
    assert again.partitions("t") == {0, 1}


def test_a_static_member_may_come_back_with_another_subscription(world):
    world.create("u", 2)
    static, other = two_members(world)
    static.leave(for_a_while=True)
    again = world.client("s2", "u", instance_id="i").join()
    settle(again, other)
    assert again.partitions("u") == {0, 1}
    assert not again.partitions("t")
    assert other.partitions("t") == {0, 1, 2, 3}


def test_a_static_member_that_comes_back_with_an_expression_has_no_names_left(world):
    world.create("u", 2)
    static, other = two_members(world)
    static.leave(for_a_while=True)
    again = world.client("s2", regex="u", instance_id="i").join()
    settle(again, other)
    assert again.partitions("u") == {0, 1}
    assert not again.partitions("t")
