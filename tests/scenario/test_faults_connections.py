"""Very many connections, and no descriptors left for more: those that are there are served."""

import os
import resource
import socket
import statistics
from collections.abc import Iterator, Mapping

import psutil
import pytest

from skep.broker_process import command
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.cpu_time import cpu_s
from tests.fuzz.scene import MEBIBYTE, Scene, scene
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import PATIENCE_S, wait_until

IDLE = 5_000
SPARE = 200
"""Descriptors that this process and the broker need for other things."""


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    """How many connections this process and a broker may have: 5,000 unless the machine's hard limit is below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE + SPARE if hard == resource.RLIM_INFINITY else min(hard, IDLE + SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield wanted - SPARE
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_5000_idle_connections_cost_little(many_descriptors: int) -> None:
    # The broker keeps half of its descriptors for segments unless it is told how many those need.
    with scene({"skep.max.open.files": "50"}) as crowded, crowded.client() as client:
        client.create_topic("timed")
        before_s, rss, descriptors = produce_cpu_s(crowded, client), crowded.rss, open_descriptors(crowded)
        idle = [connect(crowded.broker) for _ in range(many_descriptors)]
        wait_until(
            lambda: open_descriptors(crowded) >= descriptors + many_descriptors, "all connections to be accepted"
        )
        crowded.witness.go_on(10)
        grown, after_s = crowded.rss - rss, produce_cpu_s(crowded, client)
        each = grown / many_descriptors
        assert each < 8 * 1024, f"{many_descriptors} connections cost {each:.0f} bytes each"
        assert after_s < 3 * before_s + 0.001, f"a produce cost {before_s * 1e6:.0f} us, now {after_s * 1e6:.0f}"
        for connection in idle:
            connection.close()
        wait_until(lambda: open_descriptors(crowded) <= descriptors, "all connections to be forgotten")
        assert crowded.rss - rss < 64 * MEBIBYTE


def connect(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def produce_cpu_s(crowded: Scene, client: RawClient) -> float:
    """What the broker computes for one, the median of 300; the witness's rounds are too few to change it."""
    used = []
    for _ in range(300):
        before_s = cpu_s(crowded.broker.pid)
        client.append("timed", batch_of(b"x"))
        used.append(cpu_s(crowded.broker.pid) - before_s)
    return statistics.median(used)


def open_descriptors(crowded: Scene) -> int:
    return len(os.listdir(f"/proc/{crowded.broker.pid}/fd"))


def test_out_of_descriptors_those_who_are_there_are_served_and_others_get_in_when_some_leave() -> None:
    with scene({"skep.max.open.files": "20"}) as poor:
        resource.prlimit(poor.broker.pid, resource.RLIMIT_NOFILE, (100, 100))
        inside = []
        while len(inside) < 200 and is_served(client := poor.client(), within_s=15):
            inside.append(client)
        assert 20 < len(inside) < 100, "the limit was not reached"
        # The kernel still completes connections that the broker cannot take; it must not spin or fall over them.
        waiting = [connect(poor.broker) for _ in range(50)]
        poor.witness.go_on(50)
        assert all(is_served(client, within_s=PATIENCE_S) for client in inside)
        inside[0].create_topic("made-while-poor")
        for client in (*inside[:10], *waiting):
            client.close()
        with wait_until(lambda: newcomer(poor), "a newcomer to be served") as client:
            assert client.append("made-while-poor", batch_of(b"x")) == 0
        poor.witness.go_on(10)
        poor.witness.check()
        assert cpu_share(poor) < 0.9, "the broker is spinning"
        for client in inside[10:]:
            client.close()
        lines = poor.new_lines()
        assert "Traceback" not in "\n".join(lines)
        assert len(lines) < 20, "\n".join(lines[:30])


def test_connections_beyond_their_share_are_refused_and_those_who_are_there_use_more_logs_than_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limited(options: Mapping[str, str]) -> list[str]:
        return ["sh", "-c", 'ulimit -n 300 && exec "$@"', "sh", *command(options)]

    monkeypatch.setattr("skep.testing.broker.command", limited)
    # 150 for segments, 64 for the rest, 86 for connections.
    with EmbeddedBroker() as broker, RawClient(broker.bootstrap_servers) as inside:
        inside.create_topic("t", partitions=200)
        crowd = [connect(broker) for _ in range(120)]
        wait_until(lambda: "the other file descriptors" in broker.log, "the log to say that no more get in")
        for _ in range(3):
            for partition in range(200):
                inside.append("t", batch_of(b"x"), partition=partition)
        # One for all that are refused, and another one every ten seconds.
        assert broker.log.count("the other file descriptors") < 10
        assert len(os.listdir(f"/proc/{broker.pid}/fd")) < 300
        for connection in crowd:
            connection.close()
        wait_until(lambda: is_admitted(broker), "a newcomer to be served")


def is_admitted(broker: EmbeddedBroker) -> bool:
    with RawClient(broker.bootstrap_servers) as client:
        return is_served(client)


def is_served(client: RawClient, within_s: float = 5.0) -> bool:
    try:
        client.socket.settimeout(within_s)
        return bool(client.ask(apis.METADATA, 9, topics=[]).cluster_id)
    except OSError:
        return False


def newcomer(poor: Scene) -> RawClient | None:
    client = poor.client()
    if is_served(client):
        return client
    client.close()
    return None


def cpu_share(poor: Scene) -> float:
    return psutil.Process(poor.broker.pid).cpu_percent(interval=0.5) / 100
