"""JoinGroup to classic groups: ids, refusals, votes, the initial delay, and who is waited for how long."""

import re

import pytest

from skep.base.errors import ErrorCode
from skep.coordination.groups.classic.classic_join import MAX_NAME_BYTES, NEW_MEMBER_TIMEOUT_MS
from tests.unit.coordination.groups.classic_groups import REBALANCE_MS, SESSION_MS, ClassicGroups, code_of

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
DELAY = {"group.initial.rebalance.delay.ms": "3000"}


@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_dynamic_member_is_given_an_id_and_asked_to_come_back(version):
    groups = ClassicGroups()
    reply = groups.join(version=version, client_id="app").reply
    assert reply["error_code"] is ErrorCode.member_id_required
    assert re.fullmatch(r"app-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", reply["member_id"])
    assert groups.group.pending == {reply["member_id"]}


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_a_new_member_is_in_at_once(version):
    groups = ClassicGroups(NO_DELAY)
    waiter = groups.join(version=version)
    groups.pass_ms(0)
    assert code_of(waiter) is ErrorCode.none
    assert list(groups.group.members) == [waiter.reply["member_id"]]


def test_an_id_that_is_not_used_within_a_session_is_forgotten_and_the_group_with_it():
    groups = ClassicGroups()
    member_id = groups.new_id()
    groups.pass_ms(SESSION_MS)
    assert "g" not in groups.shard.groups
    assert code_of(groups.join(member_id)) is ErrorCode.unknown_member_id


def test_the_first_member_leads_and_is_told_of_everybody():
    groups = ClassicGroups(NO_DELAY)
    first, leader = groups.join_as_new(protocols=(("range", b"one"),))
    second, follower = groups.join_as_new(protocols=(("range", b"two"),))
    groups.pass_ms(0)
    assert leader.reply == {
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": first,
        "member_id": first,
        "members": [
            {"member_id": first, "group_instance_id": None, "metadata": b"one"},
            {"member_id": second, "group_instance_id": None, "metadata": b"two"},
        ],
    }
    assert follower.reply == {**leader.reply, "member_id": second, "members": []}


def test_the_leader_stays_when_a_member_comes():
    groups = ClassicGroups(NO_DELAY)
    leader, *_ = members = groups.stable(2)
    third, _ = groups.join_as_new()
    replies = [groups.join(member_id) for member_id in reversed(members)]
    assert [waiter.reply["leader"] for waiter in replies] == [leader, leader]
    assert groups.group.generation_id == 2
    assert third in groups.group.members


def test_another_one_leads_when_the_leader_does_not_join_again():
    groups = ClassicGroups(NO_DELAY)
    leader, follower = groups.stable(2)
    new, waiter = groups.join_as_new()
    again = groups.join(follower)
    groups.pass_ms(REBALANCE_MS)
    assert again.reply["leader"] == follower
    assert {member["member_id"] for member in again.reply["members"]} == {follower, new}
    assert code_of(waiter) is ErrorCode.none
    assert leader not in groups.group.members


@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ((["a", "b"], ["a", "b"], ["b", "a"]), "a"),
        ((["b", "a"], ["a", "b"], ["b", "a"]), "b"),
        ((["a", "c"], ["c", "b", "a"], ["c", "a"]), "c"),
        ((["a", "b"], ["b"], ["a", "b"]), "b"),  # a has more friends, but not everybody knows it
    ],
)
def test_the_protocol_has_the_most_votes_of_those_that_all_know(votes, chosen):
    groups = ClassicGroups(NO_DELAY)
    waiters = [groups.join_as_new(protocols=tuple((name, b"") for name in names))[1] for names in votes]
    groups.pass_ms(0)
    assert [waiter.reply["protocol_name"] for waiter in waiters] == [chosen] * 3


@pytest.mark.parametrize(
    "request_",
    [
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": ()},
        {"protocols": (("roundrobin", b""),)},
    ],
)
def test_who_has_no_protocol_in_common_with_all_is_refused(request_):
    groups = ClassicGroups(NO_DELAY)
    groups.stable(2)
    assert code_of(groups.join(**request_)) is ErrorCode.inconsistent_group_protocol
    assert groups.group.state_name == "Stable"


@pytest.mark.parametrize("request_", [{"protocol_type": ""}, {"protocols": ()}])
def test_a_new_group_needs_a_protocol_and_is_not_made_for_a_refusal(request_):
    groups = ClassicGroups()
    assert code_of(groups.join(**request_)) is ErrorCode.inconsistent_group_protocol
    assert not groups.shard.groups


