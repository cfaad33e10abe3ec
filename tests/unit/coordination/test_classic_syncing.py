"""SyncGroup to classic groups, and what happens when the assignment cannot be written."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.classic_syncing import assignment_lost
from tests.unit.coordination.classic_groups import REBALANCE_MS, ClassicGroups, code_of, logged_state

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
