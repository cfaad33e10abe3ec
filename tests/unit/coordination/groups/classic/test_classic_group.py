"""Classic groups as offsets, listings, restarts and a crowd of members see them."""

import struct
import sys

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import GroupMemberValue, GroupMetadataKey, GroupMetadataValue
from skep.coordination.groups.classic.classic_description import describe
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    NEXT_STATES,
    PREPARING_REBALANCE,
    STABLE,
    ClassicState,
)
from skep.coordination.groups.classic.consumer_protocol import subscribed_topics
from tests.unit.coordination.groups.classic_groups import SESSION_MS, ClassicGroups, logged_state

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def groups() -> ClassicGroups:
    return ClassicGroups(NO_DELAY)


def subscription(*topics: str, version: int = 0) -> bytes:
    encoded = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", version, len(topics)) + encoded + struct.pack(">i", -1)


def rebalancing(groups: ClassicGroups) -> str:
    leader, _ = groups.stable(2)
    groups.join(leader)
    return leader


def completing(groups: ClassicGroups) -> str:
    member, _ = groups.join_as_new()
    groups.pass_ms(0)
    return member


# States.


@pytest.mark.parametrize("state", ClassicState)
@pytest.mark.parametrize("following", ClassicState)
def test_only_the_transitions_of_the_table_are_possible(groups, state, following):
    group = ClassicGroup("g", groups.driver.clock, groups.driver.timers)
    group.state = state
    if following in NEXT_STATES[state]:
        group.become(following)
        assert group.state is following
    else:
        with pytest.raises(AssertionError, match=following.value):
            group.become(following)


def test_the_table_knows_kafkas_transitions():
    for before, after in [
        (EMPTY, PREPARING_REBALANCE),
        (PREPARING_REBALANCE, COMPLETING_REBALANCE),
        (PREPARING_REBALANCE, EMPTY),
        (COMPLETING_REBALANCE, STABLE),
        (COMPLETING_REBALANCE, PREPARING_REBALANCE),
        (STABLE, PREPARING_REBALANCE),
    ]:
        assert after in NEXT_STATES[before]
    assert all(DEAD in following for state, following in NEXT_STATES.items() if state is not DEAD)
    assert not NEXT_STATES[DEAD]


# Who may commit.


def commit_code(group: ClassicGroup, member_id="", instance=None, generation=-1, is_transactional=False) -> ErrorCode:
    try:
        group.check_offset_commit(member_id, instance, generation, is_transactional=is_transactional, version=9)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def test_members_of_the_generation_commit_and_nobody_else(groups):
    member, _ = groups.stable(2)
    group = groups.group
    assert commit_code(group, member, generation=1) is ErrorCode.none
    assert commit_code(group, member, generation=0) is ErrorCode.illegal_generation
    assert commit_code(group, member, generation=2) is ErrorCode.illegal_generation
    assert commit_code(group, "stranger", generation=1) is ErrorCode.unknown_member_id
    assert commit_code(group, member, "i", generation=1) is ErrorCode.unknown_member_id
    assert commit_code(group) is ErrorCode.unknown_member_id
    assert commit_code(group, is_transactional=True) is ErrorCode.none


def test_the_generation_before_may_commit_while_the_next_one_gathers(groups):
    member = rebalancing(groups)
    assert commit_code(groups.group, member, generation=1) is ErrorCode.none


def test_while_an_assignment_is_awaited_only_transactions_commit(groups):
    member = completing(groups)
    assert commit_code(groups.group, member, generation=1) is ErrorCode.rebalance_in_progress
    assert commit_code(groups.group, member, generation=1, is_transactional=True) is ErrorCode.none


def test_anybody_commits_to_an_empty_group_but_not_as_a_member(groups):
    (member,) = groups.stable(1)
    groups.leave(member)
    assert commit_code(groups.group) is ErrorCode.none
    assert commit_code(groups.group, member, generation=1) is ErrorCode.unknown_member_id


# Subscriptions and expiry.


def test_a_group_knows_what_its_members_are_subscribed_to(groups):
    for topics in (["a"], ["a", "b"]):
        groups.join_as_new(protocols=(("range", subscription(*topics)),))
    groups.pass_ms(0)
    assert groups.group.can_read_subscriptions()
    assert [groups.group.is_subscribed_to(topic) for topic in "abc"] == [True, True, False]


def test_a_group_of_something_else_knows_no_topics(groups):
    groups.join_as_new(protocol_type="connect", protocols=(("compatible", subscription("a")),))
    groups.pass_ms(0)
    assert not groups.group.can_read_subscriptions()
    assert not groups.group.is_subscribed_to("a")


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        struct.pack(">hi", 0, 2_000_000_000),
        struct.pack(">hi", 0, -5),
        subscription("a")[:-5],
        struct.pack(">hih", 0, 1, 2) + b"\xff\xfe" + struct.pack(">i", -1),
    ],
)
def test_metadata_that_cannot_be_read_counts_as_subscribed_to_everything(groups, metadata):
    assert subscribed_topics(metadata) is None
    member, _ = groups.join_as_new(protocols=(("range", metadata),))
    groups.pass_ms(0)
    groups.sync(member, 1)
    assert groups.group.is_subscribed_to("a")
    assert groups.group.offsets_expire_since(7) is None


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_a_subscription_begins_with_the_topics(version):
    behind = struct.pack(">i", 0) * min(version, 1) + struct.pack(">i", 3) * (version >= 2)
    assert subscribed_topics(subscription("a", "b", version=version) + behind) == {"a", "b"}


