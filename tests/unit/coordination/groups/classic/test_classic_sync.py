"""SyncGroup to classic groups, and what happens when the assignment cannot be written."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import run_at_once
from skep.coordination.groups import group_coordinator
from skep.coordination.groups.classic.classic_sync import SyncRequest, assignment_lost
from tests.unit.coordination.groups.classic_groups import REBALANCE_MS, ClassicGroups, code_of, logged_state

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def groups() -> ClassicGroups:
    return ClassicGroups(NO_DELAY)


def joined(groups: ClassicGroups, count: int = 2) -> list[str]:
    """Members of generation 1 that have not asked for an assignment yet, the leader first."""
    members = [groups.join_as_new()[0] for _ in range(count)]
    groups.pass_ms(0)
    assert groups.group.state_name == "CompletingRebalance"
    return members


def test_followers_wait_for_the_leaders_assignment(groups):
    leader, follower, idle = joined(groups, 3)
    waiting = [groups.sync(follower, 1), groups.sync(idle, 1)]
    assert not any(waiter.is_answered for waiter in waiting)
    own = groups.sync(leader, 1, {leader: b"one", follower: b"two", "stranger": b"three"})
    assert own.reply == {"protocol_type": "consumer", "protocol_name": "range", "assignment": b"one"}
    assert [waiter.reply["assignment"] for waiter in waiting] == [b"two", b""]
    assert groups.group.state_name == "Stable"


def test_who_asks_in_a_stable_group_gets_what_it_was_given(groups):
    leader, follower = joined(groups)
    groups.sync(leader, 1, {follower: b"two"})
    assert groups.sync(follower, 1).reply["assignment"] == b"two"
    assert groups.sync(leader, 1, {leader: b"another one"}).reply["assignment"] == b""


def test_the_assignment_is_in_the_log(groups):
    leader, follower = groups.stable(2)
    replayed = groups.driver.replayed().groups["g"]
    assert logged_state(replayed) == logged_state(groups.group)
    assert {member.member_id: member.assignment for member in replayed.members.values()} == {
        leader: b"0",
        follower: b"1",
    }
    assert groups.group.members[leader].client_host == "/127.0.0.1"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"group_id": "other"}, ErrorCode.unknown_member_id),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
        ({"instance": "i"}, ErrorCode.unknown_member_id),
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"generation_id": 2}, ErrorCode.illegal_generation),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "roundrobin"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.none),
    ],
)
def test_who_does_not_belong_to_the_generation_is_refused(groups, request_, code):
    leader, _ = joined(groups)
    assert code_of(groups.sync(**{"member_id": leader, "generation_id": 1, **request_})) is code


def test_an_empty_group_has_no_members_to_ask(groups):
    (member,) = groups.stable(1)
    groups.leave(member)
    assert code_of(groups.sync(member, 2)) is ErrorCode.unknown_member_id


def test_a_group_that_rebalances_says_so(groups):
    leader, follower = groups.stable(2)
    groups.join(leader)
    assert code_of(groups.sync(follower, 1)) is ErrorCode.rebalance_in_progress


def test_a_member_that_comes_while_an_assignment_is_awaited_sends_everybody_back(groups):
    _, follower = joined(groups)
    waiting = groups.sync(follower, 1)
    groups.join_as_new()
    assert code_of(waiting) is ErrorCode.rebalance_in_progress


def test_a_second_request_of_the_same_member_answers_the_first(groups):
    leader, follower = joined(groups)
    first, second = groups.sync(follower, 1), groups.sync(follower, 1)
    assert code_of(first) is ErrorCode.rebalance_in_progress
    groups.sync(leader, 1, {follower: b"two"})
    assert second.reply["assignment"] == b"two"


def test_a_leader_that_never_brings_an_assignment_is_out(groups):
    leader, follower = joined(groups)
    waiting = groups.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000):
        assert not waiting.is_answered
        assert groups.heartbeat(leader, 1) is ErrorCode.none
        groups.pass_ms(5_000)
    assert code_of(waiting) is ErrorCode.rebalance_in_progress
    assert list(groups.group.members) == [follower]


def test_a_follower_that_never_asks_is_out_although_it_sends_heartbeats(groups):
    leader, follower = joined(groups)
    groups.sync(leader, 1)
    for _ in range(REBALANCE_MS // 5_000):
        assert groups.heartbeat(leader, 1) is ErrorCode.none
        assert groups.heartbeat(follower, 1) is ErrorCode.none
        groups.pass_ms(5_000)
    assert list(groups.group.members) == [leader]
    assert groups.group.state_name == "PreparingRebalance"


def test_nobody_is_put_out_once_everybody_has_asked(groups):
    leader, follower = groups.stable(2)
    for _ in range(2 * REBALANCE_MS // 5_000):
        groups.pass_ms(5_000)
        assert groups.heartbeat(leader, 1) is ErrorCode.none
        assert groups.heartbeat(follower, 1) is ErrorCode.none


# When it cannot be written.


def test_an_assignment_that_is_not_written_changes_nothing(groups):
    leader, follower = joined(groups)
    waiting = groups.sync(follower, 1)
    groups.driver.refuse_writes = KafkaError(ErrorCode.record_list_too_large)
    assert code_of(groups.sync(leader, 1, {leader: b"x" * 10})) is ErrorCode.record_list_too_large
    assert groups.group.state_name == "CompletingRebalance"
    assert not waiting.is_answered
    assert "g" not in groups.driver.replayed().groups


def test_after_an_assignment_is_lost_the_group_rebalances_and_the_next_one_counts(groups):
    leader, follower = joined(groups)
    waiting = groups.sync(follower, 1)
    groups.driver.refuse_writes = KafkaError(ErrorCode.record_list_too_large)
    groups.sync(leader, 1, {leader: b"x" * 10})
    groups.driver.submit(lambda shard: assignment_lost(shard, "g", 1, ErrorCode.record_list_too_large))
    assert code_of(waiting) is ErrorCode.rebalance_in_progress
    groups.driver.refuse_writes = None
    again = [groups.join(follower), groups.join(leader)]
    assert [waiter.reply["generation_id"] for waiter in again] == [2, 2]
    assert groups.sync(leader, 2, {leader: b"x"}).reply["assignment"] == b"x"


def test_an_assignment_that_a_later_generation_has_overtaken_is_not_mourned(groups):
    leader, _ = groups.stable(2)
    groups.driver.submit(lambda shard: assignment_lost(shard, "g", 1, ErrorCode.coordinator_not_available))
    assert groups.group.state_name == "Stable"
    assert groups.heartbeat(leader, 1) is ErrorCode.none


def test_without_a_word_from_the_leader_those_who_wait_are_told_in_the_end(groups):
    leader, follower = joined(groups)
    waiting = groups.sync(follower, 1)
    groups.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    groups.sync(leader, 1)
    groups.pass_ms(REBALANCE_MS)
    assert code_of(waiting) is ErrorCode.rebalance_in_progress


# A large group: the record is made in slices before.


def prepared(groups: ClassicGroups, leader: str, assignments: dict[str, bytes], generation: int = 1):
    request = SyncRequest("g", generation, leader, None, None, None, assignments)
    return request, group_coordinator.prepare_sync(groups.shard, request)


def submit(groups: ClassicGroups, request: SyncRequest, made):
    return groups.driver.submit_and_wait(lambda shard, waiter: group_coordinator.sync(shard, request, waiter, made))


def test_a_prepared_assignment_is_made_in_slices_and_leaves_what_one_written_at_once_leaves(groups):
    members = joined(groups, 40)
    waiting = [groups.sync(member, 1) for member in members[1:]]
    assignments = {member: b"%d" % number for number, member in enumerate(members[:-1])}
    request, work = prepared(groups, members[0], assignments)
    pauses = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(work)
            pauses += 1
    assert pauses >= len(members)
    assert groups.group.state_name == "CompletingRebalance"
    assert submit(groups, request, end.value.value).reply["assignment"] == b"0"
    assert [waiter.reply["assignment"] for waiter in waiting] == [b"%d" % number for number in range(1, 39)] + [b""]
    assert groups.group.state_name == "Stable"
    again = groups.driver.replayed()
    assert logged_state(again.groups["g"]) == logged_state(groups.group)
    assert again.memory.bytes == groups.shard.memory.bytes


def test_an_assignment_that_was_prepared_for_other_members_is_not_used(groups):
    leader, follower = joined(groups)
    request, work = prepared(groups, leader, {leader: b"one", follower: b"two"})
    made = run_at_once(work)
    groups.leave(follower)
    groups.join(leader)
    assert groups.group.generation_id == 2
    assert code_of(submit(groups, request, made)) is ErrorCode.illegal_generation
    request = SyncRequest("g", 2, leader, None, None, None, {leader: b"three"})
    assert submit(groups, request, made).reply["assignment"] == b"three"
    assert groups.driver.replayed().groups["g"].members.keys() == {leader}


def test_nothing_is_prepared_for_who_is_not_the_leader(groups):
    leader, follower = joined(groups)
    assert run_at_once(prepared(groups, follower, {follower: b"all"})[1]) is None
    with pytest.raises(KafkaError):
        run_at_once(prepared(groups, leader, {}, generation=2)[1])
    groups.sync(leader, 1, {leader: b"one"})
    assert run_at_once(prepared(groups, leader, {leader: b"two"})[1]) is None
