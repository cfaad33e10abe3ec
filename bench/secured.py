"""Rows of TLS and SASL: what encryption and logins cost beside plaintext, and whether guessing passwords is noticed.

One broker has a listener of each kind, so both sides of a ratio are the same process.
"""

import contextlib
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench import bulk, frames
from bench.peers import apart, cpu_seconds, create_topic
from bench.raw_client import RawClient
from bench.row import Row, percentile, spread, take_turns
from bench.single import ALONE, VALUE_BYTES, WARM_UP, Latency
from tests.fuzz.doors import PASSWORD, USER
from tests.fuzz.sasl_dialog import scram_login
from tests.fuzz.secured import SecuredBroker, secured_broker

NAMES = (
    "tls-produce",
    "tls-consume",
    "sasl-ssl-latency",
    "tls-handshakes",
    "sasl-logins",
    "wrong-passwords",
)

PLAINTEXT, TLS = "plaintext", "SASL_SSL"
TOPIC = "secured"
ENTERING_S = 3.0
THREADS = 4
GUESSES = 10_000


class Entries(NamedTuple):
    rate: float
    cpu_ms: float
    """Of the broker, each."""

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, {self.cpu_ms:.2f} ms CPU of the broker each"


def measure() -> Iterator[Row]:
    # What is measured is not how long a client that failed waits.
    with secured_broker({"skep.max.unauthenticated.connections": "2000"}) as secured:
        bulk.warm_up(secured.broker.bootstrap_servers)
        yield from _bulk(secured)
        create_topic(secured.broker.bootstrap_servers, TOPIC)
        yield _latency(secured)
        yield _handshakes(secured)
        yield _logins(secured)
        yield _wrong_passwords(secured)


def settings(secured: SecuredBroker) -> dict[str, dict[str, Any]]:
    """Of confluent-kafka."""
    login = {
        "bootstrap.servers": secured.ssl_bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(secured.authority),
    }
    return {PLAINTEXT: {"bootstrap.servers": secured.broker.bootstrap_servers}, TLS: login}


def _bulk(secured: SecuredBroker) -> Iterator[Row]:
    where = settings(secured)
    last: dict[str, str] = {}

    def produce(name: str) -> bulk.Run:
        last[name] = f"secured-{name.lower().replace('_', '-')}-{time.monotonic_ns()}"
        create_topic(secured.broker.bootstrap_servers, last[name])
        cpu = cpu_seconds(secured.broker.pid)
        run = bulk.produce_all(where[name], last[name])
        return run._replace(broker_cpu=cpu_seconds(secured.broker.pid) - cpu)

    def consume(name: str) -> bulk.Run:
        cpu = cpu_seconds(secured.broker.pid)
        run = bulk.consume_all(where[name], last[name])
        return run._replace(broker_cpu=cpu_seconds(secured.broker.pid) - cpu)

    turns: dict[str, Callable[[], bulk.Run]] = {}
    for name in (PLAINTEXT, TLS):
        turns[f"{name} produce"] = lambda name=name: produce(name)  # type: ignore[misc]
        turns[f"{name} consume"] = lambda name=name: consume(name)  # type: ignore[misc]
    results = take_turns(turns, lambda run: f"{run.rate:,.0f} records/s, {run.broker_cpu:.2f} s CPU of the broker")
    for what in ("produce", "consume"):
        ours, plain = results[f"{TLS} {what}"], results[f"{PLAINTEXT} {what}"]
        rates, plain_rates = [run.rate for run in ours], [run.rate for run in plain]
        yield Row(
            f"tls-{what}",
            f"1 M records of 100 B over SASL_SSL, confluent-kafka, {what}, to plaintext",
            0.5,
            "at least",
            max(rates) / max(plain_rates),
            f"{max(rates):,.0f} records/s, {min(run.broker_cpu for run in ours):.2f} s CPU of the broker",
            f"{max(plain_rates):,.0f} records/s, {min(run.broker_cpu for run in plain):.2f} s",
            median=statistics.median(one / other for one, other in zip(rates, plain_rates, strict=True)),
            details={"ours": spread(rates), "reference": spread(plain_rates)},
        )


def _tls_context(secured: SecuredBroker) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(secured.authority))