def test_an_empty_group_takes_any_protocol():
    groups = ClassicGroups(NO_DELAY)
    groups.leave(*groups.stable(1))
    _, waiter = groups.join_as_new(protocol_type="connect", protocols=(("compatible", b""),))
    groups.pass_ms(0)
    assert waiter.reply["protocol_type"] == "connect"
    assert waiter.reply["generation_id"] == 3


@pytest.mark.parametrize(
    ("session_ms", "is_taken"), [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)]
)
def test_the_session_timeout_has_limits(session_ms, is_taken):
    groups = ClassicGroups()
    expected = ErrorCode.member_id_required if is_taken else ErrorCode.invalid_session_timeout
    assert code_of(groups.join(session_ms=session_ms)) is expected
    assert ("g" in groups.shard.groups) == is_taken


def test_a_member_id_that_was_never_given_out_is_unknown():
    groups = ClassicGroups(NO_DELAY)
    assert code_of(groups.join("stranger")) is ErrorCode.unknown_member_id
    assert not groups.shard.groups
    groups.stable(1)
    assert code_of(groups.join("stranger")) is ErrorCode.unknown_member_id


@pytest.mark.parametrize("field", ["instance", "protocol_type"])
def test_names_that_no_record_can_hold_are_refused(field):
    groups = ClassicGroups()
    assert code_of(groups.join(**{field: "x" * (MAX_NAME_BYTES + 1)})) is ErrorCode.invalid_request
    assert code_of(groups.join(protocols=(("é" * (MAX_NAME_BYTES // 2 + 1), b""),))) is ErrorCode.invalid_request


# The size of a group.


def test_ids_that_were_handed_out_count_as_members():
    groups = ClassicGroups({"group.max.size": "3"})
    ids = [groups.new_id() for _ in range(3)]
    assert code_of(groups.join()) is ErrorCode.group_max_size_reached
    assert groups.group.pending == set(ids)


def test_a_full_group_takes_its_own_members_and_no_other():
    groups = ClassicGroups({"group.max.size": "2", **NO_DELAY})
    leader, follower = groups.stable(2)
    assert code_of(groups.join()) is ErrorCode.group_max_size_reached
    assert code_of(groups.join(follower)) is ErrorCode.none
    waiting = groups.join(leader)
    assert code_of(groups.join(follower)) is ErrorCode.none
    assert code_of(waiting) is ErrorCode.none


def test_while_a_group_rebalances_new_members_take_the_places_of_those_who_have_not_come_yet():
    groups = ClassicGroups({"group.max.size": "2", **NO_DELAY})
    leader, late = groups.stable(2)
    first = groups.join(leader)
    new, second = groups.join_as_new()
    assert code_of(groups.join(late)) is ErrorCode.group_max_size_reached
    assert [code_of(first), code_of(second)] == [ErrorCode.none] * 2
    assert list(groups.group.members) == [leader, new]


def test_there_is_a_limit_of_groups():
    groups = ClassicGroups({"skep.max.groups": "2"})
    groups.new_id(group_id="a")
    groups.new_id(group_id="b")
    assert code_of(groups.join(group_id="c")) is ErrorCode.policy_violation
    assert code_of(groups.join(group_id="a")) is ErrorCode.member_id_required


# The initial delay.


def test_a_new_group_waits_for_more_members():
    groups = ClassicGroups(DELAY)
    _, first = groups.join_as_new()
    groups.pass_ms(2_999)
    assert not first.is_answered
    groups.pass_ms(1)
    assert code_of(first) is ErrorCode.none


def test_each_new_member_makes_the_delay_begin_anew():
    groups = ClassicGroups(DELAY)
    _, first = groups.join_as_new()
    groups.pass_ms(2_000)
    _, second = groups.join_as_new()
    groups.pass_ms(3_999)
    assert not first.is_answered
    groups.pass_ms(1)
    assert [waiter.reply["generation_id"] for waiter in (first, second)] == [1, 1]


def test_a_member_that_has_got_its_id_extends_the_delay_as_one_that_has_joined():
    groups = ClassicGroups(DELAY)
    _, first = groups.join_as_new()
    groups.pass_ms(2_999)
    coming = groups.new_id()
    groups.pass_ms(2_000)
    second = groups.join(coming)
    assert not first.is_answered
    groups.pass_ms(4_001)
    assert [waiter.reply["generation_id"] for waiter in (first, second)] == [1, 1]


def test_by_default_members_that_start_together_share_the_first_generation():
    groups = ClassicGroups()
    waiters = []
    for _ in range(5):
        waiters.append(groups.join_as_new()[1])
        groups.pass_ms(200)
    groups.pass_ms(600)
    assert [waiter.reply["generation_id"] for waiter in waiters] == [1] * 5


def test_the_delay_does_not_outlast_the_rebalance_timeout():
    groups = ClassicGroups(DELAY)
    waiters = [groups.join_as_new(rebalance_ms=7_000)[1]]
    for _ in range(6):
        groups.pass_ms(1_000)
        waiters.append(groups.join_as_new(rebalance_ms=7_000)[1])
    assert not waiters[0].is_answered
    groups.pass_ms(1_000)
    assert all(waiter.reply["generation_id"] == 1 for waiter in waiters)


# Joining again.


def test_a_follower_with_nothing_new_is_told_the_generation_of_a_stable_group():
    groups = ClassicGroups(NO_DELAY)
    leader, follower = groups.stable(2)
    reply = groups.join(follower).reply
    assert (reply["generation_id"], reply["leader"], reply["members"]) == (1, leader, [])
    assert groups.group.state_name == "Stable"


def test_the_leader_of_a_stable_group_begins_a_rebalance():
    groups = ClassicGroups(NO_DELAY)
    leader, follower = groups.stable(2)
    waiter = groups.join(leader)
    assert not waiter.is_answered
    assert groups.group.state_name == "PreparingRebalance"
    assert groups.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress


def test_a_follower_with_other_metadata_begins_a_rebalance():
    groups = ClassicGroups(NO_DELAY)
    leader, follower = groups.stable(2)
    waiter = groups.join(follower, protocols=(("range", b"other"),))
    assert not waiter.is_answered
    again = groups.join(leader)
    assert [member["metadata"] for member in again.reply["members"]] == [b"r", b"other"]


def test_while_an_assignment_is_awaited_a_member_that_missed_the_response_gets_it_again():
    groups = ClassicGroups(NO_DELAY)
    first, leader = groups.join_as_new()
    second, follower = groups.join_as_new()
    groups.pass_ms(0)
    assert groups.join(first).reply == leader.reply
    assert groups.join(second).reply == follower.reply
    assert groups.group.state_name == "CompletingRebalance"


def test_a_change_while_an_assignment_is_awaited_sends_everybody_back():
    groups = ClassicGroups(NO_DELAY)
    first, _ = groups.join_as_new()
    second, _ = groups.join_as_new()
    groups.pass_ms(0)
    waiting = groups.sync(second, 1)
    groups.join(first, protocols=(("range", b"other"),))
    assert code_of(waiting) is ErrorCode.rebalance_in_progress
    assert groups.group.state_name == "PreparingRebalance"


def test_a_second_join_of_the_same_member_answers_the_first():
    groups = ClassicGroups(NO_DELAY)
    leader, follower = groups.stable(2)
    first = groups.join(leader)
    second = groups.join(leader)
    assert code_of(first) is ErrorCode.rebalance_in_progress
    groups.join(follower)
    assert code_of(second) is ErrorCode.none


# Waiting for the others.


def test_members_that_do_not_join_again_in_time_are_out():
    groups = ClassicGroups(NO_DELAY)
    leader, _ = groups.stable(2, session_ms=1_000_000)
    waiter = groups.join(leader, session_ms=1_000_000)
    groups.pass_ms(REBALANCE_MS - 1)
    assert not waiter.is_answered
    groups.pass_ms(1)
    assert [member["member_id"] for member in waiter.reply["members"]] == [leader]


def test_the_longest_rebalance_timeout_counts():
    groups = ClassicGroups(NO_DELAY)
    _, first = groups.join_as_new(session_ms=1_000_000, rebalance_ms=5_000)
    _, second = groups.join_as_new(session_ms=1_000_000, rebalance_ms=90_000)
    groups.pass_ms(0)
    leader = first.reply["member_id"]
    groups.sync(second.reply["member_id"], 1)
    groups.sync(leader, 1)
    waiter = groups.join(leader, session_ms=1_000_000, rebalance_ms=5_000)
    groups.pass_ms(89_999)
    assert not waiter.is_answered
    groups.pass_ms(1)
    assert waiter.is_answered


def test_members_with_an_id_that_have_not_come_back_yet_are_waited_for():
    groups = ClassicGroups(NO_DELAY)
    (leader,) = groups.stable(1)
    pending = groups.new_id()
    waiter = groups.join(leader)
    assert not waiter.is_answered
    new = groups.join(pending)
    assert [waiter.reply["generation_id"], new.reply["generation_id"]] == [2, 2]


def test_a_new_member_does_not_wait_for_ever():
    groups = ClassicGroups(NO_DELAY)
    (leader,) = groups.stable(1, session_ms=1_800_000, rebalance_ms=1_000_000)
    new, waiter = groups.join_as_new(session_ms=1_800_000, rebalance_ms=1_000_000)
    groups.pass_ms(NEW_MEMBER_TIMEOUT_MS)
    assert code_of(waiter) is ErrorCode.unknown_member_id
    assert new not in groups.group.members
    assert leader in groups.group.members
