"""Replicas that answer nonsense, that have lost their disk, or whose log was damaged: they come back by themselves."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skep.testing import EmbeddedCluster
from tests.cluster.driving import LONG_SESSIONS
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.scenes import copies, create, end_of, read_all, send, wait_until_equal
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

RECORD_BYTES = 10_000
NONSENSE = re.compile("the leader's response is damaged|not an answer|nonsense|cannot fetch from broker")


@pytest.fixture(scope="module")
def damaged() -> Iterator[EmbeddedCluster]:
    """Its brokers come and go."""
    config = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000", **LONG_SESSIONS}
    with EmbeddedCluster(3, config=config) as cluster:
        yield cluster


def test_a_follower_takes_no_nonsense_from_its_leader_and_goes_on_when_that_is_over() -> None:
    with FaultCluster(3, config=LONG_SESSIONS) as cluster:
        create(cluster, "eggs")
        assert send(cluster, "eggs", 5, size=RECORD_BYTES) == 5
        wait_until_equal(cluster, "eggs")
        leader = cluster.leader_of("eggs")
        follower = next(i for i in cluster.brokers if i != leader)
        told = len(cluster.log(follower))
        cluster.links.garble([(str(leader), str(follower))])
        # The two that understand each other are enough, once the third has left the ISR.
        assert send(cluster, "eggs", 20, size=RECORD_BYTES) == 20
        wait_until(
            lambda: NONSENSE.search(cluster.log(follower)[told:]), lambda: f"it says so: {cluster.log(follower)}"
        )
        assert follower in cluster.running
        cluster.links.heal()
        wait_until_equal(cluster, "eggs")
        assert len(read_all(cluster, "eggs")) == 25
        assert "Traceback" not in cluster.log(follower), cluster.log(follower)


def empty_disk(data_dir: Path, topic: str) -> None:
    shutil.rmtree(data_dir)


def lose_partition(data_dir: Path, topic: str) -> None:
    shutil.rmtree(data_dir / f"{topic}-0")


def cut_the_end(data_dir: Path, topic: str) -> None:
    last = max((data_dir / f"{topic}-0").glob("*.log"))
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size // 2)


def damage_the_last_segment(data_dir: Path, topic: str) -> None:
    last = max((data_dir / f"{topic}-0").glob("*.log"))
    with open(last, "r+b") as file:
        file.seek(last.stat().st_size // 2)
        file.write(b"not what was written here")


@pytest.mark.parametrize("leads", [True, False], ids=["it led", "it followed"])
@pytest.mark.parametrize(
    "damage",
    [empty_disk, lose_partition, cut_the_end, damage_the_last_segment],
    ids=lambda damage: damage.__name__.replace("_", " "),
)
def test_a_replica_that_was_damaged_while_it_was_dead_comes_back_equal(
    damage: Callable[[Path, str], None], leads: bool, damaged: EmbeddedCluster
) -> None:
    topic = f"{damage.__name__}-{leads}"
    create(damaged, topic, segment_bytes="200000")
    assert send(damaged, topic, 100, size=RECORD_BYTES) == 100
    wait_until_equal(damaged, topic)
    leader = damaged.leader_of(topic)
    victim = leader if leads else next(i for i in damaged.brokers if i != leader)
    damaged.kill(victim)
    damage(damaged.broker(victim).data_dir, topic)
    damaged.restart(victim)
    damaged.wait_until_ready()
    wait_until_equal(damaged, topic)
    assert end_of(damaged, topic) == 100
    assert len(copies(damaged, topic)) == 3
    assert len(read_all(damaged, topic)) == 100
    assert "Traceback" not in damaged.log(victim)
