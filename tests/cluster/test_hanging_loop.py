"""A broker whose event loop hangs is silent, though its process and its threads are alive: another has to lead."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.testing import EmbeddedCluster
from tests.cluster.scenes import create, leaders, send
from tests.waiting import wait_until

TOPIC = "eggs"


@pytest.fixture
def hangs(tmp_path: Path) -> Path:
    """While this file is there, a broker that gets the signal hangs."""
    path = tmp_path / "hangs"
    path.touch()
    return path


@pytest.fixture(params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, hangs: Path) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("SKEP_TEST_HANGS", str(hangs))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "hanging_loop"))
    with EmbeddedCluster(2, metadata=request.param) as cluster:
        yield cluster


def test_a_broker_whose_loop_hangs_loses_what_it_leads_and_comes_back(cluster: EmbeddedCluster, hangs: Path) -> None:
    create(cluster, TOPIC)
    send(cluster, TOPIC, 10)
    cluster.wait_until_in_sync()
    hanging = cluster.leader_of(TOPIC)
    [other] = [i for i in cluster.running if i != hanging]

    os.kill(cluster.broker(hanging).pid, signal.SIGUSR1)

    # The other broker is asked, and by its word it leads while the first one is still silent.
    wait_until(lambda: leaders(cluster, TOPIC, [other]) == {other}, "the other leads")
    # Its own watch says so. On a busy machine this may come later than the end of its session.
    wait_until(lambda: "the event loop has not run" in cluster.log(hanging), "it notices that its loop hangs")
    before = cluster.log(hanging)
    hangs.unlink()
    wait_until(lambda: "is registered again" in cluster.log(hanging)[len(before) :], "it is back")
    cluster.wait_until_in_sync()
    send(cluster, TOPIC, 10)
