"""Rows pipelined and one-at-a-time: produce requests with one record of 100 bytes, acks=all, on one connection.

The reference is an echo on the same event loop, asked by the same client with the same bytes, which answers in as many
bytes as the broker does. What lies between the two is all that the broker does: decode, check, append, encode.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic, reference_server
from bench.raw_client import WINDOW, RawClient
from bench.row import ROUNDS, Row, percentile, spread, take_turns
from skep.testing import EmbeddedBroker

NAMES = ("pipelined", "one-at-a-time")

VALUE_BYTES = 100
PIPELINED = 100_000
ALONE = 10_000
WARM_UP = 2_000
TOPIC = "single"

ECHO = "echo"
SKEP = "skep"


class Burst(NamedTuple):
    rate: float
    cpu_us: float
    """Of the server, a request: it tells what the code costs even when somebody else has the processor."""

    def __str__(self) -> str:
        return f"{self.rate:,.0f} requests/s, {self.cpu_us:.0f} us CPU each"


class Latency(NamedTuple):
    p50_us: float
    p99_us: float

    def __str__(self) -> str:
        return f"p50 {self.p50_us:.0f} us, p99 {self.p99_us:.0f} us"


def measure() -> Iterator[Row]:
    request = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap_servers, TOPIC)
        with RawClient(broker.bootstrap_servers) as ours:
            answer_size = len(ours.ask(request))
            with (
                reference_server("bench.echo_server", str(answer_size)) as server,
                RawClient(server.address) as echo,
                apart(server.pid, broker.pid),
            ):
                clients = {ECHO: echo, SKEP: ours}
                for client in clients.values():
                    client.pipelined([request], WARM_UP, answer_size)
                yield _pipelined(clients, {ECHO: server.pid, SKEP: broker.pid}, request, answer_size)
                yield _one_at_a_time(clients, request, answer_size)
                _check_offsets(ours, request)


def _pipelined(clients: dict[str, RawClient], pids: dict[str, int], request: bytes, answer_size: int) -> Row:
    def burst(name: str) -> Burst:
        cpu = cpu_seconds(pids[name])
        seconds = clients[name].pipelined([request], PIPELINED, answer_size)
        return Burst(PIPELINED / seconds, (cpu_seconds(pids[name]) - cpu) / PIPELINED * 1e6)

    results = take_turns({ECHO: lambda: burst(ECHO), SKEP: lambda: burst(SKEP)}, str)
    ours, echo = max(results[SKEP]), max(results[ECHO])
    return Row(
        "pipelined",
        f"one-record produce requests, {WINDOW} in flight on one connection, to a uvloop echo (aim: 0.3)",
        0.2,
        "at least",
        ours.rate / echo.rate,
        str(ours),
        str(echo),
        details={
            "request_bytes": len(request),
            "answer_bytes": answer_size,
            **{
                name: {"rate": spread([r.rate for r in runs]), "cpu_us": spread([r.cpu_us for r in runs])}
                for name, runs in results.items()
            },
        },
    )


def _one_at_a_time(clients: dict[str, RawClient], request: bytes, answer_size: int) -> Row:
    def latency(client: RawClient) -> Latency:
        took = client.one_at_a_time([request], ALONE, answer_size)
        return Latency(percentile(took, 0.5), percentile(took, 0.99))

    results = take_turns({ECHO: lambda: latency(clients[ECHO]), SKEP: lambda: latency(clients[SKEP])}, str)
    ours, echo = min(results[SKEP]), min(results[ECHO])
    return Row(
        "one-at-a-time",
        "p50 of one-record produce requests, each sent when the one before is answered, to the echo's",
        1.8,
        "at most",
        ours.p50_us / echo.p50_us,
        str(ours),
        str(echo),
        details={
            name: {"p50": spread([r.p50_us for r in runs]), "p99": spread([r.p99_us for r in runs])}
            for name, runs in results.items()
        },
    )


def _check_offsets(client: RawClient, request: bytes) -> None:
    """The client only counted bytes: the next offset says whether every request was an append."""
    expected = 1 + WARM_UP + ROUNDS * (PIPELINED + ALONE)
    offset = frames.produced_offset(client.ask(request))
    if offset != expected:
        raise RuntimeError(f"{expected} requests were answered, but the next offset is {offset}")
