"""A connection's order: responses as their requests came, produce requests overlapping, everything else one by one."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import DecodeError
from skep.base.loop.log_limit import LogLimit
from skep.broker.request import NO_RESPONSE, CloseConnection, Parts, Request
from skep.security.access import FULL_ACCESS, Access
from skep.security.principal import Principal
from skep.server.connection import TURN_S, Connection
from skep.wire import apis
from skep.wire.frame_reader import SCRATCH_SIZE, LargeBuffers, ReceiveBudget
from tests.manual_clock import ManualClock
from tests.unit.server.outgoing import framed, turns

MAX_INFLIGHT = 3


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    abort = close


APIS = {"produce": apis.PRODUCE, "share": apis.WRITE_SHARE_GROUP_STATE}
"""Those that overlap."""


class FakeListener:
    """A request is its text: ``produce-1`` is a produce, all else is not. Those in ``waiting`` are answered later."""

    max_request_bytes = 1000
    max_inflight_requests = MAX_INFLIGHT
    executor: Any = None
    slow_request_s = 1.0

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.receive_budget = ReceiveBudget(10_000)
        self.large_buffers = LargeBuffers()
        self.log_limit = LogLimit(self.clock)
        self.handled: list[str] = []
        self.waiting: dict[str, asyncio.Future[Parts]] = {}
        self.slow: list[tuple[str, float]] = []

    def decode(self, frame: memoryview, client_host: str) -> Request:
        text = bytes(frame).decode()
        if text == "nonsense":
            raise DecodeError(text)
        api = APIS.get(text.partition("-")[0], apis.METADATA)
        undecoded = (step for step in ()) if "long" in text else None
        return Request(api, 0, 0, None, client_host, text, len(frame), undecoded, undecoded is not None)

    def handle(self, request: Request) -> Parts | Awaitable[Parts]:
        text: str = request.body
        self.handled.append(text)
        request.is_exclusive |= "exclusive" in text
        if "ms" in text:
            self.clock.advance_ms(int(text.split("-")[1].removesuffix("ms")))
        if text.endswith("acks-0"):
            return NO_RESPONSE
        if text.endswith("hang-up"):
            raise CloseConnection(text)
        if text.endswith("refusal-fails"):
            raise ValueError(text)
        if text.endswith("at-once"):
            return (text.encode(),)
        self.waiting[text] = asyncio.get_running_loop().create_future()
        return self._answer(self.waiting[text])

    async def _answer(self, waiting: "asyncio.Future[Parts]") -> Parts:
        return await waiting

    def admit(self, connection: Connection) -> bool:
        return True

    def access(self, principal: Principal, host: str, listener: str) -> Access:
        return FULL_ACCESS

    def awaits_authentication(self, connection: Connection) -> None:
        pass

    def authenticated(self, connection: Connection, principal: Principal) -> None:
        pass

    def forget(self, connection: Connection) -> None:
        pass

    def report_slow(self, request: Request, peer: str, took_s: float) -> None:
        self.slow.append((request.body, took_s))


class Entrance:
    name = "PLAINTEXT"
    is_local = True
    security = SecurityConfig()
    mechanisms = None


class Client:
    def __init__(self) -> None:
        self.listener = FakeListener()
        self.transport = FakeTransport()
        self.connection = Connection(self.listener, Entrance())
        transport: Any = self.transport
        self.connection.connection_made(transport)

    def send(self, *texts: str) -> None:
        """All of them with one read."""
        data = b"".join(framed(text.encode()) for text in texts)
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def answer(self, text: str) -> None:
        self.listener.waiting.pop(text).set_result((text.encode(),))
        await turns(3)

    def responses(self) -> list[str]:
        """Those that were sent since the last look."""
        written, self.transport.written = self.transport.written, b""
        texts = []
        while written:
            end = 4 + int.from_bytes(written[:4], "big")
            texts.append(written[4:end].decode())
            written = written[end:]
        return texts


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("api", APIS)
async def test_produce_requests_overlap_and_are_answered_in_their_order(client: Client, api: str) -> None:
    first, second = f"{api}-1", f"{api}-2"
    client.send(first, second)
    assert client.listener.handled == [first, second]
    await turns(2)
    await client.answer(second)
    assert client.responses() == []
    await client.answer(first)
    assert client.responses() == [first, second]


async def test_a_produce_that_is_answered_at_once_waits_for_those_before_it(client: Client) -> None:
    client.send("produce-1", "produce-at-once")
    await turns(2)
    assert client.responses() == []
    await client.answer("produce-1")
    assert client.responses() == ["produce-1", "produce-at-once"]


async def test_a_produce_without_a_response_leaves_no_gap(client: Client) -> None:
    client.send("produce-1", "produce-acks-0", "produce-2")
    await turns(2)
    await client.answer("produce-2")
    await client.answer("produce-1")
    assert client.responses() == ["produce-1", "produce-2"]


async def test_another_request_is_not_handled_before_every_produce_is_answered(client: Client) -> None:
    client.send("produce-1", "metadata-at-once", "produce-2")
    assert client.listener.handled == ["produce-1"]
    assert not client.transport.is_reading
    await turns(2)
    await client.answer("produce-1")
    assert client.listener.handled == ["produce-1", "metadata-at-once", "produce-2"]
    assert client.responses() == ["produce-1", "metadata-at-once"]
    assert client.transport.is_reading


async def test_a_request_that_waits_holds_back_even_a_produce(client: Client) -> None:
    client.send("fetch-1", "produce-1")
    assert client.listener.handled == ["fetch-1"]
    await turns(2)
    await client.answer("fetch-1")
    assert client.listener.handled == ["fetch-1", "produce-1"]
    assert client.responses() == ["fetch-1"]


async def test_no_more_requests_are_taken_than_may_be_unanswered(client: Client) -> None:
    names = [f"produce-{number}" for number in range(2 * MAX_INFLIGHT)]
    client.send(*names)
    assert client.listener.handled == names[:MAX_INFLIGHT]
    assert not client.transport.is_reading
    await turns(2)
    await client.answer("produce-0")
    assert client.listener.handled == names[: MAX_INFLIGHT + 1]
    for name in names[1:]:
        await client.answer(name)
    assert client.responses() == names
    assert client.transport.is_reading


async def test_a_client_that_does_not_read_is_not_read_from(client: Client) -> None:
    client.connection.pause_writing()
    assert not client.transport.is_reading
    client.send("metadata-at-once")
    assert client.listener.handled == []
    client.connection.resume_writing()
    assert client.transport.is_reading
    assert client.responses() == ["metadata-at-once"]


async def test_what_is_due_is_answered_to_a_client_that_sends_nothing_more(client: Client) -> None:
    client.send("produce-1", "metadata-at-once")
    await turns(2)
    assert client.connection.eof_received()
    assert not client.transport.is_closed
    await client.answer("produce-1")
    assert client.responses() == ["produce-1", "metadata-at-once"]
    assert client.transport.is_closed


async def test_nothing_is_due_to_a_client_that_goes(client: Client) -> None:
    client.send("metadata-at-once")
    assert not client.connection.eof_received()


@pytest.mark.parametrize("last", ["nonsense", "produce-hang-up"])
async def test_what_was_answered_before_a_hang_up_is_sent(client: Client, last: str) -> None:
    client.send("metadata-at-once", last, "metadata-at-once")
    assert client.responses() == ["metadata-at-once"]
    assert client.transport.is_closed


async def test_nothing_holds_a_connection_that_has_ended_after_a_hang_up(client: Client) -> None:
    """With TLS a transport has 60 kB, and whoever sends nonsense again and again has many of them."""
    client.send("nonsense")
    client.connection.connection_lost(None)
    transport = weakref.ref(client.transport)
    del client.transport, client.connection
    await turns(2)
    gc.collect()
    assert transport() is None


@pytest.mark.parametrize("how", ["later", "at once", "at once, deferred"])
async def test_a_request_whose_refusal_fails_ends_its_connection(client: Client, how: str, caplog) -> None:
    if how == "later":
        client.send("fetch-long")
        client.listener.waiting["fetch-long"].set_exception(ValueError("refusal-fails"))
    elif how == "at once":
        client.send("refusal-fails")
    else:
        client.send("produce-1", "refusal-fails")
        client.listener.waiting["produce-1"].set_result((b"produced",))
    await turns(4)
    assert client.transport.is_closed
    [line] = caplog.messages
    assert line.endswith("ValueError: refusal-fails")
    client.connection.connection_lost(None)
    assert client.listener.receive_budget.held == 0


@pytest.mark.parametrize("end", ["eof_received", "connection_lost"])
async def test_whoever_keeps_something_for_a_connection_is_told_of_its_end_and_can_ask(
    client: Client, end: str
) -> None:
    told: list[object] = []
    client.connection.when_lost = told.append
    assert not client.connection.is_lost
    if end == "eof_received":
        client.connection.eof_received()
    else:
        client.connection.connection_lost(None)
    assert told == [client.connection]
    assert client.connection.is_lost


async def test_a_lost_connection_ends_what_it_waits_for(client: Client) -> None:
    client.send("fetch-1", "produce-1")
    await turns(2)
    client.connection.connection_lost(None)
    await turns(3)
    assert client.listener.waiting["fetch-1"].cancelled()
    assert client.listener.handled == ["fetch-1"]


async def test_requests_that_come_together_take_no_more_than_their_share_of_a_turn(client: Client) -> None:
    names = [f"metadata-2ms-{number}-at-once" for number in range(9)]
    client.send(*names)
    a_turn = -(-round(TURN_S * 1000) // 2)
    assert client.listener.handled == names[:a_turn]
    assert client.responses() == names[:a_turn]
    assert not client.transport.is_reading
    await turns(1)
    assert client.listener.handled == names[: 2 * a_turn]
    await turns(5)
    assert client.responses() == names[a_turn:]
    assert client.transport.is_reading


async def test_requests_left_for_the_next_turn_are_answered_after_the_client_is_done(
    client: Client,
) -> None:
    client.send("metadata-6ms-at-once", "metadata-1-at-once")
    assert client.connection.eof_received()
    await turns(2)
    assert client.responses() == ["metadata-6ms-at-once", "metadata-1-at-once"]
    assert client.transport.is_closed


async def test_a_connection_that_is_lost_while_it_awaits_its_turn_handles_nothing_more(client: Client) -> None:
    client.send("metadata-6ms-at-once", "metadata-1-at-once")
    client.connection.connection_lost(None)
    await turns(2)
    assert client.listener.handled == ["metadata-6ms-at-once"]


async def test_a_slow_request_is_reported_with_its_time(client: Client) -> None:
    client.send("metadata-2ms-at-once", "metadata-1500ms-at-once")
    assert client.listener.slow == [("metadata-1500ms-at-once", pytest.approx(1.5))]


async def test_a_long_produce_does_not_overlap(client: Client) -> None:
    client.send("produce-1", "produce-long", "produce-2")
    assert client.listener.handled == ["produce-1"]
    await turns(2)
    await client.answer("produce-1")
    assert client.listener.handled == ["produce-1", "produce-long"]
    assert client.listener.receive_budget.held > 0
    await client.answer("produce-long")
    assert client.listener.receive_budget.held == 0
    assert client.listener.handled == ["produce-1", "produce-long", "produce-2"]


async def test_a_produce_that_the_handler_finds_to_be_exclusive_does_not_overlap(client: Client) -> None:
    client.send("produce-1", "produce-exclusive", "produce-2")
    assert client.listener.handled == ["produce-1", "produce-exclusive"]
    await turns(2)
    await client.answer("produce-1")
    assert client.listener.handled == ["produce-1", "produce-exclusive"]
    await client.answer("produce-exclusive")
    assert client.listener.handled[2:] == ["produce-2"]


async def test_the_frame_of_a_long_request_counts_until_its_connection_is_lost(client: Client) -> None:
    client.send("fetch-long")
    assert client.listener.receive_budget.held > 0
    await turns(2)
    client.connection.connection_lost(None)
    assert client.listener.receive_budget.held == 0


async def test_responses_that_are_ready_in_one_turn_leave_in_one_write(client: Client) -> None:
    """As after a sync that commits many requests: each of them has a task of its own."""
    names = [f"produce-{number}" for number in range(MAX_INFLIGHT)]
    client.send(*names)
    await turns(2)
    for name in names:
        client.listener.waiting.pop(name).set_result((name.encode(),))
    await turns(3)
    assert client.responses() == names
    assert client.transport.writes == 1


async def test_a_response_that_is_the_only_one_due_leaves_in_the_turn_in_which_it_is_ready(client: Client) -> None:
    client.send("produce-1")
    await turns(1)
    client.listener.waiting.pop("produce-1").set_result((b"produce-1",))
    await turns(1)
    assert client.responses() == ["produce-1"]


async def test_the_socket_is_read_while_a_request_waits_until_something_comes(client: Client) -> None:
    client.send("fetch-1")
    assert client.transport.is_reading
    client.send("fetch-2")
    assert not client.transport.is_reading
    assert client.listener.handled == ["fetch-1"]
    await turns(2)
    await client.answer("fetch-1")
    assert client.listener.handled == ["fetch-1", "fetch-2"]
    assert client.transport.is_reading


async def test_a_large_request_behind_one_that_waits_is_received_whole_and_no_further(monkeypatch) -> None:
    monkeypatch.setattr(FakeListener, "max_request_bytes", 10 * SCRATCH_SIZE)
    client = Client()
    client.listener.receive_budget.limit = 10 * SCRATCH_SIZE
    client.send("fetch-1")
    body = "x" * (2 * SCRATCH_SIZE) + "at-once"
    data = framed(body.encode())
    while data:
        assert client.transport.is_reading
        buffer = client.connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size], data = data[:size], data[size:]
        client.connection.buffer_updated(size)
    assert not client.transport.is_reading
    await turns(2)
    await client.answer("fetch-1")
    assert client.listener.handled == ["fetch-1", body]


async def test_what_was_begun_in_the_turn_in_which_the_connection_is_lost_is_not_left_behind(client: Client) -> None:
    client.send("fetch-1")
    client.connection.connection_lost(None)
    await turns(3)
    assert client.listener.waiting["fetch-1"].cancelled()
