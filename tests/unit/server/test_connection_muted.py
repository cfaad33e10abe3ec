"""A connection whose client is over a quota: no request is taken, responses leave, and little is kept."""

import struct

import pytest

from skep.wire.frame_reader import SCRATCH_SIZE
from tests.unit.server.outgoing import framed, turns
from tests.unit.server.test_connection import Client

LONG_S = 1000.0


@pytest.fixture
def client():
    return Client()


def send_bytes(client, data):
    buffer = client.connection.get_buffer(-1)
    buffer[: len(data)] = data
    client.connection.buffer_updated(len(data))


async def test_requests_that_were_received_already_wait(client):
    handle = client.listener.handle

    def handle_and_mute(request):
        client.connection.mute(LONG_S)
        return handle(request)

    client.listener.handle = handle_and_mute
    client.send("1-at-once", "2-at-once", "3-at-once")
    assert client.responses() == ["1-at-once"]
    assert not client.transport.is_reading
    client.connection.unmute()
    assert client.responses() == ["2-at-once"]
    client.connection.unmute()
    client.connection.unmute()
    assert client.responses() == ["3-at-once"]
    assert client.transport.is_reading


async def test_as_long_as_nothing_arrives_the_socket_is_read_so_a_client_that_leaves_is_noticed(client):
    client.connection.mute(LONG_S)
    assert client.transport.is_reading
    assert client.connection.eof_received() is False
    client.connection.connection_lost(None)
    assert client.connection._unmuting is None


async def test_the_last_requests_of_a_client_that_leaves_are_still_handled(client):
    client.connection.mute(LONG_S)
    client.send("1-acks-0")
    assert client.connection.eof_received() is True
    client.connection.unmute()
    assert client.listener.handled == ["1-acks-0"]
    assert client.transport.is_closed


async def test_pending_responses_leave(client):
    client.send("produce-1")
    await turns(2)
    client.connection.mute(LONG_S)
    client.send("produce-2")
    await client.answer("produce-1")
    assert client.responses() == ["produce-1"]
    assert client.listener.handled == ["produce-1"]


async def test_a_deferred_request_waits_too(client):
    client.send("produce-1", "metadata-1")
    await turns(2)
    client.connection.mute(LONG_S)
    await client.answer("produce-1")
    assert client.listener.handled == ["produce-1"]
    client.connection.unmute()
    assert client.listener.handled == ["produce-1", "metadata-1"]
    await turns(2)
    await client.answer("metadata-1")


async def test_the_longer_of_two_times_counts(client):
    client.connection.mute(LONG_S)
    client.connection.mute(0)
    await turns(3)
    client.send("1-at-once")
    assert client.responses() == []


async def test_the_time_ends_by_itself(client):
    client.connection.mute(0)
    client.send("1-at-once")
    assert client.responses() == []
    while not client.listener.handled:
        await turns(1)
    assert client.responses() == ["1-at-once"]


async def test_no_buffer_is_taken_for_a_large_request(client):
    client.connection._frames._max_bytes = 10 * SCRATCH_SIZE
    large = framed(b"1-at-once" + b"x" * (5 * SCRATCH_SIZE) + b"-at-once")
    client.connection.mute(LONG_S)
    send_bytes(client, large[:SCRATCH_SIZE])
    assert not client.transport.is_reading
    assert client.listener.receive_budget.held == 0
    assert client.connection.receives_slowly_since(50.0) == 50.0
    client.listener.receive_budget.limit = 100 * SCRATCH_SIZE
    client.connection.unmute()
    assert client.transport.is_reading
    rest = large[SCRATCH_SIZE:]
    while rest:
        room = len(client.connection.get_buffer(-1))
        send_bytes(client, rest[:room])
        rest = rest[room:]
    assert len(client.listener.handled) == 1


async def test_a_closed_connection_is_not_muted(client):
    client.connection.close()
    client.connection.mute(LONG_S)
    assert client.connection._unmuting is None


async def test_a_length_that_cannot_be_is_refused_when_its_turn_comes(client):
    client.connection.mute(LONG_S)
    send_bytes(client, struct.pack(">i", -1))
    assert not client.transport.is_closed
    client.connection.unmute()
    assert client.transport.is_closed
