"""What a share consumer takes for itself: ``python -m bench.experiments.share_client``.

librdkafka sends the next ShareFetch when the application polls, so a poll lasts as long as a round trip. The stand-in
of this experiment is between the client and a broker. It passes everything on, but for ShareFetch: after the first
response with records it sends the same bytes again, with nothing but another correlation id, so it costs what a system
call costs. The client accepts the same 500 records again and again.

Printed are microseconds for 500 records: of the wall clock, of the client's threads, and of the broker or the stand-in.
The last line is the share of a plain consumer's rate that no broker can exceed with this client on this machine.
"""

import contextlib
import multiprocessing
import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import ShareConsumer

from bench import confluent_reading
from bench.peers import apart
from bench.share_topics import AT_ONCE, fill, new_group, polled
from skep.base.reserved_port import ReservedPort
from skep.testing import EmbeddedBroker
from skep.wire.apis import SHARE_FETCH

RECORDS = 100_000
ROUNDS = 5
TOPIC = "shared"
WITH_RECORDS = 10_000
"""A ShareFetch response of more bytes than this has records."""
LAST = "share group, same bytes again"
_LENGTH = struct.Struct(">i")
_KEY = struct.Struct(">h")


class Taken(NamedTuple):
    """Microseconds for 500 records."""

    wall_us: float
    client_us: float
    server_us: float


def main() -> None:
    reserved = ReservedPort("127.0.0.1")
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{reserved.number}"}
    with EmbeddedBroker() as broker, EmbeddedBroker(options=advertised) as behind:
        ready = multiprocessing.Event()
        port = behind._reserved.number  # it says itself where the stand-in is
        process = multiprocessing.Process(target=stand_in, args=(reserved.number, port, ready), daemon=True)
        process.start()
        ready.wait(60)
        direct, servers = broker.bootstrap_servers, f"127.0.0.1:{reserved.number}"
        assert process.pid is not None
        turns = {
            "plain": (plain, direct, broker.pid),
            "share group": (shared, direct, broker.pid),
            LAST: (shared, servers, process.pid),
        }
        fill(direct, TOPIC, RECORDS)
        fill(servers, TOPIC, RECORDS)
        found: dict[str, list[Taken]] = {name: [] for name in turns}
        try:
            for _ in range(ROUNDS):
                for name, (read, address, pid) in turns.items():
                    with apart(pid):
                        found[name].append(taken(read, address, pid))
        finally:
            process.terminate()
            process.join()
    for name, times in found.items():
        print(f"{name:30}", *(f"{what} {low:6.0f} (median {middle:6.0f})" for what, low, middle in spread(times)))
    best = min(one.wall_us for one in found["plain"]) / min(one.wall_us for one in found[LAST])
    print(f"at most {best:.2f} of the rate of a plain consumer")


def spread(times: list[Taken]) -> Iterator[tuple[str, float, float]]:
    for what, of_all in zip(Taken._fields, zip(*times, strict=True), strict=True):
        yield what, min(of_all), statistics.median(of_all)


def taken(read: Callable[[str], Iterator[int]], servers: str, server: int) -> Taken:
    counts = read(servers)
    next(counts)
    cpu, wall, before = time.process_time(), time.perf_counter(), cpu_seconds(server)
    lots = sum(counts) / AT_ONCE
    return Taken(
        *(
            1e6 * one / lots
            for one in (
                time.perf_counter() - wall,
                time.process_time() - cpu,
                cpu_seconds(server) - before,
            )
        )
    )


def cpu_seconds(pid: int) -> float:
    """That of another process, to the nanosecond: the number of its clock is made as the kernel does it."""
    return time.clock_gettime(~pid << 3 | 2)


def plain(servers: str) -> Iterator[int]:
    return map(len, confluent_reading.consumed(servers, TOPIC, 0, RECORDS))


def shared(servers: str) -> Iterator[int]:
    settings = {"bootstrap.servers": servers, "group.id": new_group(servers), "max.poll.records": AT_ONCE}
    consumer = ShareConsumer({**settings, "log_level": 4})
    try:
        consumer.subscribe([TOPIC])
        yield from map(len, polled(consumer, RECORDS))
    finally:
        consumer.close()


def stand_in(listen: int, port: int, ready: "threading.Event") -> None:
    with socket.create_server(("127.0.0.1", listen)) as server:
        ready.set()
        while True:
            client, _ = server.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=pass_on, args=(client, port), daemon=True).start()


def pass_on(client: socket.socket, port: int) -> None:
    """Requests of one connection to the broker, responses back, until one of them closes."""
    again: bytes | None = None
    is_fetch = False
    with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as broker:
        broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        both = [client, broker]
        while True:
            for one in select.select(both, [], [])[0] if again is None else both[:1]:
                frame = received(one)
                if frame is None:
                    return
                if one is broker:
                    client.sendall(frame)
                    if is_fetch and len(frame) > WITH_RECORDS:
                        again = frame
                    continue
                is_fetch = _KEY.unpack_from(frame, 4)[0] == SHARE_FETCH.key
                if again is not None and is_fetch:
                    client.sendall(b"".join((again[:4], frame[8:12], again[8:])))
                    continue
                broker.sendall(frame)
                if again is not None:
                    # Without this the stand-in would have to wait for both, a system call more.
                    response = received(broker)
                    if response is None:
                        return
                    client.sendall(response)


def received(one: socket.socket) -> bytes | None:
    """A frame with its length; None at the end."""
    frame = one.recv(1 << 20)
    if not frame:
        return None
    while len(frame) < 4 or len(frame) < 4 + _LENGTH.unpack_from(frame)[0]:
        if not (more := one.recv(1 << 20)):
            return None
        frame += more
    return frame


if __name__ == "__main__":
    main()
