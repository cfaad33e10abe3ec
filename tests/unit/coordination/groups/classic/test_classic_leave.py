"""Heartbeats of classic members, and how members go: on purpose, or by being silent."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from tests.unit.coordination.groups.classic_groups import SESSION_MS, ClassicGroups, code_of, logged_state

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def groups() -> ClassicGroups:
    return ClassicGroups(NO_DELAY)


def commit(groups: ClassicGroups, member_id: str = "", generation_id: int = -1) -> None:
    committer, wanted = Committer(member_id, None, generation_id), [WantedOffset("t", 0, 5, -1, "")]
    groups.driver.submit(lambda shard: offset_operations.commit(shard, "g", committer, wanted, 9))


# Heartbeats.


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, ErrorCode.none),
        ({"group_id": "other"}, ErrorCode.unknown_member_id),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
        ({"instance": "i"}, ErrorCode.unknown_member_id),
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"generation_id": 2}, ErrorCode.illegal_generation),
    ],
)
def test_a_heartbeat_is_checked(groups, request_, code):
    leader, _ = groups.stable(2)
    assert groups.heartbeat(**{"member_id": leader, "generation_id": 1, **request_}) is code


def test_heartbeats_keep_a_member_in_the_group(groups):
    (member,) = groups.stable(1)
    for _ in range(5):
        groups.pass_ms(SESSION_MS - 1)
        assert groups.heartbeat(member, 1) is ErrorCode.none
    groups.pass_ms(SESSION_MS)
    assert groups.heartbeat(member, 1) is ErrorCode.unknown_member_id


def test_commits_keep_a_member_in_the_group(groups):
    (member,) = groups.stable(1)
    for _ in range(5):
        groups.pass_ms(SESSION_MS - 1)
        commit(groups, member, 1)
    assert groups.group.state_name == "Stable"


def test_heartbeats_are_welcome_before_the_assignment_has_come(groups):
    member, _ = groups.join_as_new()
    groups.pass_ms(0)
    assert groups.group.state_name == "CompletingRebalance"
    assert groups.heartbeat(member, 1) is ErrorCode.none


def test_members_that_wait_are_not_silent(groups):
    leader, follower = groups.stable(2, rebalance_ms=5 * SESSION_MS)
    waiter = groups.join(leader, rebalance_ms=5 * SESSION_MS)
    for _ in range(4):
        groups.pass_ms(SESSION_MS - 1)
        assert groups.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress
    assert not waiter.is_answered
    assert leader in groups.group.members


def test_a_silent_member_is_out_and_the_others_rebalance(groups):
    leader, follower = groups.stable(2)
    groups.pass_ms(SESSION_MS - 1)
    groups.heartbeat(leader, 1)
    groups.pass_ms(1)
    assert list(groups.group.members) == [leader]
    assert groups.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    assert groups.join(leader).reply["generation_id"] == 2
    assert groups.heartbeat(follower, 2) is ErrorCode.unknown_member_id


def test_the_silence_of_the_last_one_that_is_waited_for_ends_the_wait(groups):
    leader, _ = groups.stable(2)
    waiter = groups.join(leader)
    groups.pass_ms(SESSION_MS)
    assert waiter.reply["generation_id"] == 2
    assert len(waiter.reply["members"]) == 1


# Leaving.


def test_the_others_rebalance_when_a_member_leaves(groups):
    leader, follower = groups.stable(2)
    assert groups.leave(leader) == [ErrorCode.none]
    assert groups.group.state_name == "PreparingRebalance"
    reply = groups.join(follower).reply
    assert (reply["generation_id"], reply["leader"]) == (2, follower)


def test_leaving_ends_the_wait_of_the_others(groups):
    leader, follower = groups.stable(2)
    waiter = groups.join(leader)
    groups.leave(follower)
    assert waiter.reply["generation_id"] == 2


def test_leaving_while_an_assignment_is_awaited_sends_the_others_back(groups):
    leader, follower = (groups.join_as_new()[0] for _ in range(2))
    groups.pass_ms(0)
    waiting = groups.sync(follower, 1)
    groups.leave(leader)
    assert code_of(waiting) is ErrorCode.rebalance_in_progress


def test_whoever_waits_and_is_made_to_leave_is_told(groups):
    leader, follower = groups.stable(2)
    joining = groups.join(leader)
    groups.leave(leader)
    assert code_of(joining) is ErrorCode.unknown_member_id
    groups.join(follower)
    syncing = groups.sync(follower, 2)
    assert code_of(syncing) is ErrorCode.none


def test_one_that_waits_for_an_assignment_and_is_made_to_leave_is_told(groups):
    _, follower = (groups.join_as_new()[0] for _ in range(2))
    groups.pass_ms(0)
    waiting = groups.sync(follower, 1)
    groups.leave(follower)
    assert code_of(waiting) is ErrorCode.unknown_member_id


def test_each_of_several_gets_a_code_of_its_own(groups):
    member, _ = groups.stable(2)
    pending = groups.new_id()
    groups.join(instance="i")
    codes = groups.leave(
        member, member, "stranger", pending, ("", "i"), ("", "i"), ("", "nobody"), ("", None), ("stranger", "i")
    )
    none, unknown = ErrorCode.none, ErrorCode.unknown_member_id
    assert codes == [none, unknown, unknown, none, none, unknown, unknown, unknown, ErrorCode.fenced_instance_id]
    assert len(groups.group.members) == 1
    assert not groups.group.pending


def test_nobody_can_leave_a_group_that_is_not_there(groups):
    assert groups.leave("a", ("", "i")) == [ErrorCode.unknown_member_id] * 2


def test_an_unused_id_that_is_given_back_ends_the_wait_for_it(groups):
    (leader,) = groups.stable(1)
    pending = groups.new_id()
    waiter = groups.join(leader)
    groups.leave(pending)
    assert waiter.reply["generation_id"] == 2


# The last member.


def test_a_group_without_members_is_empty_in_a_generation_of_its_own_and_so_after_a_restart(groups):
    (member,) = groups.stable(1)
    groups.leave(member)
    assert (groups.group.state_name, groups.group.generation_id, groups.group.protocol_type) == ("Empty", 2, "consumer")
    assert not len(groups.driver.timers) > 1, "only the expiry of offsets is left"
    before = logged_state(groups.group)
    groups.driver.restart()
    assert logged_state(groups.group) == before


def test_the_silence_of_the_last_member_empties_the_group(groups):
    groups.stable(2)
    groups.pass_ms(SESSION_MS)
    assert groups.group.state_name == "Empty"
    assert logged_state(groups.driver.replayed().groups["g"]) == logged_state(groups.group)


def test_a_group_that_was_never_stable_leaves_nothing_behind(groups):
    member, _ = groups.join_as_new()
    groups.leave(member)
    assert not groups.shard.groups
    assert not groups.driver.log


def test_a_group_that_was_never_stable_but_has_offsets_stays(groups):
    commit(groups)
    member, _ = groups.join_as_new()
    groups.leave(member)
    assert groups.group.state_name == "Empty"
    assert groups.driver.replayed().groups["g"].protocol_type == "consumer"


def test_ids_that_were_handed_out_outlive_the_last_member(groups):
    (member,) = groups.stable(1)
    pending = groups.new_id()
    groups.leave(member)
    waiter = groups.join(pending)
    groups.pass_ms(0)
    assert waiter.reply["generation_id"] == 3


def test_when_the_last_members_going_cannot_be_written_it_stays(groups):
    (member,) = groups.stable(1)
    groups.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    with pytest.raises(KafkaError):
        groups.leave(member)
    assert groups.heartbeat(member, 1) is ErrorCode.none
    groups.driver.refuse_writes = None
    assert groups.leave(member) == [ErrorCode.none]


def test_a_member_that_is_heard_from_before_its_going_could_be_written_stays(groups):
    (member,) = groups.stable(1)
    on_session_expired = groups.group.members[member].on_session_expired
    groups.heartbeat(member, 1)
    groups.driver.submit(on_session_expired)
    assert groups.group.state_name == "Stable"
