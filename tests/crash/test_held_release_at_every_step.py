"""A worker that dies at any step of a release: the next one releases each record once, with or without the index."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from skep.client.cluster_client import ClusterClient
from skep.client.topic_info import describe_topics
from skep.testing import EmbeddedBroker
from tests.crash.held_driver import STEPS
from tests.scenario.held_history import HELD, TARGET, Reader, Writer, check_history, is_decided

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        topics = [NewTopic(TARGET, 2), NewTopic(HELD, 1, config={"cleanup.policy": "compact"})]
        for created in admin.create_topics(topics).values():
            created.result()
        yield started


class Driver:
    """Processes that run the partition, one after the other."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        with ClusterClient(broker.bootstrap_servers) as client:
            topic_id = describe_topics(client, [HELD])[HELD].topic_id
        self._given: dict[str, Any] = {
            "bootstrap": broker.bootstrap_servers,
            "directory": str(directory),
            "spec": {
                "topic": HELD,
                "topic_id": topic_id.hex,
                "partition": 0,
                "leader_epoch": 0,
                "target": TARGET,
                "tick_ms": 10,
                "max_delay_ms": 1 << 40,
                "rolls_back_undecided": False,
                "delete_retention_ms": 86_400_000,
            },
        }

    def start(self, step: str | None) -> "subprocess.Popen[bytes]":
        given = json.dumps({**self._given, "step": step})
        return subprocess.Popen([sys.executable, "-m", "tests.crash.held_driver", given], cwd=ROOT)


def test_a_kill_at_any_step_of_a_release(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """One log for all steps: each round has three new messages, one of them with a new time, and half ones.

    Of these one is committed, and one rolled back.
    """
    writer = Writer(broker.bootstrap_servers)
    target, held = Reader(broker.bootstrap_servers, TARGET, 2), Reader(broker.bootstrap_servers, HELD, 1)
    driver = Driver(broker, tmp_path)
    for number, step in enumerate(STEPS):
        soon = int(time.time() * 1000) + 200
        for one in range(3):
            writer.write(f"{step} {one}", f"{step} {one}".encode(), deliver_at=soon + one)
        writer.write(f"{step} 2", f"{step} 2 later".encode(), deliver_at=soon + 10)
        for key in ("half", "no half"):
            writer.write(f"{step} {key}", b"half")
        writer.write(f"{step} half", f"{step} committed".encode(), commit="")
        writer.write(f"{step} no half", None)
        writer.flush()
        dying = driver.start(step)
        assert dying.wait(60) == -signal.SIGKILL, f"nothing has come to the step {step}"
        if number % 2:
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
        following = driver.start(None)
        try:
            keys = 5 * (number + 1)
            held.until(lambda found, keys=keys: is_decided(found, keys), f"all is released after a kill at {step}")
        finally:
            following.kill()
            following.wait()
    target.read_to_the_end()
    late = check_history(held.messages, target.messages)
    assert len(late) == 3 * len(STEPS)
    assert len(target.messages) == 4 * len(STEPS)
    target.close()
    held.close()
