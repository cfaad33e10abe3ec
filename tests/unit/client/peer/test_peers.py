"""Shared connections to brokers: one for each, made when needed and anew after its end."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from skep.client.errors import Unreachable
from skep.client.peer.peers import Peers
from skep.wire.apis import METADATA
from tests.unit.client.scripted_broker import PATIENCE_S, ScriptedBroker

Play = Callable[[ScriptedBroker, Peers], Coroutine[Any, Any, None]]


def played(play: Play, **others: Any) -> None:
    async def run() -> None:
        peers = Peers("broker-7", PATIENCE_S)
        async with ScriptedBroker(**others) as broker:
            await play(broker, peers)
            await peers.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def asking(peers: Peers, broker: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(peers.ask(broker, METADATA, {"topics": []}))


async def answered(broker: ScriptedBroker, task: "asyncio.Task[Any]") -> None:
    (await broker.next()).answer({"cluster_id": "c"})
    assert (await asyncio.wait_for(task, PATIENCE_S)).cluster_id == "c"


def test_all_who_ask_one_broker_share_a_connection() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        tasks = [asking(peers, broker) for _ in range(5)]
        for task in tasks:
            await answered(broker, task)
        await answered(broker, asking(peers, broker))
        assert broker.connections == 1

    played(play)


def test_after_its_end_it_is_made_anew() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        task = asking(peers, broker)
        await broker.next()
        broker.hang_up()
        with pytest.raises(Unreachable):
            await task
        await answered(broker, asking(peers, broker))
        assert broker.connections == 2

    played(play)


def test_a_broker_that_moved_is_asked_where_it_is_now() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        old = asking(peers, broker)
        await broker.next()
        async with ScriptedBroker() as moved:
            assert moved.id == broker.id
            await answered(moved, asking(peers, moved))
            with pytest.raises(Unreachable, match=f"the connection to 127.0.0.1:{broker.port} was closed"):
                await old

    played(play)


def test_only_the_retained_are_kept() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        await answered(broker, asking(peers, broker))
        peers.retain([SimpleNamespace(id=broker.id, host=broker.host, port=broker.port)])
        await answered(broker, asking(peers, broker))
        assert broker.connections == 1
        peers.retain([SimpleNamespace(id=broker.id, host=broker.host, port=broker.port + 1)])
        await answered(broker, asking(peers, broker))
        assert broker.connections == 2
        peers.retain([])
        await answered(broker, asking(peers, broker))
        assert broker.connections == 3

    played(play)


def test_who_is_cancelled_while_it_connects_does_not_take_it_from_the_others() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        first, second = asking(peers, broker), asking(peers, broker)
        versions = await broker.next()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        versions.answer({"api_keys": [{"api_key": METADATA.key, "min_version": 0, "max_version": 9}]})
        await answered(broker, second)
        assert broker.connections == 1

    played(play, apis=())


def test_a_broker_that_is_away_is_unreachable_for_all_who_wait_and_tried_again_for_the_next() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        tasks = [asking(peers, broker) for _ in range(3)]
        await broker.next()
        broker.hang_up()
        for task in tasks:
            with pytest.raises(Unreachable):
                await task
        again = asking(peers, broker)
        await broker.next()
        assert broker.connections == 2
        again.cancel()

    played(play, apis=())


def test_closing_tells_those_who_wait_and_those_who_come_later() -> None:
    async def play(broker: ScriptedBroker, peers: Peers) -> None:
        connecting = asking(peers, broker)
        await broker.next()
        await asyncio.wait_for(peers.close(), PATIENCE_S)
        with pytest.raises(Unreachable, match="was closed"):
            await connecting
        with pytest.raises(Unreachable, match="are closed"):
            await peers.ask(broker, METADATA, {})

    played(play, apis=())
