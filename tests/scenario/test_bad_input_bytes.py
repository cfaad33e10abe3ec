"""Bytes that are no requests, on a real socket: the connection is closed with one log line, nobody else notices."""

import random
import socket
import struct
from collections.abc import Iterator

import psutil
import pytest

from skep.wire import apis
from tests.fuzz.requests import RequestMaker
from tests.fuzz.scene import MEBIBYTE, Scene, scene
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

SOME_RANDOM = random.Random(20_000)


@pytest.fixture(scope="module")
def the_scene() -> Iterator[Scene]:
    with scene() as found:
        yield found


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1)


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


FETCH_12 = framed(RequestMaker(random.Random(5)).frame(apis.FETCH, 12))

HOPELESS = {
    "random bytes": b"\x7a" + SOME_RANDOM.randbytes(5000),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SOME_RANDOM.randbytes(200),
    "a frame of 2 GiB": struct.pack(">i", 2**31 - 1) + b"only this",
    "a frame larger than socket.request.max.bytes": struct.pack(">i", 100 * MEBIBYTE + 1),
    "a frame of no bytes": struct.pack(">i", 0),
    "a frame of -1 bytes": struct.pack(">i", -1),
    "a frame of one byte": framed(b"x"),
    "half a header": framed(header(apis.FETCH.key, 12)[:7]),
    "an unknown API": framed(header(999, 0)),
    "an API below zero": framed(header(-1, 0)),
    "an API of Kafka that is not served": framed(header(4, 1)),
    "Produce below the oldest version": framed(header(apis.PRODUCE.key, 0)),
    "Produce above the newest version": framed(header(apis.PRODUCE.key, apis.PRODUCE.newest + 1)),
    "Metadata below version 0": framed(header(apis.METADATA.key, -1)),
    "Fetch above the newest version": framed(header(apis.FETCH.key, 99)),
    "a client id longer than the frame": framed(struct.pack(">hhih", 3, 1, 1, 300) + b"short"),
    "a client id longer than the limit": framed(struct.pack(">hhih", 3, 1, 1, 5000) + b"x" * 5000),
    "a body that is cut short": framed(FETCH_12[4:-3]),
    "an array of 2,147,483,647 topics": framed(header(apis.METADATA.key, 1) + b"\x7f\xff\xff\xff"),
    "a compact array of 34 thousand million topics": framed(header(apis.METADATA.key, 9) + b"\0\xff\xff\xff\xff\x7f"),
    "an array that may not be null": framed(header(apis.CREATE_TOPICS.key, 2) + b"\xff\xff\xff\xff" + bytes(5)),
    "a name that is not UTF-8": framed(header(apis.METADATA.key, 1) + struct.pack(">ih2s", 1, 2, b"\xff\xfe")),
}


@pytest.mark.parametrize("data", HOPELESS.values(), ids=HOPELESS)
def test_what_is_no_request_ends_the_connection_with_one_line(the_scene: Scene, data: bytes) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        client.socket.sendall(data)
        the_scene.expect_hang_up(client)


def test_the_line_names_the_api_where_it_is_known(the_scene: Scene) -> None:
    with the_scene.client() as client:
        client.send_frame(header(apis.FETCH.key, 99))
        the_scene.expect_hang_up(client, "Fetch v99 is not served; served are v4 to v18")
    with the_scene.client() as client:
        client.send_frame(header(999, 0))
        the_scene.expect_hang_up(client, "API key 999 is not served")


def test_the_requests_before_the_bad_one_are_answered(the_scene: Scene) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        good = client.encode(apis.METADATA, 9, {"topics": []})
        client.socket.sendall(framed(good) + framed(header(999, 0)))
        assert client.receive().topics == ()
        the_scene.expect_hang_up(client)


@pytest.mark.parametrize("seed", range(20))
def test_streams_of_random_bytes_leave_everybody_else_alone(the_scene: Scene, seed: int) -> None:
    source = random.Random(seed)
    with the_scene.unharmed():
        for _ in range(20):
            with the_scene.client() as client:
                client.socket.sendall(source.randbytes(source.choice((1, 3, 4, 14, 1000, 70_000))))


def test_half_frames_and_departures_are_no_news(the_scene: Scene) -> None:
    the_scene.new_lines()
    with the_scene.unharmed():
        for size in range(1, len(FETCH_12), 5):
            with the_scene.client() as client:
                client.socket.sendall(FETCH_12[:size])
    assert the_scene.new_lines() == []


