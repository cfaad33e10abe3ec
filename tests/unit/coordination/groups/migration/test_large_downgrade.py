"""The way back of a large consumer group to a classic group: prepared in slices, while the group goes on."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import run_at_once
from skep.coordination import background
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_records import encoded_in_slices, stable_record
from skep.coordination.groups.migration import large_downgrade, upgrade
from tests.unit.coordination.groups.classic_groups import logged_state
from tests.unit.coordination.groups.consumer_clients import GROUP, World
from tests.unit.coordination.groups.mixed_clients import Classic, run

MEMBERS = 6


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(large_downgrade, "SMALL_GROUP", MEMBERS - 2)
    monkeypatch.setattr(large_downgrade, "MEMBERS_AT_ONCE", 1)
    monkeypatch.setattr(large_downgrade, "SESSIONS_AT_ONCE", 1)
    monkeypatch.setattr(background, "STEPS_AT_ONCE", 1)
    return World(t=MEMBERS + 1)


@pytest.fixture
def members(world):
    return [Classic(world, "t").join() for _ in range(MEMBERS)]


@pytest.fixture
def newcomer(world, members):
    run(world, *members)
    newcomer = world.client("n", "t")
    run(world, *members, newcomer, rounds=30)
    assert kind(world) == "consumer"
    assert world.group().state_name == "Stable"
    return newcomer


def kind(world):
    return world.driver.shard.groups[GROUP].type_name


def one_step(world):
    """The next operation of the timers that are due, and no more."""
    operation = next(world.driver.timers.take_due(), None)
    if operation is not None:
        world.driver.submit(operation)
    return operation is not None


def steps_until_classic(world):
    steps = 0
    while kind(world) == "consumer":
        assert one_step(world)
        steps += 1
    return steps


def check_replayed(world):
    """A replay of the log leaves what the downgrade has installed; it rebalances, which is not in the log."""
    again = world.driver.replayed()
    now, before = world.driver.shard.groups[GROUP], again.groups[GROUP]
    assert isinstance(before, ClassicGroup)
    assert logged_state(now)[2:] == logged_state(before)[2:]
    assert world.driver.shard.memory.bytes == again.memory.bytes


def check_all_go_on(world, members):
    run(world, *members, rounds=30)
    assert kind(world) == "classic"
    assert world.driver.shard.groups[GROUP].state_name == "Stable"
    owned = sorted(number for member in members for number in member.partitions())
    assert owned == list(range(MEMBERS + 1))


def test_the_leave_is_carried_out_at_once_and_others_have_their_turn_for_each_member(world, members, newcomer):
    epoch = world.group().group_epoch
    newcomer.leave()
    assert kind(world) == "consumer"
    assert world.group().members.keys() == {one.member_id for one in members}
    assert world.group().group_epoch == epoch
    logged = len(world.driver.log)
    assert steps_until_classic(world) >= MEMBERS
    group = world.driver.shard.groups[GROUP]
    assert group.state_name == "PreparingRebalance"
    assert group.generation_id == epoch
    assert len(world.driver.log) == logged + 3 * MEMBERS + 3
    check_replayed(world)
    check_all_go_on(world, members)


def test_the_record_is_the_one_that_is_written_at_once(world, members, newcomer):
    newcomer.leave()
    steps_until_classic(world)
    group = world.driver.replayed().groups[GROUP]
    assignments = {member_id: member.assignment for member_id, member in group.members.items()}
    said = (group, group.members.values(), group.leader_id, assignments, group.state_timestamp)
    key, value = stable_record(*said)
    assert world.driver.log[-1][:2] == (key.encode(), value.encode()) == run_at_once(encoded_in_slices(*said))


def test_members_are_served_meanwhile_and_their_heartbeats_do_not_disturb_it(world, members, newcomer):
    newcomer.leave()
    for _ in range(3):
        one_step(world)
        for member in members:
            member.step()
            assert member.error is ErrorCode.none
    assert steps_until_classic(world) <= MEMBERS + 2
    check_all_go_on(world, members)
    assert not any(ErrorCode.illegal_generation in member.errors for member in members)


def test_members_that_change_meanwhile_are_copied_again(world, members, newcomer):
    newcomer.leave()
    for _ in range(4):
        one_step(world)
    changed = [members[0], members[-1]]
    for member in changed:
        member.topics = ("t", "u")
        member.join()
    steps_until_classic(world)
    check_replayed(world)
    group = world.driver.shard.groups[GROUP]
    for member in changed:
        assert b"u" in group.members[member.member_id].metadata(group.protocol_name)


@pytest.mark.parametrize("leaves_last", [True, False])
def test_members_that_leave_or_come_meanwhile_are_not_left_over_or_out(world, members, newcomer, leaves_last):
    newcomer.leave()
    for _ in range(4):
        one_step(world)
    members.pop(-1 if leaves_last else 0).leave()
    late = Classic(world, "t").join()
    late.step()
    late.step()
    members.append(late)
    steps_until_classic(world)
    assert world.driver.shard.groups[GROUP].members.keys() == {one.member_id for one in members}
    check_replayed(world)
    check_all_go_on(world, members)


def test_a_downgrade_ends_in_a_group_that_does_not_rest(world, members, newcomer, monkeypatch):
    """A member changes at each step: each time only this one is copied again."""
    monkeypatch.setattr(large_downgrade, "MEMBERS_AT_ONCE", 2)
    newcomer.leave()
    steps = 0
    while kind(world) == "consumer":
        members[steps % 2].topics = ("t", f"u{steps}")
        members[steps % 2].join()
        one_step(world)
        steps += 1
        assert steps < 5 * MEMBERS
    check_replayed(world)


def test_a_member_of_the_new_protocol_that_joins_makes_it_unnecessary(world, members, newcomer):
    newcomer.leave()
    one_step(world)
    other = world.client("o", "t").join()
    run(world, *members, other, rounds=30)
    assert kind(world) == "consumer"
    assert world.group().state_name == "Stable"
    other.leave()
    check_all_go_on(world, members)


def test_a_group_that_may_not_become_a_classic_group_any_more_shares_what_is_free(world, members, newcomer):
    newcomer.leave()
    one_step(world)
    world.set_option("group.consumer.migration.policy", "upgrade")
    run(world, *members, rounds=30)
    assert kind(world) == "consumer"
    assert world.group().state_name == "Stable"
    assert sorted(number for member in members for number in member.partitions()) == list(range(MEMBERS + 1))


def test_a_coordinator_that_loads_such_a_group_begins_anew(world, members, newcomer):
    newcomer.leave()
    for _ in range(3):
        one_step(world)
    world.driver.restart()
    assert kind(world) == "consumer"
    steps_until_classic(world)
    assert world.driver.shard.groups[GROUP].state_name == "PreparingRebalance"
    check_replayed(world)
    check_all_go_on(world, members)


def test_a_group_with_a_member_of_the_new_protocol_is_left_alone_by_a_restart(world, members, newcomer):
    world.driver.restart()
    run(world, *members, newcomer)
    assert kind(world) == "consumer"


def test_a_classic_group_that_cannot_be_written_is_tried_again_after_a_while(world, members, newcomer):
    epoch = world.group().group_epoch
    newcomer.leave()
    world.driver.refuse_writes = KafkaError(ErrorCode.unknown_server_error)
    world.driver.pass_ms(2_000)
    assert kind(world) == "consumer"
    assert world.group().group_epoch == epoch
    world.driver.refuse_writes = None
    run(world, *members, rounds=30)
    assert kind(world) == "consumer"
    assert world.group().state_name == "Stable"
    assert sorted(number for member in members for number in member.partitions()) == list(range(MEMBERS + 1))
    epoch = world.group().group_epoch
    members.pop().leave()
    assert world.group().group_epoch == epoch + 1  # as any leave of a consumer group
    run(world, *members, rounds=30)
    check_all_go_on(world, members)


def test_every_member_has_a_session_afterwards(world, members, newcomer):
    newcomer.leave()
    steps_until_classic(world)
    assert large_downgrade.sessions_key(GROUP) in world.driver.timers
    with pytest.raises(KafkaError) as caught:
        world.client("m", "t").join()  # while timers of the consumer group are left
    assert caught.value.code is ErrorCode.coordinator_load_in_progress
    while one_step(world):
        pass
    timers = world.driver.timers
    assert all(("classic session", GROUP, member.member_id) in timers for member in members)
    assert not any((kind, GROUP, one.member_id) in timers for one in members for kind in ("session", "join", "sync"))
    world.driver.pass_ms(100_000)
    assert world.driver.shard.groups[GROUP].is_empty


def test_a_static_member_that_comes_back_with_the_classic_protocol_disturbs_nobody(world, members):
    run(world, *members)
    static = world.client("n", "t", instance_id="i")
    run(world, *members, static, rounds=30)
    static.leave(for_a_while=True)
    epoch = world.group().group_epoch
    back = Classic(world, "t", instance_id="i").join()
    assert kind(world) == "consumer"
    steps_until_classic(world)
    group = world.driver.shard.groups[GROUP]
    assert group.state_name == "Stable"
    assert group.generation_id == epoch
    check_replayed(world)
    check_all_go_on(world, [*members, back])


def test_a_small_group_is_downgraded_at_once(world, members, newcomer):
    for _ in range(2):
        members.pop().leave()
    run(world, *members, newcomer, rounds=30)
    newcomer.leave()
    assert kind(world) == "classic"


def test_an_upgrade_follows_when_the_sessions_have_begun(world, members, newcomer):
    newcomer.leave()
    steps_until_classic(world)
    run(world, *members)
    shard = world.driver.shard
    made = run_at_once(upgrade.upgrade(shard, shard.groups[GROUP]))
    assert made.group.members.keys() == shard.groups[GROUP].members.keys()
