"""Members that should not be there: the same id twice, another's data, another cluster's, and two controllers."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import LONG_SESSIONS
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.scenes import create, end_of, run_broker, send, wait_until_equal
from tests.raw_client import RawClient
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

ANY_PORT = {"listeners": "127.0.0.1:0"}


@pytest.fixture(scope="module", params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """For tests that leave every broker running, and kill none: no busy machine is to end a session.

    On ZooKeeper a session's time is also that of an attempt to connect, and one attempt may fail when it starts.
    """
    sessions = LONG_SESSIONS if request.param == "sqlite" else {"zookeeper.session.timeout.ms": "10000"}
    with EmbeddedCluster(2, metadata=request.param, config=sessions) as cluster:
        yield cluster


def store_of(cluster: EmbeddedCluster) -> str:
    return cluster.broker(1).options["skep.metadata"]


def the_line(log: str) -> str:
    """What a user is told; AssertionError when it is not one clear line."""
    assert "Traceback" not in log, log
    [line] = [line for line in log.splitlines() if line.startswith("skep: ")]
    return line


def test_an_id_that_is_in_use_is_refused_by_name_and_its_owner_is_not_disturbed(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    options = {**ANY_PORT, "node.id": "1", "skep.metadata": store_of(cluster), "log.dirs": str(tmp_path / "other")}
    options["zookeeper.session.timeout.ms"] = "2000"
    code, log = run_broker(options)
    assert code == 2
    line = the_line(log)
    assert re.search(r"\b(broker|id) 1\b", line), line
    cluster.wait_until_ready()
    assert cluster.running == [1, 2]


def test_a_broker_that_is_given_the_data_of_another_refuses_to_start(cluster: EmbeddedCluster) -> None:
    directory = cluster.broker(2).data_dir
    cluster.stop(2)
    try:
        options = {**ANY_PORT, "node.id": "7", "skep.metadata": store_of(cluster), "log.dirs": str(directory)}
        code, log = run_broker(options)
    finally:
        cluster.restart(2)
    assert code == 2
    assert "belongs to broker 2 of" in the_line(log)
    assert "this is broker 7" in the_line(log)
    cluster.wait_until_ready()


def test_a_directory_of_another_cluster_is_refused(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    directory = cluster.broker(2).data_dir
    cluster.stop(2)
    try:
        elsewhere = f"sqlite:{tmp_path / 'elsewhere.sqlite'}"
        options = {**ANY_PORT, "node.id": "2", "skep.metadata": elsewhere, "log.dirs": str(directory)}
        code, log = run_broker(options)
    finally:
        cluster.restart(2)
    assert code == 2
    found = re.search(r"belongs to broker 2 of cluster (\S+), this is broker 2 of cluster (\S+)", the_line(log))
    assert found is not None, log
    assert found[1] != found[2], log
    cluster.wait_until_ready()


def test_a_directory_that_is_in_use_is_refused(cluster: EmbeddedCluster) -> None:
    directory = cluster.broker(2).data_dir
    code, log = run_broker({**ANY_PORT, "node.id": "2", "skep.metadata": store_of(cluster), "log.dirs": str(directory)})
    assert code == 2
    assert str(directory) in the_line(log)


@pytest.mark.parametrize("metadata", ["sqlite", "zookeeper"])
def test_of_two_controllers_the_older_is_fenced(metadata: str) -> None:
    # Sessions that end soon enough, and not by a short pause of a busy machine: the newer controller is to stay.
    config = {"min.insync.replicas": "2", "zookeeper.session.timeout.ms": "6000"}
    with EmbeddedCluster(3, metadata=metadata, config=config) as cluster:
        create(cluster, "eggs", partitions=6)
        [older] = wait_until(lambda: only_one(controllers(cluster)), "all know the controller")
        cluster.pause(older)
        [newer] = wait_until(lambda: only_one(controllers(cluster) - {older}), "another is the controller")
        # What both would want to decide: who leads what the third broker led.
        [third] = {1, 2, 3} - {older, newer}
        cluster.kill(third)
        cluster.resume(older)
        cluster.wait_until_ready()
        wait_until(lambda: "is no longer the controller" in cluster.log(older), "the older one steps down")
        wait_until(lambda: controllers(cluster) == {newer}, "all know the newer one, the older one too")
        cluster.restart(third)
        cluster.wait_until_ready()
        cluster.wait_until_in_sync()
        wait_until(lambda: len(elections(cluster)) == 1, "all brokers agree on who leads in which epoch")
        for partition in range(6):
            assert send(cluster, "eggs", 5, partition=partition) == 5
            wait_until_equal(cluster, "eggs", partition)
            assert end_of(cluster, "eggs", partition) == 5
        assert "Traceback" not in cluster.log(older)


def only_one(brokers: set[int]) -> set[int]:
    return brokers if len(brokers) == 1 and -1 not in brokers else set()


def controllers(cluster: EmbeddedCluster) -> set[int]:
    """Who is the controller, by the words of each broker that runs."""
    found = set()
    for i in cluster.running:
        with RawClient(cluster.brokers[i]) as client:
            found.add(client.ask(apis.METADATA, 9, topics=[]).controller_id)
    return found


def elections(cluster: EmbeddedCluster) -> set[tuple[tuple[int, int, int], ...]]:
    """Partition, leader and leader epoch, as each broker knows them."""
    found = set()
    for i in cluster.running:
        with RawClient(cluster.brokers[i]) as client:
            [topic] = client.ask(apis.METADATA, 9, topics=[{"name": "eggs"}]).topics
        found.add(tuple(sorted((row.partition_index, row.leader_id, row.leader_epoch) for row in topic.partitions)))
    return found


def test_a_clock_that_jumps_moves_no_leader_and_ends_no_session() -> None:
    # Sessions that a busy machine does not end; an hour is longer anyway.
    with FaultCluster(3, config={"zookeeper.session.timeout.ms": "15000"}) as cluster:
        create(cluster, "eggs", partitions=3)
        cluster.wait_until_in_sync()
        before = elections(cluster)
        for offset_s in (3600.0, -3600.0, 0.0):
            for i in cluster.brokers:
                cluster.set_clock(i, offset_s * (-1) ** i)
            assert send(cluster, "eggs", 20) == 20
            # Long enough for the others to look at the session, and to end it if they measured by that clock.
            time.sleep(3)
        assert elections(cluster) == before
        assert all("session" not in cluster.log(i) for i in cluster.brokers)
        wait_until_equal(cluster, "eggs")
