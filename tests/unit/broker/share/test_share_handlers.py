"""ShareFetch and ShareAcknowledge on logs in memory: very many partitions, and limits that a client meets."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Slicer
from skep.broker.handlers import share_acknowledge, share_fetch
from tests.manual_clock import TickingClock
from tests.slices import counting_turns
from tests.unit.broker.share.scene import GROUP, ShareScene, run

MANY = 200
STEPS_PER_TURN = 5


def services(scene: ShareScene) -> Any:
    clock = TickingClock()
    return SimpleNamespace(
        share_partitions=scene.shares,
        share_sessions=scene.sessions,
        slicer=Slicer(clock),
        clock=scene.clock,
        config=SimpleNamespace(fetch_max_bytes=1 << 30),
        catalog=SimpleNamespace(image=scene.image),
    )


def request(scene: ShareScene, epoch: int, partitions: range, batches: Any = (), **fields: Any) -> Any:
    named = [SimpleNamespace(partition_index=index, acknowledgement_batches=batches) for index in partitions]
    body = {
        "group_id": GROUP,
        "member_id": "m1",
        "share_session_epoch": epoch,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [SimpleNamespace(topic_id=scene.topic_id, partitions=named)],
        "forgotten_topics_data": [],
        **fields,
    }
    return SimpleNamespace(version=2, correlation_id=1, connection=None, body=SimpleNamespace(**body))


def test_others_have_their_turns_while_a_fetch_names_very_many_partitions() -> None:
    async def scenario(scene: ShareScene) -> None:
        wide = request(scene, 0, range(MANY))
        parts, turns = await counting_turns(share_fetch.handle(services(scene), wide))
        assert sum(map(len, parts)) > MANY
        assert turns > 3 * MANY / STEPS_PER_TURN

    run(scenario)


def test_others_have_their_turns_while_very_many_partitions_are_acknowledged() -> None:
    async def scenario(scene: ShareScene) -> None:
        given = services(scene)
        await share_fetch.handle(given, request(scene, 0, range(1)))
        batch = SimpleNamespace(first_offset=0, last_offset=0, acknowledge_types=(1,))
        wide = request(scene, 1, range(MANY), (batch,))
        response, turns = await counting_turns(share_acknowledge.handle(given, wide))
        [topic] = response["responses"]
        assert len(topic["partitions"]) == MANY
        assert turns > 2 * MANY / STEPS_PER_TURN

    run(scenario)


def test_a_session_over_the_limit_is_refused_when_the_client_has_waited() -> None:
    async def scenario(scene: ShareScene) -> None:
        scene.limits = (0, 1000)
        fetch = share_fetch.handle(services(scene), request(scene, 0, range(1), max_wait=timedelta(milliseconds=50)))
        task = asyncio.ensure_future(fetch)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        with pytest.raises(KafkaError) as refused:
            await task
        assert refused.value.code is ErrorCode.share_session_limit_reached

    run(scenario)
