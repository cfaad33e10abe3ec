"""Queue consumers that are stopped by signals, and brokers that die under them."""

import signal
import threading
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

import skep
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader
from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.scenario.queue_topics import OPTIONS, PATIENCE_S, configure, create, jobs, text, worker, write
from tests.waiting import wait_until

KILLS = times(1, long=10)
JOBS_BEFORE_A_KILL = 80


def test_sigterm_lets_running_handlers_end_and_gives_the_rest_back_at_once() -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers = broker.bootstrap_servers
        create(servers, "jobs")
        configure(servers, "jobs", "share.auto.offset.reset", "earliest")
        write(servers, "jobs", jobs(100))
        with worker(servers, "jobs", 1) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[0] == "ready\n"
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=PATIENCE_S)
            lines += rest.splitlines(keepends=True)
            assert process.returncode == 0
        begun = {line.removeprefix("begin ") for line in lines if line.startswith("begin")}
        ended = {line.removeprefix("end ") for line in lines if line.startswith("end")}
        assert begun == ended, "what had begun has ended"
        _, accepted, returned = lines[-1].split()
        assert int(accepted) == len(ended)
        assert int(returned) > 0
        # The locks last 30 s: the records come now because they were given back.
        with ClusterClient(servers) as cluster:

            def states() -> set[tuple[str, int]]:
                found = command_to_leader(cluster, "jobs", 0, "deliveries", {"group": "jobs"})
                return {(run["state"], run["failures"]) for run in found["runs"]}

            # A lock that had expired would be a failure.
            wait_until(lambda: states() == {("available", 0)}, lambda: f"the records are given back: {states()}")
        options = AdminClient({"bootstrap.servers": servers})
        group = ConfigResource(ResourceType.GROUP, "jobs")
        described = options.describe_configs([group])[group].result(PATIENCE_S)
        assert described["skep.share.count.failures.only"].value == "true", "so what is given back has lost nothing"
        seen: Counter[str] = Counter()

        def handle(message: skep.Message) -> None:
            seen[text(message)] += 1

        with skep.consume("jobs", handle, group="jobs", prefetch=100, bootstrap_servers=servers) as consumer:
            wait_until(lambda: len(seen) == 100 - len(ended), lambda: f"{len(seen)} {consumer.statistics}")
        assert set(seen) == {job for job in jobs(100) if f"{job}\n" not in ended}
        assert set(seen.values()) == {1}


def test_a_second_signal_ends_a_worker_whose_handler_hangs() -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers = broker.bootstrap_servers
        create(servers, "jobs")
        configure(servers, "jobs", "share.auto.offset.reset", "earliest")
        write(servers, "jobs", jobs(1))
        with worker(servers, "jobs", 3600) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "begin job 0\n"]

            def is_ended() -> bool:
                process.send_signal(signal.SIGTERM)
                return process.poll() is not None

            wait_until(is_ended, "it has ended")
            assert process.returncode == -signal.SIGTERM


@pytest.mark.long
def test_nothing_is_lost_when_the_broker_is_killed_again_and_again() -> None:
    count = JOBS_BEFORE_A_KILL * (KILLS + 1)
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers = broker.bootstrap_servers
        create(servers, "jobs", partitions=2)
        configure(servers, "jobs", "share.auto.offset.reset", "earliest")
        # The first renewal comes after a third of it, when the broker is back.
        configure(servers, "jobs", "share.record.lock.duration.ms", "60000")
        write(servers, "jobs", jobs(count), partitions=2)
        seen: Counter[str] = Counter()
        lock = threading.Lock()
        pace = threading.Semaphore(0)
        under_way = 0

        def handle(message: skep.Message) -> None:
            assert pace.acquire(timeout=PATIENCE_S)
            with lock:
                seen[text(message)] += 1

        options = {"group": "jobs", "bootstrap_servers": servers, "timeout": 3 * PATIENCE_S}
        with skep.consume("jobs", handle, concurrency=4, **options) as consumer:
            for number in range(1, KILLS + 1):
                pace.release(JOBS_BEFORE_A_KILL)
                least = JOBS_BEFORE_A_KILL * number
                wait_until(lambda: sum(seen.values()) >= least, lambda: f"{consumer.statistics}")  # noqa: B023
                done = consumer.statistics
                under_way += sum(seen.values()) - done.accepted - done.refused
                broker.kill()
                broker.restart()
            pace.release(10 * count)
            wait_until(lambda: len(seen) == count, lambda: f"{len(seen)} {consumer.statistics}")
            wait_until(lambda: consumer.statistics.running == 0, "all handlers have ended")
        # Only what was in the handlers, or whose acknowledgement was under way, can come twice.
        assert sum(seen.values()) - count <= KILLS * 4 + under_way
        again: list[str] = []
        write(servers, "jobs", ["last"])
        with skep.consume("jobs", lambda message: again.append(text(message)), group="jobs", bootstrap_servers=servers):
            wait_until(lambda: "last" in again, lambda: str(again))
        assert consumer.statistics.accepted + consumer.statistics.refused == sum(seen.values())
