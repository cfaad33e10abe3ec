"""The life of the state of share partitions: initialized before they are assigned, deleted with topics and groups."""

import asyncio
import uuid
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.share import state_operations
from skep.coordination.groups.share.share_membership import ShareHeartbeatRequest
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey, ShareState
from tests.unit.coordination.groups.consumer_clients import GROUP
from tests.unit.coordination.groups.share_clients import ShareWorld, code_of

INTERVAL_MS = 1_000
PAUSE_MS = state_operations.PAUSE_S * 1_000


def alter(world: ShareWorld, *offsets: tuple[str, int, int], group_id: str = GROUP) -> dict[tuple[str, int], Any]:
    """The error codes of the partitions, None if there is none."""
    results = world.run(world.share.alter_offsets(group_id, offsets))
    names = {topic.topic_id: topic.name for topic in world.image.topics.values()}
    return {(names[key.topic_id], key.partition): error and error.code for key, error in results.items()}


def delete_offsets(world: ShareWorld, *topics: str) -> dict[uuid.UUID, Any]:
    ids = frozenset(world.topic_id(topic) for topic in topics)
    results: dict[uuid.UUID, Any] = world.run(world.share.delete_offsets(GROUP, ids))
    return results


def delete_topic(world: ShareWorld, name: str) -> None:
    topic_id = world.topic_id(name)
    world.delete(name)

    async def delete() -> None:
        world.share.delete_state_of_topics(frozenset({topic_id}))
        world.driver.pass_ms(0)

    world.run(delete())


def test_a_new_topic_starts_where_the_group_config_says():
    world = ShareWorld(t=3)
    world.member("a", "t").beat()
    assert world.starts("t") == {0: UNINITIALIZED, 1: UNINITIALIZED, 2: UNINITIALIZED}
    assert all(state.state_epoch > 0 for state in world.persister.states.values())


def test_new_partitions_of_a_known_topic_start_at_0():
    world = ShareWorld(t=1)
    member = world.member("a", "t").beat()
    world.grow("t", 3)
    world.driver.pass_ms(INTERVAL_MS)
    member.beat()
    assert world.starts("t") == {0: UNINITIALIZED, 1: 0, 2: 0}
    world.driver.pass_ms(INTERVAL_MS)
    assert member.beat().partitions("t") == {0, 1, 2}


def test_a_partition_is_recorded_as_initializing_before_it_is_initialized_and_assigned_afterwards():
    world = ShareWorld(t=1)
    seen = []
    world.persister.failures = {0: ErrorCode.coordinator_not_available}
    call = world.persister._call

    async def watched(name, key):
        states = world.share_group().states
        seen.append((dict(states.initializing), dict(states.initialized)))
        await call(name, key)

    world.persister._call = watched
    member = world.member("a", "t").beat()
    partitions = {world.topic_id("t"): frozenset({0})}
    assert seen == [(partitions, {})]
    assert member.partitions("t") == set()
    world.persister.failures = {}
    world.driver.pass_ms(PAUSE_MS)
    assert member.beat().partitions("t") == {0}
    states = world.share_group().states
    assert (states.initializing, states.initialized) == ({}, partitions)


def test_partitions_that_fail_do_not_keep_the_others_from_being_assigned_and_start_with_them():
    world = ShareWorld(t=3)
    world.persister.failures = {1: ErrorCode.coordinator_not_available}
    member = world.member("a", "t").beat()
    assert member.partitions("t") == {0, 2}
    assert world.beat("a", member.epoch)["heartbeat_interval"].total_seconds() == 1
    world.persister.failures = {}
    world.driver.pass_ms(PAUSE_MS)
    assert member.beat().partitions("t") == {0, 1, 2}
    # Not 0: the topic is as new to this partition as to the others.
    assert world.starts("t")[1] == UNINITIALIZED


def test_members_do_not_make_a_persister_that_fails_busy():
    world = ShareWorld(t=1)
    world.persister.failures = {0: ErrorCode.policy_violation}
    members = [world.member(name, "t").beat() for name in "abcdef"]
    assert len(world.persister.calls) == 1
    world.driver.pass_ms(PAUSE_MS)
    for member in members:
        member.beat()
    assert len(world.persister.calls) == 2


def test_an_initialization_that_a_restart_interrupts_is_taken_up():
    world = ShareWorld(t=2)
    world.persister.failures = dict.fromkeys((0, 1), ErrorCode.coordinator_not_available)
    member = world.member("a", "t").beat()
    world.driver.restart()
    world.persister.failures = {}
    assert member.beat().partitions("t") == {0, 1}
    assert world.starts("t") == {0: UNINITIALIZED, 1: UNINITIALIZED}


def test_a_topic_with_very_many_partitions_is_initialized_in_rounds(monkeypatch):
    monkeypatch.setattr(state_operations, "PARTITIONS_AT_ONCE", 2)
    world = ShareWorld(t=5)
    member = world.member("a", "t").beat()
    assert member.partitions("t") == set(range(5))
    assert set(world.starts("t").values()) == {UNINITIALIZED}


