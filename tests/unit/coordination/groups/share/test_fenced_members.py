"""Brokers are told of members of share groups that were fenced, together and independently of each other."""

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.broker.commands.command import checked_arguments
from skep.broker.commands.end_members import COMMAND
from skep.client.errors import Unreachable
from skep.coordination.groups.share.fenced_members import MEMBERS_AT_ONCE, FencedMembers
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.wire.apis import SKEP_COMMAND, Api

BROKERS = [BrokerRecord(BrokerId(number), "skep.example", 9092) for number in (1, 2, 3)]


class Brokers:
    """Stands for ``Peers``. Broker 2 is silent until ``answers`` is set."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, list[str]]] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self, broker: BrokerRecord, api: Api, body: Any, *, version: int | None = None) -> Any:
        assert (api, version, body["command"]) == (SKEP_COMMAND, 0, "end_members")
        arguments = checked_arguments("end_members", COMMAND, body["arguments"])
        self.told.append((broker.id, arguments["group"], arguments["members"]))
        if broker.id == 2:
            await self.answers.wait()
            if self.error is not None:
                raise self.error
        return SimpleNamespace(error_code=ErrorCode.none, error_message=None, result=json.dumps(None).encode())


class Scene:
    def __init__(self) -> None:
        self.brokers = Brokers()
        self.supervisor = Supervisor()
        self.here: list[tuple[str, list[str]]] = []
        image = ClusterImage.of("cluster", BROKERS)
        self.fenced = FencedMembers(BrokerId(1), lambda: image, self.brokers, self.supervisor)
        self.fenced.end_here = self.end_here

    async def end_here(self, group_id: str, members: Sequence[str]) -> None:
        self.here.append((group_id, list(members)))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_members_that_are_fenced_at_once_are_told_of_together() -> None:
    async def scenario() -> None:
        scene = Scene()
        for member in ("a", "b"):
            scene.fenced.add("g", member)
        scene.fenced.add("h", "c")
        await settle()
        assert scene.here == [("g", ["a", "b"]), ("h", ["c"])]
        assert sorted(scene.brokers.told) == [
            (2, "g", ["a", "b"]),
            (2, "h", ["c"]),
            (3, "g", ["a", "b"]),
            (3, "h", ["c"]),
        ]
        await scene.supervisor.close()

    asyncio.run(scenario())


def test_a_silent_broker_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.fenced.add("g", "a")
        await settle()
        scene.fenced.add("g", "b")
        await settle()
        assert scene.here == [("g", ["a"]), ("g", ["b"])]
        assert [told for told in scene.brokers.told if told[0] == 3] == [(3, "g", ["a"]), (3, "g", ["b"])]
        scene.brokers.error = Unreachable("it is gone")
        scene.brokers.answers.set()
        await settle()
        assert not scene.supervisor._tasks
        await scene.supervisor.close()

    asyncio.run(scenario())
    assert "broker 2 was not told of 1 fenced members of group g: it is gone" in caplog.text
    assert "failed" not in caplog.text


def test_many_members_with_long_names_are_within_the_bounds_of_a_command() -> None:
    async def scenario() -> None:
        scene = Scene()
        members = [f"\U0001f41d{number:05d}".ljust(36, "\U0001f41d") for number in range(2 * MEMBERS_AT_ONCE + 1)]
        for member in (*members, "x" * 37):
            scene.fenced.add("g", member)
        await settle()
        assert [one for _, some in scene.here for one in some] == members
        assert [len(some) for _, some in scene.here] == [MEMBERS_AT_ONCE, MEMBERS_AT_ONCE, 1]
        await scene.supervisor.close()

    asyncio.run(scenario())
