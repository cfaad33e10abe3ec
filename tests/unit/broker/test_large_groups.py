"""Requests of large groups: others get their turns in between."""

import asyncio
from datetime import timedelta
from typing import Any

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import Slicer
from skep.broker import named_items
from skep.broker.handlers import consumer_group_heartbeat, delete_groups, join_group, sync_group
from skep.coordination import background
from skep.coordination.groups import group_coordinator
from skep.coordination.groups.migration import large_downgrade, upgrade
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer
from skep.wire import apis
from tests.manual_clock import TickingClock
from tests.slices import counting_turns
from tests.unit.broker.conftest import AdminBroker
from tests.unit.broker.test_sync_group import JOIN, group_services
from tests.unit.coordination.runtime_scene import Scene, run

MEMBERS = 30
STEPS_PER_TURN = 5
NO_SUBSCRIPTION = bytes(10)
"""Version 0, no topics, no user data."""


async def joined(scene: Scene) -> tuple[Any, str, list[str]]:
    """A group whose members have joined, the leader first."""
    scene.slicer = Slicer(TickingClock())
    services = group_services(scene)
    group = next(name for name in "abcdefghi" if services.runtime.partition_for(name) == 0)
    join = {**JOIN, "protocols": [{"name": "range", "metadata": NO_SUBSCRIPTION}]}
    request = AdminBroker.request(apis.JOIN_GROUP, 3, group_id=group, **join)
    joins = [asyncio.ensure_future(join_group.handle(services, request)) for _ in range(MEMBERS)]
    while not all(join.done() for join in joins):
        scene.clock.advance_ms(1_000)
        await asyncio.sleep(0.001)
    responses = [join.result() for join in joins]
    return services, group, sorted((body["member_id"] for body in responses), key=responses[0]["leader"].__ne__)


def sync(group: str, member: str, assignments: dict[str, bytes]) -> Any:
    entries = [{"member_id": name, "assignment": assignment} for name, assignment in assignments.items()]
    return AdminBroker.request(
        apis.SYNC_GROUP, 3, group_id=group, generation_id=1, member_id=member, assignments=entries
    )


async def heartbeat_of_new(services: Any, group: str, epoch: int) -> Any:
    """Of a member of the new protocol."""
    request = AdminBroker.request(
        apis.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id=group,
        member_id="new",
        member_epoch=epoch,
        rebalance_timeout=timedelta(seconds=60),
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    response = consumer_group_heartbeat.handle(services, request)
    return response if isinstance(response, dict) else await response


def test_the_assignment_of_a_large_group_is_written_in_slices(monkeypatch):
    monkeypatch.setattr(group_coordinator, "SMALL_ASSIGNMENT", MEMBERS - 1)

    async def scenario(scene: Scene) -> None:
        services, group, members = await joined(scene)
        waiting = [asyncio.ensure_future(sync_group.handle(services, sync(group, name, {}))) for name in members[1:]]
        await asyncio.sleep(0)
        request = sync(group, members[0], {name: name.encode() for name in members})
        response, turns = await counting_turns(sync_group.handle(services, request))
        assert response["assignment"] == members[0].encode()
        assert turns > MEMBERS / STEPS_PER_TURN
        assert [body["assignment"] for body in await asyncio.gather(*waiting)] == [
            name.encode() for name in members[1:]
        ]

    run(scenario, max_message_bytes=100_000)


def test_a_large_group_is_upgraded_in_slices(monkeypatch):
    monkeypatch.setattr(upgrade, "SMALL_GROUP", MEMBERS - 1)

    async def scenario(scene: Scene) -> None:
        services, group, members = await joined(scene)
        await sync_group.handle(services, sync(group, members[0], {}))

        async def beat() -> Any:
            return await heartbeat_of_new(services, group, 0)

        first, second = asyncio.ensure_future(counting_turns(beat())), asyncio.ensure_future(beat())
        response, turns = await first
        assert response["member_id"] == "new"
        assert turns > 3 * MEMBERS / STEPS_PER_TURN
        assert (await second)["error_code"] is ErrorCode.coordinator_load_in_progress
        shard = services.runtime.shard_of(group)
        assert shard.groups[group].members.keys() == {"new", *members}
        assert (await beat())["member_epoch"] >= 1

    run(scenario, max_message_bytes=100_000)


def test_a_large_group_becomes_a_classic_group_again_in_slices(monkeypatch):
    monkeypatch.setattr(large_downgrade, "SMALL_GROUP", MEMBERS - 1)
    monkeypatch.setattr(large_downgrade, "MEMBERS_AT_ONCE", 1)
    monkeypatch.setattr(background, "STEPS_AT_ONCE", 1)

    async def scenario(scene: Scene) -> None:
        services, group, members = await joined(scene)
        await sync_group.handle(services, sync(group, members[0], {}))
        await heartbeat_of_new(services, group, 0)
        response = await heartbeat_of_new(services, group, -1)
        assert "error_code" not in response
        groups = services.runtime.shard_of(group).groups
        assert groups[group].type_name == "consumer"
        assert groups[group].members.keys() == set(members)

        async def until_classic() -> None:
            while groups[group].type_name == "consumer":
                await asyncio.sleep(0)

        _, turns = await counting_turns(until_classic())
        assert turns > MEMBERS / STEPS_PER_TURN
        assert groups[group].members.keys() == set(members)

    run(scenario, max_message_bytes=100_000)


def test_the_names_of_very_many_groups_are_told_apart_in_slices(monkeypatch):
    monkeypatch.setattr(named_items, "NAMES_AT_ONCE", 1)

    async def scenario(scene: Scene) -> None:
        scene.slicer = Slicer(TickingClock())
        services = group_services(scene)
        group = next(name for name in "abcdefghi" if services.runtime.partition_for(name) == 0)
        services.runtime.submit(
            group,
            lambda shard: offset_operations.commit(shard, group, Committer("", None, -1), [("t", 0, 5, -1, "")], 8),
        )
        request = AdminBroker.request(apis.DELETE_GROUPS, 2, groups_names=[group] * 100)
        response, turns = await counting_turns(delete_groups.handle(services, request))
        assert response["results"] == [{"group_id": group, "error_code": ErrorCode.none}]
        assert turns > 100 / STEPS_PER_TURN / 2

    run(scenario)
