"""SyncGroup on a log that is synced: what is answered, and when, while an earlier write is on its way to the disk."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.broker.handlers import join_group, sync_group
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.metadata.cluster_image import ClusterImage
from skep.wire import apis
from tests.raw_requests import seconds
from tests.unit.broker.conftest import AdminBroker
from tests.unit.coordination.runtime_scene import HERE, TOPIC, Scene, run

JOIN: dict[str, Any] = {
    "session_timeout": seconds(10),
    "rebalance_timeout": seconds(20),
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"r"}],
}


def group_services(scene: Scene) -> Any:
    """As much of the broker's services as the requests of groups ask for."""
    config = read_broker_config({"group.initial.rebalance.delay.ms": "0"})
    runtime = CoordinatorRuntime(
        TOPIC,
        lambda context: GroupShard(context, CurrentConfig(config), lambda: ClusterImage.of("test")),
        decode_group_record,
        scene.replicas,
        scene.clock,
        scene.threads,
        scene.supervisor,
        scene.slicer,
    )
    runtime.follow(scene.topic, HERE)
    current = CurrentConfig(config)
    return SimpleNamespace(
        config=config,
        groups=GroupCoordinator(runtime, current),
        share_groups=ShareGroupCoordinator(runtime, current, None, scene.supervisor),  # type: ignore[arg-type]
        runtime=runtime,
        slicer=scene.slicer,
    )


def test_an_assignment_that_cannot_be_written_is_refused_when_what_was_written_before_is_synced():
    async def scenario(scene: Scene) -> None:
        services = group_services(scene)
        group, other = [name for name in "abcdefghi" if services.runtime.partition_for(name) == 0][:2]
        joined = await join_group.handle(services, AdminBroker.request(apis.JOIN_GROUP, 3, group_id=group, **JOIN))
        scene.threads.gate.clear()
        commit = services.runtime.submit(
            other,
            lambda shard: offset_operations.commit(shard, other, Committer("", None, -1), [("t", 0, 5, -1, "")], 8),
        )
        large = {"member_id": joined["member_id"], "assignment": b"x" * 2_000}
        request = AdminBroker.request(
            apis.SYNC_GROUP, 3, group_id=group, generation_id=1, member_id=joined["member_id"], assignments=[large]
        )
        refused = asyncio.ensure_future(sync_group.handle(services, request))
        await asyncio.wait([refused], timeout=0.05)
        assert not refused.done()
        assert services.runtime.shard_of(group).groups[group].state_name == "PreparingRebalance"
        scene.threads.gate.set()
        with pytest.raises(KafkaError) as caught:
            await refused
        assert caught.value.code is ErrorCode.unknown_server_error
        assert await commit == [ErrorCode.none]
        services.runtime.stop()

    run(scenario, flush_messages=1, max_message_bytes=1_000)