def test_a_heartbeat_does_not_wait_long_for_a_persister_that_hangs(monkeypatch):
    monkeypatch.setattr("skep.coordination.groups.share_group_coordinator.STATE_WAIT_S", 0)
    world = ShareWorld(t=1)

    async def scene():
        world.persister.gate = asyncio.Event()
        first = await world.share.heartbeat(ShareHeartbeatRequest(GROUP, "a", 0, topic_names=frozenset("t")))
        second = await world.share.heartbeat(ShareHeartbeatRequest(GROUP, "a", first["member_epoch"]))
        assert len(world.persister.calls) == 1, "one task at a time"
        world.persister.gate.set()
        return first, second

    for response in world.run(scene()):
        assert response["heartbeat_interval"].total_seconds() == 1
    world.driver.pass_ms(INTERVAL_MS)
    assert world.beat("a", 1)["assignment"] is not None


# Start offsets.


def test_offsets_are_altered_in_a_new_epoch_and_kept_by_those_who_join():
    world = ShareWorld(t=2)
    assert alter(world, ("t", 0, 7), ("t", 1, 8), ("t", 2, 9), ("u", 0, 1)) == {("t", 0): None, ("t", 1): None}
    assert world.starts("t") == {0: 7, 1: 8}
    assert world.share_group().group_epoch == 1
    before = world.persister.states[world.key("t", 0)].state_epoch
    assert alter(world, ("t", 0, 3)) == {("t", 0): None}
    assert world.persister.states[world.key("t", 0)].state_epoch == before + 1
    assert world.member("a", "t").beat().partitions("t") == {0, 1}
    assert world.starts("t") == {0: 3, 1: 8}


def test_a_group_that_was_deleted_and_created_again_has_other_state_epochs():
    """A leader that still has the old state cannot write it into the new one."""
    world = ShareWorld(t=2)
    epochs = []
    for _ in range(3):
        world.member("a", "t").beat().leave()
        epochs += [state.state_epoch for state in world.persister.states.values()]
        world.run(world.share.delete_group(GROUP))
        assert not world.persister.states
    assert len(set(epochs)) == 6


def test_an_alteration_wins_against_a_leader_that_begins_a_state_epoch():
    world = ShareWorld(t=1)
    alter(world, ("t", 0, 7))
    key = world.key("t", 0)
    summary, reads = world.persister.summary, []

    async def overtaken(key: SharePartitionKey) -> ShareState:
        found = await summary(key)
        if not reads:
            world.persister.states[key] = found._replace(state_epoch=found.state_epoch + 5)
        reads.append(found.state_epoch)
        return found

    world.persister.summary = overtaken
    assert alter(world, ("t", 0, 3)) == {("t", 0): None}
    assert reads == [reads[0], reads[0] + 5]
    assert (world.starts("t"), world.persister.states[key].state_epoch) == ({0: 3}, reads[1] + 1)


def test_an_alteration_that_fails_is_reported_and_leaves_the_old_state():
    world = ShareWorld(t=2)
    alter(world, ("t", 0, 7))
    world.persister.failures = {0: ErrorCode.coordinator_not_available}
    assert alter(world, ("t", 0, 9), ("t", 1, 9)) == {("t", 0): ErrorCode.coordinator_not_available, ("t", 1): None}
    world.persister.failures = {}
    assert world.member("a", "t").beat().partitions("t") == {0, 1}
    assert world.starts("t") == {0: 7, 1: 9}


def test_nothing_is_altered_in_a_group_with_members_or_of_another_kind():
    world = ShareWorld(t=1)
    world.member("a", "t").beat()
    assert code_of(lambda: alter(world, ("t", 0, 7))) is ErrorCode.non_empty_group
    assert code_of(lambda: delete_offsets(world, "t")) is ErrorCode.non_empty_group
    assert world.starts("t") == {0: UNINITIALIZED}


def test_an_alteration_of_nothing_creates_no_group():
    world = ShareWorld(t=1)
    assert alter(world, ("u", 0, 1)) == {}
    assert not world.driver.log


def test_the_offsets_of_a_topic_are_deleted():
    world = ShareWorld(t=2, u=1)
    world.member("a", "t u").beat().leave()
    assert delete_offsets(world, "t") == {world.topic_id("t"): None}
    assert (world.starts("t"), world.starts("u")) == ({}, {0: UNINITIALIZED})
    states = world.share_group().states
    assert (list(states.initialized), states.deleting) == ([world.topic_id("u")], frozenset())
    assert delete_offsets(world, "t") == {}


def test_a_topic_whose_deletion_failed_is_deleted_again_or_initialized_again():
    world = ShareWorld(t=2)
    alter(world, ("t", 0, 7), ("t", 1, 7))
    world.persister.failures = {1: ErrorCode.coordinator_not_available}
    (error,) = delete_offsets(world, "t").values()
    assert error.code is ErrorCode.coordinator_not_available
    assert world.share_group().states.deleting == {world.topic_id("t")}
    world.persister.failures = {}
    world.driver.restart()
    assert delete_offsets(world, "t") == {world.topic_id("t"): None}
    assert not world.persister.states

    alter(world, ("t", 0, 7), ("t", 1, 7))
    world.persister.failures = {1: ErrorCode.coordinator_not_available}
    delete_offsets(world, "t")
    world.persister.failures = {}
    assert world.member("a", "t").beat().partitions("t") == {0, 1}
    assert world.share_group().states.deleting == frozenset()
    assert world.starts("t") == {0: UNINITIALIZED, 1: UNINITIALIZED}