def test_offsets_of_a_stable_group_expire_since_their_commit(groups):
    member, _ = groups.join_as_new(protocols=(("range", subscription("a")),))
    groups.pass_ms(0)
    assert groups.group.offsets_expire_since(7) is None
    groups.sync(member, 1)
    assert groups.group.offsets_expire_since(7) == 7


def test_offsets_of_an_empty_group_expire_since_it_became_empty(groups):
    (member,) = groups.stable(1)
    groups.pass_ms(1_000)
    groups.leave(member)
    emptied_at = groups.driver.clock.now_ms()
    groups.pass_ms(5_000)
    groups.driver.restart()
    assert groups.group.offsets_expire_since(7) == emptied_at


def test_offsets_of_a_group_that_never_had_members_expire_since_their_commit(groups):
    assert ClassicGroup("g", groups.driver.clock, groups.driver.timers).offsets_expire_since(7) == 7


# Restarts.


def test_after_a_restart_members_go_on_as_if_nothing_had_happened(groups):
    leader, follower = groups.stable(2)
    before = logged_state(groups.group)
    groups.driver.restart()
    assert logged_state(groups.group) == before
    groups.pass_ms(SESSION_MS - 1)
    assert groups.heartbeat(leader, 1) is ErrorCode.none
    assert groups.sync(follower, 1).reply["assignment"] == b"1"
    assert commit_code(groups.group, follower, generation=1) is ErrorCode.none


def test_after_a_restart_silence_counts_from_the_restart(groups):
    leader, _ = groups.stable(2)
    groups.pass_ms(SESSION_MS - 1)
    groups.driver.restart()
    groups.pass_ms(SESSION_MS - 1)
    assert groups.heartbeat(leader, 1) is ErrorCode.none
    groups.pass_ms(1)
    assert list(groups.group.members) == [leader]


def test_a_restart_in_the_middle_of_a_rebalance_leads_back_to_the_generation_before(groups):
    leader, follower = groups.stable(2)
    joins = [groups.join(leader), groups.join_as_new()[1]]
    told = groups.driver.restart()
    assert told == joins
    assert [waiter.reply.code for waiter in joins] == [ErrorCode.not_coordinator] * 2
    assert (groups.group.state_name, groups.group.generation_id) == ("Stable", 1)
    again = [groups.join(leader), groups.join(follower)]
    assert [waiter.reply["generation_id"] for waiter in again] == [2, 2]


def test_a_group_that_is_too_large_after_a_restart_rebalances_and_the_last_is_turned_away(groups):
    leader, follower = groups.stable(2)
    groups.config.value = read_broker_config({"group.max.size": "1", **NO_DELAY})
    groups.driver.restart()
    assert groups.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    first = groups.join(follower)
    assert groups.join(leader).reply["error_code"] is ErrorCode.group_max_size_reached
    assert first.reply["generation_id"] == 2
    assert list(groups.group.members) == [follower]


def test_a_deleted_group_is_forgotten_with_its_timers_having_no_effect(groups):
    (member,) = groups.stable(1)
    groups.leave(member)
    pending = groups.new_id()
    groups.shard.replay(0, GroupMetadataKey(group="g"), None, None)
    assert not groups.shard.groups
    groups.pass_ms(SESSION_MS)
    assert groups.join(pending).reply.code is ErrorCode.unknown_member_id


def test_members_in_records_from_before_rebalance_timeouts_have_that_of_their_session(groups):
    member = GroupMemberValue(
        member_id="m", client_id="c", client_host="/h", session_timeout=7_000, subscription=b"s", assignment=b"a"
    )
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=(member,))
    groups.shard.replay(0, GroupMetadataKey(group="g"), value, None)
    assert groups.group.rebalance_timeout_ms == 7_000


# Descriptions.


def test_a_stable_group_is_described_with_what_its_members_said_and_got(groups):
    leader, _ = groups.stable(2)
    described = groups.driver.submit(lambda shard: describe(shard, "g", 6))
    assert (described["group_state"], described["protocol_type"], described["protocol_data"]) == (
        "Stable",
        "consumer",
        "range",
    )
    assert described["members"][0] == {
        "member_id": leader,
        "group_instance_id": None,
        "client_id": "app",
        "client_host": "/127.0.0.1",
        "member_metadata": b"r",
        "member_assignment": b"0",
    }


def test_a_group_that_rebalances_is_described_without_what_its_members_said(groups):
    rebalancing(groups)
    described = groups.driver.submit(lambda shard: describe(shard, "g", 6))
    assert (described["group_state"], described["protocol_data"]) == ("PreparingRebalance", "")
    assert [member["member_metadata"] for member in described["members"]] == [b"", b""]


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_is_not_there_is_dead_and_an_error_from_version_6_on(groups, version):
    described = groups.driver.submit(lambda shard: describe(shard, "g", version))
    assert described["group_state"] == "Dead"
    assert ("error_code" in described) == (version >= 6)


# A crowd.


def calls_per_member(count: int) -> float:
    """Python calls per member for ``count`` members to join, ask for their assignment and send a heartbeat."""
    groups = ClassicGroups({"group.initial.rebalance.delay.ms": "3000"})
    calls = 0

    def count_call(frame, event, _):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        members = groups.stable(count)
        for member in members:
            groups.heartbeat(member, 1)
    finally:
        sys.setprofile(None)
    return calls / count


def test_the_cost_of_a_member_does_not_grow_with_the_group():
    assert calls_per_member(500) < 1.3 * calls_per_member(50)
