"""Share groups with one active member: skep.share.members is exclusive or failover."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from tests.unit.coordination.groups.consumer_clients import GROUP
from tests.unit.coordination.groups.share_clients import SESSION_MS, ShareMemberClient, ShareWorld, logged_state


def world_of(members: str, **topics: int) -> ShareWorld:
    world = ShareWorld(**topics)
    set_members(world, members)
    return world


def set_members(world: ShareWorld, members: str) -> None:
    world.image = world.image.with_group_config(
        GROUP, {"skep.share.members": members, "share.assignment.interval.ms": "0"}
    )


def active(world: ShareWorld, *members: ShareMemberClient, topic: str = "t") -> list[str]:
    return [member.member_id for member in members if member.beat().partitions(topic)]


def test_the_first_member_has_all_partitions_and_the_others_stand_by():
    world = world_of("failover", t=4, u=2)
    members = [world.member(name, "t u").beat() for name in "cab"]
    assert active(world, *members) == active(world, *members, topic="u") == ["c"]
    assert members[0].partitions("t") == {0, 1, 2, 3}
    # A stand-by takes over with a heartbeat, so it sends them often.
    assert world.beat("a", members[1].epoch)["heartbeat_interval"].total_seconds() == 1
    assert world.beat("c", members[0].epoch)["heartbeat_interval"].total_seconds() == 5


def test_stand_bys_take_over_in_the_order_in_which_they_came():
    world = world_of("failover", t=3)
    members = [world.member(name, "t").beat() for name in "cab"]
    members[0].leave()
    assert active(world, *members[1:]) == ["a"]
    # Whoever comes back stands behind the others.
    members[0].beat()
    assert active(world, *members) == ["a"]
    members[1].leave()
    assert active(world, members[0], members[2]) == ["b"]


def test_a_stand_by_takes_over_when_the_session_of_the_active_member_ends():
    world = world_of("failover", t=3)
    first, second = world.member("a", "t").beat(), world.member("b", "t").beat()
    world.driver.pass_ms(SESSION_MS - 1)
    assert active(world, second) == []
    world.driver.pass_ms(1)
    assert second.beat().partitions("t") == {0, 1, 2}
    assert active(world, first, second) == ["b"]


def test_the_order_outlives_new_subscriptions_and_a_restart():
    world = world_of("failover", t=1, u=1)
    first, second, third = (world.member(name, "t").beat() for name in "abc")
    # These write the record of the member anew, behind those of the others.
    for member in (second, first):
        member.topics = "t u"
        member.beat(everything=True)
    assert active(world, first, second, third) == ["a"]
    world.driver.restart()
    assert active(world, first, second, third) == ["a"]
    first.leave()
    assert active(world, second, third) == ["b"]


def test_a_topic_that_the_active_member_does_not_read_goes_to_the_first_that_does():
    world = world_of("failover", t=2, u=2)
    first, second, third = world.member("a", "t"), world.member("b", "t u"), world.member("c", "u")
    for member in (first, second, third):
        member.beat()
    assert active(world, first, second, third) == ["a"]
    assert active(world, first, second, third, topic="u") == ["b"]


def test_nobody_joins_an_exclusive_group_that_has_a_member():
    world = world_of("exclusive", t=2)
    first, second = world.member("a", "t").beat(), world.member("b", "t")
    with pytest.raises(KafkaError, match=r"is exclusive .* and has a member") as caught:
        second.beat()
    assert caught.value.code is ErrorCode.group_max_size_reached
    assert "b" not in world.share_group().members
    # The member itself may join again: the response to its first heartbeat may have been lost.
    first.epoch = 0
    assert first.beat().partitions("t") == {0, 1}
    first.leave()
    assert second.beat().partitions("t") == {0, 1}
    world.driver.pass_ms(SESSION_MS)
    assert first.beat().partitions("t") == {0, 1}


def test_a_change_of_the_option_takes_effect_with_the_next_heartbeats():
    world = world_of("shared", t=4)
    members = [world.member(name, "t").beat() for name in "abc"]
    assert active(world, *members, *members) == ["a", "b", "c"] * 2
    set_members(world, "failover")
    assert active(world, *members, *members)[-1:] == ["a"]
    assert active(world, *members) == ["a"]
    written = len(world.driver.log)
    assert active(world, *members) == ["a"]
    assert len(world.driver.log) == written
    set_members(world, "exclusive")
    assert active(world, *members) == ["a"]
    set_members(world, "shared")
    active(world, *members)
    assert active(world, *members) == ["a", "b", "c"]


@pytest.mark.parametrize(("before", "after"), [("shared", "failover"), ("failover", "shared")])
def test_a_change_of_the_option_is_noticed_by_the_next_coordinator(before, after):
    world = world_of(before, t=4)
    members = [world.member(name, "t").beat() for name in "abc"]
    active(world, *members)
    set_members(world, after)
    world.driver.restart()
    active(world, *members)
    assert active(world, *members) == (["a"] if after == "failover" else ["a", "b", "c"])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["beat", "leave", "end", "restart"])), max_size=25))
def test_the_member_that_came_first_has_everything(steps):
    world = world_of("failover", t=3)
    clients = {name: world.member(name, "t") for name in "abcd"}
    came: list[str] = []
    for name, step in steps:
        if step == "beat":
            clients[name].beat()
            came += [name] if name not in came else []
        elif step == "leave" and name in came:
            clients[name].leave()
            came.remove(name)
        elif step == "end" and came:
            # All others send heartbeats, so only this one's session ends.
            world.driver.pass_ms(SESSION_MS // 2)
            for other in set(came) - {name}:
                clients[other].beat()
            world.driver.pass_ms(SESSION_MS // 2 + 1)
            came = [other for other in came if other != name]
            clients[name].epoch = 0
        elif step == "restart":
            before = {group_id: logged_state(world.share_group(group_id)) for group_id in world.driver.shard.groups}
            world.driver.restart()
            assert before == {one: logged_state(world.share_group(one)) for one in world.driver.shard.groups}
        for _ in range(2):
            holders = [one for one in came if clients[one].beat().partitions("t")]
        if came:
            assert holders == came[:1]
            assert clients[came[0]].partitions("t") == {0, 1, 2}
