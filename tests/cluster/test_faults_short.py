"""Short fault runs with real processes and real clients: nothing acknowledged is lost, and the copies are equal."""

from pathlib import Path

import pytest

from tests.cluster.fault_run import run
from tests.cluster.nemesis import CONTROLLER, KINDS, LEADER, ON_ZOOKEEPER, Fault, kinds_for, schedule

RATE = 100.0
ON_SQLITE = [
    Fault("kill -9", LEADER, 1.0),
    Fault("freeze", LEADER, 4.0, settle=False),
    Fault("kill -9", CONTROLLER, 0.5, settle=False),
    Fault("cut one way", LEADER, 4.0),
    Fault("fill the disk", "3", 3.0, settle=False),
    Fault("kill -9 of all", "1", 0.5),
    Fault("power cut of two", LEADER, 0.5),
    Fault("power cut of all", LEADER, 0.5),
    Fault("power cut of all", LEADER, 0.6),
]
ON_AN_ENSEMBLE = [
    Fault("kill -9", LEADER, 1.0),
    Fault("freeze", CONTROLLER, 4.0, settle=False),
    Fault("cut from everything", LEADER, 4.0),
    Fault("kill the leader of ZooKeeper", "1", 2.0, settle=False),
    Fault("cut from the store one way", LEADER, 4.0),
    Fault("restart ZooKeeper", "1", 2.0),
    Fault("power cut of all", LEADER, 0.5),
]


@pytest.mark.parametrize(("metadata", "faults"), [("sqlite", ON_SQLITE), ("zookeeper", ON_AN_ENSEMBLE)])
def test_nothing_acknowledged_is_lost_through_faults(metadata: str, faults: list[Fault], tmp_path: Path) -> None:
    report = run(metadata, faults, seed=1, rate=RATE, logs=tmp_path / "logs")
    assert report.failures == [], f"the brokers' logs are in {tmp_path / 'logs'}"
    assert report.acknowledged > 1000
    assert report.read > report.acknowledged
    assert report.unknown + report.failed == 0
    assert sum(report.faults.values()) == len(faults)


def test_the_same_seed_gives_the_same_faults() -> None:
    kinds = kinds_for("zookeeper")
    first, again, other = schedule(5, kinds), schedule(5, kinds), schedule(6, kinds)
    drawn = [next(first) for _ in range(100)]
    assert drawn == [next(again) for _ in range(100)]
    assert drawn != [next(other) for _ in range(100)]
    assert {fault.kind for fault in drawn} == set(KINDS)


def test_faults_of_zookeeper_are_for_zookeeper_alone() -> None:
    assert not ON_ZOOKEEPER & set(kinds_for("sqlite"))
    assert set(KINDS) >= ON_ZOOKEEPER
