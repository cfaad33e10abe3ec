"""The upgrade of a large classic group: prepared in slices, and written at once."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import run_at_once
from skep.coordination.groups.membership import consumer_departure
from skep.coordination.groups.membership.consumer_heartbeat import HeartbeatRequest, upgrade_and_join
from skep.coordination.groups.migration import upgrade
from tests.unit.coordination.groups.consumer_clients import GROUP, JOINING, World, logged_state
from tests.unit.coordination.groups.mixed_clients import Classic, run

MEMBERS = 6


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(upgrade, "SMALL_GROUP", MEMBERS - 1)
    monkeypatch.setattr(consumer_departure, "SESSIONS_AT_ONCE", 1)
    return World(t=MEMBERS)


@pytest.fixture
def members(world):
    members = [Classic(world, "t").join() for _ in range(MEMBERS)]
    run(world, *members)
    return members


def prepare(world, member_id="n", **said):
    return upgrade_and_join(world.driver.shard, HeartbeatRequest(GROUP, member_id, 0, **{**JOINING, **said}))


def finish(world, work):
    return world.driver.submit(run_at_once(work))


def refusal(world, work):
    with pytest.raises(KafkaError) as caught:
        finish(world, work)
    return caught.value.code


def kind(world):
    return world.driver.shard.groups[GROUP].type_name


def test_others_have_their_turn_for_each_record_and_nothing_changes_before_the_end(world, members):
    assert upgrade.large_group(world.driver.shard, GROUP) is not None
    logged = len(world.driver.log)
    work, pauses = prepare(world), 0
    try:
        while True:
            next(work)
            pauses += 1
            assert kind(world) == "classic"
            assert len(world.driver.log) == logged
    except StopIteration as end:
        operation = end.value
    assert pauses == 3 * MEMBERS
    world.driver.submit(operation)
    assert kind(world) == "consumer"
    assert len(world.group().members) == MEMBERS + 1
    assert logged_state(world.driver.replayed().groups[GROUP]) == logged_state(world.group())
    assert upgrade.large_group(world.driver.shard, GROUP) is None


def test_everybody_goes_on_after_the_upgrade(world, members):
    finish(world, prepare(world))
    newcomer = world.client("n", "t").join()
    members.pop().leave()
    run(world, *members, newcomer)
    assert set().union(*(member.partitions() for member in members), newcomer.partitions("t")) == set(range(MEMBERS))
    assert {member.error for member in members} == {ErrorCode.none}


@pytest.mark.parametrize("change", ["join", "leave", "restart"])
def test_a_group_that_changes_meanwhile_stays_classic_until_the_next_attempt(world, members, change):
    work = prepare(world)
    next(work)
    if change == "join":
        Classic(world, "t").join().step()
    elif change == "leave":
        members.pop().leave()
    else:
        world.driver.restart()
    assert refusal(world, work) is ErrorCode.coordinator_load_in_progress
    run(world, *members)
    assert kind(world) == "classic"
    finish(world, prepare(world))
    assert kind(world) == "consumer"


def test_a_change_after_the_last_slice_is_seen_when_the_records_are_to_be_written(world, members):
    operation = run_at_once(prepare(world))
    members[0].leave()
    with pytest.raises(KafkaError) as caught:
        world.driver.submit(operation)
    assert caught.value.code is ErrorCode.coordinator_load_in_progress
    assert kind(world) == "classic"


def test_heartbeats_of_the_members_do_not_disturb_it(world, members):
    work = prepare(world)
    next(work)
    for member in members:
        member.step()
    finish(world, work)
    assert kind(world) == "consumer"


def test_only_one_upgrade_of_a_group_is_under_way(world, members):
    work = prepare(world)
    next(work)
    assert refusal(world, prepare(world, "m")) is ErrorCode.coordinator_load_in_progress
    work.close()  # the client has hung up
    finish(world, prepare(world, "m"))
    assert kind(world) == "consumer"


def test_a_group_whose_upgrade_cannot_be_written_stays_as_it_is(world, members):
    operation = run_at_once(prepare(world))
    world.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    with pytest.raises(KafkaError):
        world.driver.submit(operation)
    world.driver.refuse_writes = None
    assert kind(world) == "classic"
    run(world, *members)
    assert {member.error for member in members} == {ErrorCode.none}


def test_a_join_that_is_refused_upgrades_nothing(world, members):
    assert refusal(world, prepare(world, server_assignor="none")) is ErrorCode.unsupported_assignor
    work = prepare(world, topic_names=None, topic_regex="(")
    assert refusal(world, work) is ErrorCode.invalid_regular_expression
    assert kind(world) == "classic"


def test_members_that_wait_are_told_to_join_again(world, members):
    late = Classic(world, "t").join()
    late.step()
    finish(world, prepare(world))
    late.step()
    assert late.error is ErrorCode.rebalance_in_progress


def test_every_member_has_a_session_after_the_upgrade(world, members):
    finish(world, prepare(world))
    world.driver.pass_ms(1)  # the sessions begin one at a time
    keys = [("session", GROUP, member_id) for member_id in world.group().members]
    assert len(keys) == MEMBERS + 1
    assert all(key in world.driver.timers for key in keys)
    assert not any(("classic session", GROUP, member.member_id) in world.driver.timers for member in members)
    world.driver.pass_ms(100_000)
    assert world.driver.shard.groups[GROUP].is_empty


def test_sessions_are_left_alone_when_the_group_is_classic_again_before_they_have_begun(world, members):
    finish(world, prepare(world))
    newcomer = world.client("n", "t")
    newcomer.leave()
    assert kind(world) == "classic"
    world.driver.pass_ms(1)
    assert all(("classic session", GROUP, member.member_id) in world.driver.timers for member in members)