def _enter(secured: SecuredBroker) -> Callable[[socket.socket], socket.socket]:
    context = _tls_context(secured)

    def enter(connection: socket.socket) -> socket.socket:
        encrypted = context.wrap_socket(connection, server_hostname="localhost")
        scram_login(encrypted, USER, PASSWORD)
        return encrypted

    return enter


def _latency(secured: SecuredBroker) -> Row:
    request = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    with (
        RawClient(secured.broker.bootstrap_servers) as plain,
        RawClient(secured.ssl_bootstrap_servers, _enter(secured)) as encrypted,
        apart(secured.broker.pid),
    ):
        clients = {PLAINTEXT: plain, TLS: encrypted}
        size = len(plain.ask(request))
        for client in clients.values():
            client.one_at_a_time([request], WARM_UP, size)

        def latency(client: RawClient) -> Latency:
            took = client.one_at_a_time([request], ALONE, size)
            return Latency(percentile(took, 0.5), percentile(took, 0.99))

        results = take_turns({PLAINTEXT: lambda: latency(plain), TLS: lambda: latency(encrypted)}, str)
    ours, reference = min(results[TLS]), min(results[PLAINTEXT])
    return Row(
        "sasl-ssl-latency",
        "p50 of one-record produce requests over SASL_SSL, to plaintext",
        None,
        "at most",
        ours.p50_us / reference.p50_us,
        str(ours),
        str(reference),
        details={name: {"p50": spread([one.p50_us for one in runs])} for name, runs in results.items()},
    )


def _handshakes(secured: SecuredBroker) -> Row:
    context = _tls_context(secured)

    def shake() -> None:
        with socket.create_connection(secured.sasl_ssl) as connection:
            context.wrap_socket(connection, server_hostname="localhost").close()

    return _entries("tls-handshakes", "whole handshakes of TLS 1.3 a second, ECDSA P-256", secured, shake)


def _logins(secured: SecuredBroker) -> Row:
    def log_in() -> None:
        with socket.create_connection(secured.sasl_plaintext) as connection:
            scram_login(connection, USER, PASSWORD)

    return _entries("sasl-logins", "connections with a login by SCRAM-SHA-256 a second, without TLS", secured, log_in)


def _entries(name: str, what: str, secured: SecuredBroker, enter: Callable[[], None]) -> Row:
    def run() -> Entries:
        counts, cpu, started = [0] * THREADS, cpu_seconds(secured.broker.pid), time.perf_counter()

        def repeat(place: int) -> None:
            while time.perf_counter() - started < ENTERING_S:
                enter()
                counts[place] += 1

        threads = [threading.Thread(target=repeat, args=(place,)) for place in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
        return Entries(sum(counts) / took, (cpu_seconds(secured.broker.pid) - cpu) / sum(counts) * 1000)

    best = max(take_turns({name: run}, str)[name])
    return Row(name, what, None, "at least", best.rate, str(best), unit="a second")


def _wrong_passwords(secured: SecuredBroker) -> Row:
    """While another process guesses, a client that has been there before goes on, and new ones log in."""
    request = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    with RawClient(secured.ssl_bootstrap_servers, _enter(secured)) as client:
        size = len(client.ask(request))
        client.one_at_a_time([request], WARM_UP, size)
        calm = client.one_at_a_time([request], ALONE, size)
        disturbed: list[float] = []
        with _guessing(secured) as guesser:
            while guesser.poll() is None:
                disturbed += client.one_at_a_time([request], 200, size)
    ours, reference = (Latency(percentile(took, 0.5), percentile(took, 0.99)) for took in (disturbed, calm))
    return Row(
        "wrong-passwords",
        f"p50 of one-record produce requests while {GUESSES:,} wrong passwords are tried, to without",
        None,
        "at most",
        ours.p50_us / reference.p50_us,
        f"{ours}, the slowest {max(disturbed) / 1000:.0f} ms",
        f"{reference}, the slowest {max(calm) / 1000:.0f} ms",
        details={"requests": len(disturbed)},
    )


@contextlib.contextmanager
def _guessing(secured: SecuredBroker) -> Iterator["subprocess.Popen[bytes]"]:
    host, port = secured.sasl_plaintext
    process = subprocess.Popen([sys.executable, "-m", "bench.password_guesser", host, str(port), str(GUESSES)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
