"""The links of the fault runs: what is cut does not arrive, in that direction alone, and arrives when it is healed."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.links import Links, both_ways

LONG = bytes(range(256))
PATIENCE_S = 60


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets; what has arrived there shows by its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def serve(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(0.3)
    try:
        return connection.recv(1 << 16) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)


def first_request(client_id: bytes) -> bytes:
    body = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("direction", [("1", "2"), ("2", "1")], ids=["requests", "answers"])
def test_a_direction_that_is_cut_holds_its_bytes_until_it_is_healed(echo_port: int, direction: tuple[str, str]) -> None:
    with Links() as links, connect(links.listen(echo_port, 2, 1)) as connection:
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        links.cut([direction])
        connection.sendall(b"held")
        assert hears_nothing(connection)
        links.heal()
        assert connection.recv(100) == b"held"


def test_a_connection_made_over_a_cut_link_is_silent(echo_port: int) -> None:
    with Links() as links:
        port = links.listen(echo_port, 2, 1)
        links.cut(both_ways(1, 2))
        with connect(port) as connection:
            connection.sendall(b"held")
            assert hears_nothing(connection)
            links.heal()
            assert connection.recv(100) == b"held"


def test_brokers_are_told_from_clients_by_their_first_request(echo_port: int) -> None:
    with Links() as links:
        port = links.listen(echo_port, 2)
        links.cut(both_ways(7, 2))
        with connect(port) as broker, connect(port) as client:
            broker.sendall(first_request(b"broker-7-fetcher"))
            client.sendall(first_request(b"rdkafka"))
            assert client.recv(100) == first_request(b"rdkafka")
            assert hears_nothing(broker)


def test_the_other_side_is_seen_to_go_only_over_an_open_link(echo_port: int) -> None:
    with Links() as links, connect(links.listen(echo_port, 2, 1)) as connection:
        links.cut([("2", "1")])
        connection.shutdown(socket.SHUT_WR)
        assert hears_nothing(connection)
        links.heal()
        assert connection.recv(100) == b""


def test_a_garbled_direction_changes_a_byte_of_what_is_long(echo_port: int) -> None:
    with Links() as links, connect(links.listen(echo_port, 2, 1)) as connection:
        links.garble([("2", "1")])
        connection.sendall(b"short")
        assert connection.recv(100) == b"short"
        connection.sendall(LONG)
        received = connection.recv(1000)
        assert len(received) == len(LONG)
        assert sum(one != other for one, other in zip(received, LONG, strict=True)) == 1
        links.heal()
        connection.sendall(LONG)
        assert connection.recv(1000) == LONG


def test_dropped_connections_end_on_both_sides_and_new_ones_can_be_made(echo_port: int) -> None:
    with Links() as links:
        port = links.listen(echo_port, 2, 1)
        with connect(port) as connection:
            connection.sendall(b"before")
            assert connection.recv(100) == b"before"
            links.drop(1, 2)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        with connect(port) as connection:
            connection.sendall(b"after")
            assert connection.recv(100) == b"after"
