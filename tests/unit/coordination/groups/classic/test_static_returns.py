"""Static members that come back to a large stable group: the record of the group is made in slices meanwhile."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination import background
from skep.coordination.groups.classic import static_member
from tests.unit.coordination.groups.classic.test_static_member import NO_DELAY, stable, subscription
from tests.unit.coordination.groups.classic_groups import SESSION_MS, ClassicGroups, code_of, logged_state
from tests.unit.coordination.groups.consumer_clients import World
from tests.unit.coordination.groups.mixed_clients import Classic, run

INSTANCES = "abcdef"


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.setattr(static_member, "SMALL_GROUP", len(INSTANCES) - 1)
    monkeypatch.setattr(background, "STEPS_AT_ONCE", 1)
    return ClassicGroups({**NO_DELAY, "skep.max.group.metadata.bytes": "10000"})


@pytest.fixture
def ids(groups):
    return stable(groups, *INSTANCES, protocols=(("range", subscription("t")),))


def join(groups, instance, user_data=b"", **more):
    return groups.join(instance=instance, protocols=(("range", subscription("t", user_data=user_data)),), **more)


def step(groups):
    """The next operation of the timers that are due, and no more."""
    operation = next(groups.driver.timers.take_due(), None)
    if operation is not None:
        groups.driver.submit(operation)
    return operation is not None


def steps_until_told(groups, *waiters):
    steps = 0
    while not all(waiter.is_answered for waiter in waiters):
        assert step(groups)
        steps += 1
    return steps


def test_others_have_their_turn_for_each_member_and_the_earlier_self_stays_until_the_end(groups, ids):
    logged = len(groups.driver.log)
    waiter = join(groups, "b")
    for _ in range(len(INSTANCES) - 1):
        assert step(groups)
        assert groups.heartbeat(ids["b"], 1, "b") is ErrorCode.none
    assert not waiter.is_answered
    assert len(groups.driver.log) == logged
    steps_until_told(groups, waiter)
    reply = waiter.reply
    assert (reply["generation_id"], reply["leader"], reply["members"]) == (1, ids["a"], [])
    assert groups.heartbeat(ids["b"], 1, "b") is ErrorCode.fenced_instance_id
    assert groups.sync(reply["member_id"], 1, instance="b").reply["assignment"] == b"1"
    assert groups.group.state_name == "Stable"
    assert len(groups.driver.log) == logged + 1
    assert not step(groups)
    assert not groups.group.returning


def test_the_log_has_what_the_group_has(groups, ids):
    groups.pass_ms(5)
    waiter = join(groups, "b")
    steps_until_told(groups, waiter)
    again = groups.driver.replayed()
    assert logged_state(again.groups["g"]) == logged_state(groups.group)
    assert again.memory.bytes == groups.shard.memory.bytes
    groups.driver.restart()
    assert groups.heartbeat(waiter.reply["member_id"], 1, "b") is ErrorCode.none


def test_those_who_come_back_together_need_two_records(groups, ids):
    logged = len(groups.driver.log)
    waiters = {"b": join(groups, "b")}
    step(groups)
    waiters |= {instance: join(groups, instance, version=9) for instance in "acdef"}
    steps_until_told(groups, *waiters.values())
    assert len(groups.driver.log) == logged + 2
    new = {instance: waiter.reply["member_id"] for instance, waiter in waiters.items()}
    assert groups.group.static_ids == new
    assert groups.group.leader_id == new["a"]
    assert {waiters[instance].reply["leader"] for instance in "acdef"} == {new["a"]}
    leader = waiters["a"].reply
    assert leader["skip_assignment"]
    assert {one["member_id"] for one in leader["members"]} == set(new.values())
    for number, instance in enumerate(INSTANCES):
        assert groups.sync(new[instance], 1, instance=instance).reply["assignment"] == b"%d" % number
    assert logged_state(groups.driver.replayed().groups["g"]) == logged_state(groups.group)


def test_very_many_are_not_taken_over_at_once(groups, ids, monkeypatch):
    monkeypatch.setattr(static_member, "MEMBERS_AT_ONCE", 2)
    logged = len(groups.driver.log)
    waiters = [join(groups, instance) for instance in INSTANCES]
    steps_until_told(groups, *waiters)
    # The first does not wait for others.
    assert len(groups.driver.log) == logged + 4


def test_a_leader_of_an_old_version_is_told_that_another_one_leads(groups, ids):
    waiter = join(groups, "a", version=8)
    steps_until_told(groups, waiter)
    assert (waiter.reply["leader"], waiter.reply["members"]) == (ids["a"], [])
    assert groups.group.leader_id == waiter.reply["member_id"]


@pytest.mark.parametrize("steps", [0, 3])
def test_one_that_is_started_twice_is_the_second_one(groups, ids, steps):
    first = join(groups, "b")
    for _ in range(steps):
        step(groups)
    second = join(groups, "b")
    assert code_of(first) is ErrorCode.fenced_instance_id
    steps_until_told(groups, second)
    assert len(first.replies) == 1
    assert groups.group.static_ids["b"] == second.reply["member_id"]
    assert groups.sync(second.reply["member_id"], 1, instance="b").reply["assignment"] == b"1"
    assert len(groups.group.members) == len(INSTANCES)


@pytest.mark.parametrize("steps", [0, 3])
def test_in_a_group_that_changes_meanwhile_it_is_told_to_ask_again(groups, ids, steps):
    waiter = join(groups, "b")
    for _ in range(steps):
        step(groups)
    groups.leave((ids["b"], "b"))
    steps_until_told(groups, waiter)
    assert code_of(waiter) is ErrorCode.coordinator_load_in_progress
    assert groups.group.state_name == "PreparingRebalance"
    assert not groups.group.returning


def test_when_the_group_becomes_a_consumer_group_it_is_told_to_ask_again(groups):
    world = World(t=len(INSTANCES))
    members = [Classic(world, "t", instance_id=instance).join() for instance in INSTANCES]
    run(world, *members)
    back = Classic(world, "t", instance_id="b").join()
    newcomer = world.client("n", "t").join()
    world.driver.pass_ms(1)
    back.step()
    assert back.error is ErrorCode.coordinator_load_in_progress
    members[1] = back.join()
    run(world, *members, newcomer, rounds=30)
    assert world.group().static_ids["b"] == back.member_id
    assert world.group().state_name == "Stable"


def test_when_it_cannot_be_written_the_earlier_self_stays(groups, ids):
    waiter = join(groups, "b")
    groups.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    groups.pass_ms(1_000)
    assert code_of(waiter) is ErrorCode.coordinator_not_available
    assert groups.heartbeat(ids["b"], 1, "b") is ErrorCode.none
    groups.driver.refuse_writes = None
    waiter = join(groups, "b")
    steps_until_told(groups, waiter)
    assert code_of(waiter) is ErrorCode.none


def test_when_the_coordinator_moves_it_is_told(groups, ids):
    waiter = join(groups, "b")
    step(groups)
    assert groups.driver.restart() == [waiter]
    assert code_of(waiter) is ErrorCode.not_coordinator
    assert groups.heartbeat(ids["b"], 1, "b") is ErrorCode.none


def test_it_has_a_session_of_its_own(groups, ids):
    groups.pass_ms(SESSION_MS - 1)
    for instance in INSTANCES:
        if instance != "b":
            groups.heartbeat(ids[instance], 1, instance)
    waiter = join(groups, "b")
    steps_until_told(groups, waiter)
    groups.pass_ms(SESSION_MS - 2)
    assert groups.heartbeat(waiter.reply["member_id"], 1, "b") is ErrorCode.none


def test_those_who_wait_count_for_the_limit_of_the_group(groups, ids):
    waiters = [join(groups, instance, bytes(4_000)) for instance in "abc"]
    assert [code_of(waiter) for waiter in waiters if waiter.is_answered] == [ErrorCode.group_max_size_reached]
    steps_until_told(groups, *waiters)
    assert groups.group.metadata_bytes <= 10_000