# Groups and topics that go.


def test_a_group_is_deleted_with_its_state():
    world = ShareWorld(t=2)
    member = world.member("a", "t").beat()
    assert code_of(lambda: world.run(world.share.delete_group(GROUP))) is ErrorCode.non_empty_group
    member.leave()
    assert world.run(world.share.delete_group(GROUP)) is False
    assert not world.driver.shard.groups
    assert not world.persister.states
    assert not world.driver.replayed().groups
    assert code_of(lambda: world.run(world.share.delete_group(GROUP))) is ErrorCode.group_id_not_found


def test_a_group_whose_state_cannot_be_deleted_stays():
    world = ShareWorld(t=2)
    world.member("a", "t").beat().leave()
    world.persister.failures = {1: ErrorCode.coordinator_not_available}
    assert code_of(lambda: world.run(world.share.delete_group(GROUP))) is ErrorCode.coordinator_not_available
    assert world.share_group().states.deleting == {world.topic_id("t")}
    world.persister.failures = {}
    world.run(world.share.delete_group(GROUP))
    assert not world.persister.states


def test_a_member_that_joins_while_its_group_is_deleted_ends_with_state():
    world = ShareWorld(t=2)
    world.member("a", "t").beat().leave()

    async def scene():
        world.persister.gate = asyncio.Event()
        deleting = asyncio.ensure_future(world.share.delete_group(GROUP))
        await asyncio.sleep(0)
        joining = asyncio.ensure_future(
            world.share.heartbeat(ShareHeartbeatRequest(GROUP, "b", 0, topic_names=frozenset("t")))
        )
        await asyncio.sleep(0)
        world.persister.gate.set()
        return await asyncio.gather(deleting, joining, return_exceptions=True)

    refused, joined = world.run(scene())
    assert refused.code is ErrorCode.non_empty_group
    assert joined["assignment"]["topic_partitions"][0]["partitions"] == [0, 1]
    assert world.starts("t") == {0: UNINITIALIZED, 1: UNINITIALIZED}


def test_the_state_of_a_deleted_topic_is_deleted_also_in_a_group_without_members():
    world = ShareWorld(t=2, u=1)
    world.member("a", "t u").beat().leave()
    delete_topic(world, "t")
    assert [key.topic_id for key in world.persister.states] == [world.topic_id("u")]
    assert list(world.share_group().states.names.values()) == ["u"]
    world.create("t", 1)
    assert world.member("b", "t").beat().partitions("t") == {0}


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.coordinator_not_available])
def test_a_deletion_that_fails_is_tried_again_unless_the_state_is_gone(code):
    world = ShareWorld(t=1)
    world.set_option("group.share.initialize.retry.interval.ms", "1")
    world.member("a", "t").beat().leave()
    world.persister.failures = {0: code}
    call = world.persister._call

    async def once(name, key):
        try:
            await call(name, key)
        finally:
            world.persister.failures = {}

    world.persister._call = once
    delete_topic(world, "t")
    assert not world.share_group().states.names
    deletions = [name for name, _ in world.persister.calls if name == "delete"]
    assert len(deletions) == (1 if code is ErrorCode.unknown_topic_or_partition else 2)


def test_a_deletion_that_cannot_be_recorded_is_tried_again():
    world = ShareWorld(t=1)
    world.set_option("group.share.initialize.retry.interval.ms", "1")
    world.member("a", "t").beat().leave()
    call = world.persister._call

    async def refusing(name, key):
        await call(name, key)
        world.driver.refuse_writes = (
            KafkaError(ErrorCode.coordinator_not_available) if len(world.persister.calls) < 4 else None
        )

    world.persister._call = refusing
    delete_topic(world, "t")
    assert not world.share_group().states.names
    assert [name for name, _ in world.persister.calls] == ["summary", "initialize", "delete", "delete"]


def test_a_topic_that_is_deleted_while_it_is_initialized_leaves_nothing_assigned():
    world = ShareWorld(t=1)
    topic_id = world.topic_id("t")

    async def scene():
        world.persister.gate = asyncio.Event()
        joining = asyncio.ensure_future(
            world.share.heartbeat(ShareHeartbeatRequest(GROUP, "a", 0, topic_names=frozenset("t")))
        )
        while not world.persister.calls:
            await asyncio.sleep(0)
        world.delete("t")
        world.share.delete_state_of_topics(frozenset({topic_id}))
        world.driver.pass_ms(0)
        world.persister.gate.set()
        return await joining

    assert world.run(scene())["assignment"] == {"topic_partitions": []}
    assert not world.persister.states
    assert not world.share_group().states.names
