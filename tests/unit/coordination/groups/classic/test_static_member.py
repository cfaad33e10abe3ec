"""Static members of classic groups (KIP-345): they come back without a rebalance, and their earlier self is fenced."""

import struct

import pytest

from skep.base.errors import ErrorCode, KafkaError
from tests.unit.coordination.groups.classic_groups import REBALANCE_MS, SESSION_MS, ClassicGroups, code_of, logged_state

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    encoded = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + encoded + struct.pack(">i", len(user_data)) + user_data


@pytest.fixture
def groups() -> ClassicGroups:
    return ClassicGroups(NO_DELAY)


def stable(groups: ClassicGroups, *instances: str, **request) -> dict[str, str]:
    """Static members in a stable group, by instance id; the first leads and has the assignment b"0"."""
    waiters = [groups.join(instance=instance, **request) for instance in instances]
    groups.pass_ms(0)
    ids = {instance: waiter.reply["member_id"] for instance, waiter in zip(instances, waiters, strict=True)}
    assignments = {member_id: b"%d" % number for number, member_id in enumerate(ids.values())}
    for instance in reversed(instances):
        groups.sync(ids[instance], 1, assignments, instance=instance)
    assert groups.group.state_name == "Stable"
    return ids


def test_a_static_member_needs_no_id_to_join(groups):
    ids = stable(groups, "a", "b")
    assert ids["a"].startswith("a-")
    assert groups.group.static_ids == ids


def test_a_static_member_comes_back_to_its_assignment_without_a_rebalance(groups):
    ids = stable(groups, "a", "b")
    reply = groups.join(instance="b").reply
    assert (reply["generation_id"], reply["leader"], reply["members"]) == (1, ids["a"], [])
    assert reply["member_id"] not in ids.values()
    assert groups.group.state_name == "Stable"
    assert groups.sync(reply["member_id"], 1, instance="b").reply["assignment"] == b"1"
    assert groups.heartbeat(ids["a"], 1, "a") is ErrorCode.none


def test_the_new_id_is_in_the_log_before_it_is_told(groups):
    stable(groups, "a", "b")
    reply = groups.join(instance="b").reply
    assert logged_state(groups.driver.replayed().groups["g"]) == logged_state(groups.group)
    groups.driver.restart()
    assert groups.heartbeat(reply["member_id"], 1, "b") is ErrorCode.none


def test_the_earlier_self_is_fenced(groups):
    ids = stable(groups, "a", "b")
    groups.join(instance="b")
    old = ids["b"]
    assert groups.heartbeat(old, 1, "b") is ErrorCode.fenced_instance_id
    assert code_of(groups.sync(old, 1, instance="b")) is ErrorCode.fenced_instance_id
    assert code_of(groups.join(old, instance="b")) is ErrorCode.fenced_instance_id
    assert groups.leave((old, "b")) == [ErrorCode.fenced_instance_id]
    assert groups.heartbeat(old, 1) is ErrorCode.unknown_member_id


def test_when_the_new_id_cannot_be_written_the_earlier_self_stays(groups):
    ids = stable(groups, "a", "b")
    groups.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    assert code_of(groups.join(instance="b")) is ErrorCode.coordinator_not_available
    assert groups.heartbeat(ids["b"], 1, "b") is ErrorCode.none


def test_a_static_member_that_comes_back_has_a_session_of_its_own(groups):
    ids = stable(groups, "a", "b")
    groups.pass_ms(SESSION_MS - 1)
    groups.heartbeat(ids["a"], 1, "a")
    new = groups.join(instance="b").reply["member_id"]
    groups.pass_ms(SESSION_MS - 2)
    assert groups.heartbeat(new, 1, "b") is ErrorCode.none
    groups.pass_ms(SESSION_MS)
    assert new not in groups.group.members


@pytest.mark.parametrize(("version", "skips"), [(5, False), (8, False), (9, True)])
def test_a_leader_that_comes_back_is_not_to_assign_anew(groups, version, skips):
    ids = stable(groups, "a", "b")
    reply = groups.join(instance="a", version=version).reply
    new = reply["member_id"]
    assert groups.group.leader_id == new
    if skips:
        assert (reply["leader"], reply["skip_assignment"]) == (new, True)
        assert [member["member_id"] for member in reply["members"]] == [new, ids["b"]]
    else:
        assert (reply["leader"], reply["members"]) == (ids["a"], [])


def test_other_topics_begin_a_rebalance(groups):
    before, after = (("range", subscription("t")),), (("range", subscription("t", "u")),)
    ids = stable(groups, "a", "b", protocols=before)
    waiter = groups.join(instance="b", protocols=after)
    assert not waiter.is_answered
    assert groups.join(ids["a"], instance="a", protocols=before).reply["generation_id"] == 2


def test_other_words_to_the_assignor_do_not(groups):
    stable(groups, "a", "b", protocols=(("range", subscription("t", user_data=b"owns 1")),))
    assert code_of(groups.join(instance="b", protocols=(("range", subscription("t")),))) is ErrorCode.none
    assert groups.group.state_name == "Stable"


def test_a_choice_of_another_protocol_begins_a_rebalance(groups):
    stable(groups, "a", "b", protocols=(("x", b""), ("y", b"")))
    assert not groups.join(instance="b", protocols=(("y", b""),)).is_answered
    assert groups.group.state_name == "PreparingRebalance"


def test_one_that_waited_to_join_is_fenced_by_its_later_self(groups):
    ids = stable(groups, "a", "b")
    waiter = groups.join(ids["a"], instance="a")
    again = groups.join(instance="a")
    assert code_of(waiter) is ErrorCode.fenced_instance_id
    groups.join(ids["b"], instance="b")
    assert code_of(again) is ErrorCode.none
    assert again.reply["leader"] == again.reply["member_id"]


def test_one_that_waited_for_an_assignment_is_fenced_and_the_others_go_back(groups):
    waiters = [groups.join(instance=instance) for instance in "abc"]
    groups.pass_ms(0)
    _, second, third = (waiter.reply["member_id"] for waiter in waiters)
    syncing = [groups.sync(second, 1, instance="b"), groups.sync(third, 1, instance="c")]
    groups.join(instance="b")
    assert [code_of(waiter) for waiter in syncing] == [ErrorCode.fenced_instance_id, ErrorCode.rebalance_in_progress]


def test_a_static_member_that_does_not_join_again_stays_until_its_session_is_over(groups):
    ids = stable(groups, "a", "b", session_ms=10 * REBALANCE_MS)
    waiter = groups.join(ids["a"], instance="a", session_ms=10 * REBALANCE_MS)
    groups.pass_ms(REBALANCE_MS)
    assert {member["group_instance_id"] for member in waiter.reply["members"]} == {"a", "b"}


def test_while_no_static_member_joins_again_their_sessions_decide(groups):
    ids = stable(groups, "a", "b", session_ms=5 * REBALANCE_MS, rebalance_ms=1)
    groups.leave((ids["a"], "a"))
    groups.pass_ms(4 * REBALANCE_MS)
    assert (groups.group.state_name, groups.group.generation_id) == ("PreparingRebalance", 1)
    groups.pass_ms(REBALANCE_MS)
    assert groups.group.state_name == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance_id(groups):
    ids = stable(groups, "a", "b")
    assert groups.leave(("", "b")) == [ErrorCode.none]
    assert list(groups.group.members) == [ids["a"]]


def test_a_handed_out_id_is_not_for_static_members(groups):
    stable(groups, "a")
    pending = groups.new_id()
    assert code_of(groups.join(pending, instance="b")) is ErrorCode.unknown_member_id