def test_a_sender_of_one_byte_at_a_time_is_answered(the_scene: Scene) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        frame = client.encode(apis.METADATA, 12, {"topics": [], "allow_auto_topic_creation": False})
        for byte in framed(frame):
            client.socket.send(bytes([byte]))
        assert client.receive().cluster_id


def test_announced_frames_cost_little_until_they_come(the_scene: Scene) -> None:
    """50 connections announce 100 MiB each and send a little of it: a mebibyte is kept for each, not 5 GiB for all."""
    with the_scene.unharmed(max_growth_bytes=70 * MEBIBYTE):
        clients = [the_scene.client() for _ in range(50)]
        for client in clients:
            client.socket.sendall(struct.pack(">i", 100 * MEBIBYTE) + bytes(80_000))
        the_scene.witness.go_on(10)
        for client in clients:
            client.close()


def test_a_client_that_never_reads_is_not_read_from_for_ever(the_scene: Scene) -> None:
    """Its responses pile up on its own side of the socket; the broker stops taking its requests."""
    with the_scene.unharmed(), the_scene.client() as client:
        client.socket.setblocking(False)
        frame = framed(client.encode(apis.DESCRIBE_CONFIGS, 4, DESCRIBE_BROKER))
        sent = 0
        stuck_since_round = None
        # Stuck for 30 rounds of the witness in a row: the broker runs and does not take more.
        while stuck_since_round is None or the_scene.witness.rounds < stuck_since_round + 30:
            try:
                sent += client.socket.send(frame * 100)
                stuck_since_round = None
            except BlockingIOError:
                if stuck_since_round is None:
                    stuck_since_round = the_scene.witness.rounds
                the_scene.witness.go_on(1)
            assert sent < 500 * MEBIBYTE, "the broker swallows everything"


DESCRIBE_BROKER = {
    "resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
    "include_documentation": True,
}


def test_a_request_as_large_as_is_allowed_is_read_and_answered(the_scene: Scene) -> None:
    """A produce of 60 MiB in one frame: refused for its size, by a code and not by hanging up."""
    with the_scene.unharmed(max_growth_bytes=250 * MEBIBYTE), the_scene.client() as client:
        batch = bytearray(60 * MEBIBYTE)
        batch[8:12] = struct.pack(">i", len(batch) - 12)
        batch[16] = 2
        produced = client.produce("witness", bytes(batch))
        assert produced.error_code.name == "message_too_large"


def test_a_reset_in_the_middle_of_a_response_is_no_news(the_scene: Scene) -> None:
    with the_scene.client() as client:
        client.create_topic("reset")
    the_scene.new_lines()
    with the_scene.unharmed():
        for _ in range(20):
            client = the_scene.client()
            for _ in range(50):
                client.send(apis.DESCRIBE_CONFIGS, 4, **DESCRIBE_BROKER)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    assert the_scene.new_lines() == []


def test_a_client_that_leaves_while_its_fetch_waits_leaves_nothing_behind(the_scene: Scene) -> None:
    with the_scene.client() as client:
        client.create_topic("left-alone")
    with the_scene.unharmed():
        for _ in range(50):
            client = the_scene.client()
            client.send(
                apis.FETCH,
                12,
                max_wait=seconds(600),
                min_bytes=1,
                max_bytes=1000,
                session_id=0,
                session_epoch=-1,
                topics=[
                    {
                        "topic": "left-alone",
                        "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 9}],
                    }
                ],
            )
            client.close()
        connections = wait_until(lambda: open_connections(the_scene) <= 2, "the connections to be forgotten")
        assert connections


def open_connections(the_scene: Scene) -> int:
    return sum(c.status == "ESTABLISHED" for c in psutil.Process(the_scene.broker.pid).net_connections("tcp"))


def test_too_many_connections_are_closed_and_the_others_served() -> None:
    with scene({"max.connections": "10"}) as crowded, crowded.unharmed():
        inside = [crowded.client() for _ in range(9)]
        refused = [crowded.client() for _ in range(30)]
        assert all(client.is_closed() for client in refused)
        assert all(client.ask(apis.METADATA, 9, topics=[]).cluster_id for client in inside)
        inside.pop().close()
        wait_until(lambda: is_served(crowded.client()), "a place that became free to be given again")
        # One for all, and another one every ten seconds.
        assert 1 <= sum("max.connections" in line for line in crowded.new_lines()) < len(refused) // 3
        for client in (*inside, *refused):
            client.close()


def is_served(client: RawClient) -> bool:
    with client:
        try:
            return bool(client.ask(apis.METADATA, 9, topics=[]).cluster_id)
        except (ConnectionError, struct.error):
            return False
