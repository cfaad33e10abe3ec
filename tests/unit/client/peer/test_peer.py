"""The connection between brokers: order, what ends it, and who is told."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from skep.client.errors import ClientError, Unreachable, Unsupported
from skep.client.peer.peer import Peer
from skep.wire.apis import API_VERSIONS, FETCH, METADATA
from skep.wire.client_codec import decode_response
from skep.wire.codec import encode_response
from tests.unit.client.scripted_broker import PATIENCE_S, ScriptedBroker

Play = Callable[[ScriptedBroker, Peer], Coroutine[Any, Any, None]]


def peer_of(broker: ScriptedBroker, timeout_s: float = PATIENCE_S, **others: Any) -> Peer:
    return Peer(broker.host, broker.port, client_id="broker-7", timeout_s=timeout_s, **others)


def played(play: Play, **others: Any) -> None:
    """Runs it with a broker and a connection to that."""

    async def run() -> None:
        async with ScriptedBroker() as broker:
            peer = peer_of(broker, **others)
            await peer.connect()
            await play(broker, peer)
            peer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def asking(peer: Peer, **others: Any) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(peer.ask(METADATA, {"topics": []}, **others))


async def told(task: "asyncio.Task[Any]", kind: type[ClientError], words: str) -> None:
    with pytest.raises(kind, match=words):
        await asyncio.wait_for(task, PATIENCE_S)


def test_many_are_under_way_and_each_gets_its_own_response() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        tasks = [asking(peer) for _ in range(20)]
        requests = [await broker.next() for _ in tasks]
        assert peer.in_flight == 20
        for number, request in enumerate(requests):
            request.answer({"cluster_id": f"cluster-{number}"})
        assert [response.cluster_id for response in await asyncio.gather(*tasks)] == [f"cluster-{n}" for n in range(20)]
        assert peer.in_flight == 0

    played(play)


def test_the_newest_common_version_is_asked_unless_one_is_named() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        assert peer.version_of(METADATA) == METADATA.newest
        task = asking(peer, version=9)
        request = await broker.next()
        assert (request.api_key, request.version) == (METADATA.key, 9)
        request.answer({})
        await task
        with pytest.raises(Unsupported, match=r"Fetch is needed and the broker at .* does not have it"):
            await peer.ask(FETCH, {})
        assert not peer.is_closed

    played(play)


def test_a_response_of_mebibytes_comes_as_its_bytes() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asyncio.get_running_loop().create_task(peer.ask_raw(METADATA, b"any body", version=9))
        behind = asking(peer)
        request = await broker.next()
        assert request.frame.endswith(b"broker-7" + b"\0" + b"any body")
        long = request.correlation_id.to_bytes(4, "big") + bytes(range(256)) * 20_000
        request.answer_raw(long)
        (await broker.next()).answer({"cluster_id": "behind it"})
        assert await task == long
        assert (await behind).cluster_id == "behind it"

    played(play)


def test_a_cancelled_ask_does_not_derange_the_order() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        first, second = asking(peer), asking(peer)
        requests = [await broker.next(), await broker.next()]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        for request, name in zip(requests, "ab", strict=True):
            request.answer({"cluster_id": name})
        assert (await second).cluster_id == "b"
        assert not peer.is_closed

    played(play)


def test_the_end_of_the_connection_is_told_to_all_who_wait() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        tasks = [asking(peer) for _ in range(3)]
        for _ in tasks:
            await broker.next()
        broker.hang_up()
        for task in tasks:
            await told(task, Unreachable, f"lost the connection to the broker at 127.0.0.1:{broker.port}")
        assert peer.is_closed
        await told(asking(peer), Unreachable, "lost the connection")

    played(play)


def test_silence_ends_the_connection_for_all() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        patient, hasty = asking(peer), asking(peer, timeout_s=0.01)
        await told(hasty, Unreachable, r"sent no response to Metadata \(timed out\)")
        await told(patient, Unreachable, "timed out")
        assert peer.is_closed

    played(play)


def test_silence_after_a_cancelled_ask_ends_the_connection_too() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asking(peer, timeout_s=0.05)
        await broker.next()
        task.cancel()
        await told(asking(peer), Unreachable, "timed out")

    played(play)


def test_a_response_in_time_stops_the_clock() -> None:
    async def play() -> None:
        loop, timers = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def noted(delay: float, callback: Any, *arguments: Any, **others: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, callback, *arguments, **others)
            if getattr(callback, "__self__", None) is peer:
                timers.append(timer)
            return timer

        async with ScriptedBroker() as broker:
            peer = peer_of(broker)
            await peer.connect()
            loop.call_later = noted  # type: ignore[method-assign]
            task = asking(peer)
            (await broker.next()).answer({})
            await task
            [timer] = timers
            assert timer.cancelled()
            peer.close()

    # This one and not uvloop's, because its methods can be replaced.
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(play())


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a response of 1213486160 bytes"),
        (b"\0\0\0\2ab", "a response of 2 bytes"),
        (b"\0\0\0\4\0\0\1\0", "response 256, and the next in order"),
    ],
)
def test_nonsense_ends_the_connection_and_is_called_that(nonsense: bytes, words: str) -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        tasks = [asking(peer), asking(peer)]
        (await broker.next()).writer.write(nonsense)
        for task in tasks:
            await told(task, ClientError, f"the response of {peer.address} is not Kafka's protocol: {words}")
        assert peer.is_closed

    played(play)


def test_a_response_that_nobody_asked_for_ends_the_connection() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asking(peer)
        request = await broker.next()
        request.answer({})
        request.answer({})
        await task
        while not peer.is_closed:
            await asyncio.sleep(0)
        await told(asking(peer), ClientError, "a response without a request in flight")

    played(play)


def test_a_response_that_cannot_be_decoded_ends_the_connection_for_all() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        first, second = asking(peer), asking(peer)
        request = await broker.next()
        # The brokers announced are two thousand million.
        request.answer_raw(request.correlation_id.to_bytes(4, "big") + b"\0" + bytes(4) + b"\xff\xff\xff\xff\x07")
        await told(first, ClientError, "not Kafka's protocol: Metadata v13")
        await told(second, ClientError, "not Kafka's protocol: Metadata v13")
        assert peer.is_closed

    played(play)


def test_a_response_longer_than_allowed_ends_the_connection() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asking(peer)
        (await broker.next()).answer_raw(bytes(1001))
        await told(task, ClientError, "a response of 1001 bytes; the limit is 1000")

    played(play, max_response_bytes=1000)


def test_closing_is_told_to_all_who_wait() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asking(peer)
        await broker.next()
        peer.close()
        await told(task, Unreachable, "was closed")
        with pytest.raises(Unreachable, match="was closed"):
            peer.version_of(METADATA)

    played(play)


def test_a_body_that_cannot_be_encoded_leaves_the_connection_as_it_is() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        with pytest.raises(TypeError):
            await peer.ask(METADATA, {"topics": "no list"})
        assert peer.in_flight == 0
        task = asking(peer)
        (await broker.next()).answer({"cluster_id": "c"})
        assert (await task).cluster_id == "c"

    played(play)


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    async def play() -> None:
        async with ScriptedBroker() as broker:
            pass
        peer = peer_of(broker)
        with pytest.raises(Unreachable, match=f"no broker answers at 127.0.0.1:{broker.port} "):
            await peer.connect()
        assert peer.is_closed

    run(play)


def test_who_takes_connections_and_says_nothing_is_unreachable() -> None:
    async def play() -> None:
        async with ScriptedBroker(apis=()) as broker:
            peer = peer_of(broker, timeout_s=0.05)
            with pytest.raises(Unreachable, match="timed out"):
                await peer.connect()
            assert peer.is_closed

    run(play)


def test_closing_while_it_connects_is_told_at_once() -> None:
    async def play() -> None:
        async with ScriptedBroker(apis=()) as broker:
            peer = peer_of(broker)
            connecting = asyncio.get_running_loop().create_task(peer.connect())
            await broker.next()
            peer.close()
            await told(connecting, Unreachable, "was closed")

    run(play)


def test_a_connect_whose_time_is_up_may_be_ended_in_the_same_moment() -> None:
    async def play() -> None:
        async with ScriptedBroker(apis=()) as broker:
            peer = peer_of(broker)
            connecting = asyncio.get_running_loop().create_task(peer.connect())
            await broker.next()
            # The time of the first request runs out at nearly the same time as that of connecting; here only the
            # latter does, and it is we who end the connection.
            assert peer._connecting is not None
            peer._connecting.reschedule(asyncio.get_running_loop().time())
            while peer._connecting is not None and not peer._connecting.expired():
                await asyncio.sleep(0)
            assert peer._connecting is not None
            peer.close()
            assert peer.is_closed
            assert peer.in_flight == 0
            await told(connecting, Unreachable, "closed|timed out")

    run(play)


def test_a_cancelled_connect_leaves_it_closed() -> None:
    async def play() -> None:
        async with ScriptedBroker(apis=()) as broker:
            peer = peer_of(broker)
            connecting = asyncio.get_running_loop().create_task(peer.connect())
            await broker.next()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            assert connecting.cancelled()
            assert peer.is_closed

    run(play)


def test_the_raw_response_is_one_that_the_codec_reads() -> None:
    async def play(broker: ScriptedBroker, peer: Peer) -> None:
        task = asyncio.get_running_loop().create_task(peer.ask_raw(METADATA, {"topics": []}))
        request = await broker.next()
        request.answer({"cluster_id": "c"})
        frame = await task
        assert frame == encode_response(METADATA.key, METADATA.newest, request.correlation_id, {"cluster_id": "c"})
        assert decode_response(METADATA, METADATA.newest, frame)[1].cluster_id == "c"

    played(play)


def test_versions_are_asked_once_and_first() -> None:
    async def play() -> None:
        async with ScriptedBroker(apis=()) as broker:
            peer = peer_of(broker)
            connecting = asyncio.get_running_loop().create_task(peer.connect())
            request = await broker.next()
            assert (request.api_key, request.version) == (API_VERSIONS.key, 0)
            request.answer({"api_keys": [{"api_key": METADATA.key, "min_version": 0, "max_version": 5}]})
            await connecting
            assert peer.version_of(METADATA) == 5
            peer.close()

    run(play)
