"""A client of a TLS listener that has to wait for its turn."""

import asyncio
import socket
import struct
from types import SimpleNamespace

import pytest

from skep.server.tls_handshake import TlsHandshake

LONG_S = 1000.0
PATIENCE_S = 30.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing resets the connection."""


class Owner:
    def __init__(self):
        self.is_forgotten = asyncio.Event()
        self.reports = []

    def admit_newcomer(self, newcomer):
        newcomer.wait_s = LONG_S
        return True

    def forget_newcomer(self, newcomer):
        self.is_forgotten.set()

    def report(self, peer, reason):
        self.reports.append(reason)


def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    accepted.setblocking(False)
    return client, accepted


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("hello", [b"", b"the hello that is not read yet"])
async def test_a_client_that_leaves_while_it_waits_frees_its_place(hello, is_reset):
    client, accepted = connected()
    owner = Owner()
    handshake = TlsHandshake(owner, SimpleNamespace(name="SSL", tls_context=object()), accepted)
    handshake.begin()
    client.sendall(hello)
    if is_reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    await asyncio.wait_for(owner.is_forgotten.wait(), PATIENCE_S)
    await handshake._task
    assert accepted.fileno() == -1
    assert owner.reports == []


async def test_a_client_that_stays_keeps_its_place_until_it_is_hung_up_on():
    client, accepted = connected()
    owner = Owner()
    handshake = TlsHandshake(owner, SimpleNamespace(name="SSL", tls_context=object()), accepted)
    handshake.begin()
    client.sendall(b"hello")
    await asyncio.sleep(0.25)  # some looks
    assert not owner.is_forgotten.is_set()
    handshake.close()
    with pytest.raises(asyncio.CancelledError):
        await handshake._task
    assert owner.is_forgotten.is_set()
    client.close()
