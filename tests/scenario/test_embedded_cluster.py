"""EmbeddedCluster, as the test suites of other teams use it: brokers die, freeze and come back one by one."""

import contextlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from skep.metadata.layout import image_of
from skep.metadata.sqlite.sqlite_tables import SqliteTables
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.raw_client import RawClient
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    """For tests that leave every broker running."""
    with EmbeddedCluster(3) as cluster:
        yield cluster


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 1) -> None:
    with RawClient(cluster.brokers[cluster.running[0]]) as client:
        body = {"name": topic, "num_partitions": partitions, "replication_factor": -1, "assignments": [], "configs": []}
        [result] = client.ask(apis.CREATE_TOPICS, 5, topics=[body]).topics
        assert result.error_code.value == 0, result
    wait_until(lambda: has_leader(cluster, topic), f"{topic} has a leader")
    cluster.wait_until_in_sync()


def has_leader(cluster: EmbeddedCluster, topic: str) -> bool:
    try:
        return cluster.leader_of(topic) in cluster.running
    except (LookupError, RuntimeError):
        return False


def send(cluster: EmbeddedCluster, topic: str, count: int) -> int:
    """How many of so many records were acknowledged by all replicas in sync."""
    acknowledged = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "delivery.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error))
    producer.flush(60)
    return acknowledged.count(None)


def latest(cluster: EmbeddedCluster, topic: str) -> int:
    with RawClient(cluster.brokers[cluster.leader_of(topic)]) as client:
        offset: int = client.list_offset(topic, -1).offset
    return offset


def stored_leader(cluster: EmbeddedCluster, topic: str) -> int:
    """The leader in the metadata store, of which a broker may hear later."""
    tables = SqliteTables(cluster.data_dir / "metadata.sqlite", busy_timeout_s=PATIENCE_S)
    try:
        return image_of("", tables.read_tree("topics")).topics[topic].partitions[0].leader
    finally:
        tables.close()


def is_refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection((host, int(port))).close()
        return False
    return True


def test_every_broker_knows_the_others_when_it_is_ready(shared: EmbeddedCluster) -> None:
    assert list(shared.brokers) == shared.running == [1, 2, 3]
    assert shared.bootstrap_servers == ",".join(shared.brokers.values())
    assert shared.controller in (1, 2, 3)
    for address in shared.brokers.values():
        with RawClient(address) as client:
            known = client.ask(apis.METADATA, 9, topics=[]).brokers
        assert {broker.node_id: f"{broker.host}:{broker.port}" for broker in known} == shared.brokers


def test_a_topic_is_on_every_broker_unless_something_else_is_said(shared: EmbeddedCluster) -> None:
    create(shared, "everywhere")
    with RawClient(shared.brokers[1]) as client:
        [row] = client.ask(apis.METADATA, 9, topics=[{"name": "everywhere"}]).topics
    assert sorted(row.partitions[0].replica_nodes) == [1, 2, 3]


def test_what_is_not_there_is_told(shared: EmbeddedCluster) -> None:
    with pytest.raises(LookupError, match="there is no broker 4; the brokers are 1, 2, 3"):
        shared.kill(4)
    with pytest.raises(LookupError, match="there is no topic 'nowhere' with partition 0"):
        shared.leader_of("nowhere")


def test_a_cluster_outlives_its_leader(skep_cluster: EmbeddedCluster) -> None:
    create(skep_cluster, "eggs")
    assert send(skep_cluster, "eggs", 100) == 100
    dead = skep_cluster.leader_of("eggs")
    address = skep_cluster.brokers[dead]
    skep_cluster.kill(dead)
    assert is_refused(address)
    assert dead not in skep_cluster.running
    assert send(skep_cluster, "eggs", 100) == 100
    assert skep_cluster.leader_of("eggs") != dead
    skep_cluster.restart(dead)
    assert skep_cluster.brokers[dead] == address
    skep_cluster.wait_until_ready()
    skep_cluster.wait_until_in_sync()
    assert latest(skep_cluster, "eggs") == 200


def test_a_frozen_leader_is_given_up_and_comes_back_as_a_follower(skep_cluster: EmbeddedCluster) -> None:
    create(skep_cluster, "eggs")
    frozen = skep_cluster.leader_of("eggs")
    skep_cluster.pause(frozen)
    assert frozen not in skep_cluster.running
    wait_until(lambda: has_leader(skep_cluster, "eggs"), "another one leads")
    assert send(skep_cluster, "eggs", 10) == 10
    skep_cluster.resume(frozen)
    skep_cluster.wait_until_ready()
    skep_cluster.wait_until_in_sync()
    assert latest(skep_cluster, "eggs") == 10


def test_a_broker_that_does_not_run_for_seconds_is_asked_again(skep_cluster: EmbeddedCluster) -> None:
    create(skep_cluster, "eggs")
    leader = skep_cluster.leader_of("eggs")
    for i in skep_cluster.brokers.keys() - {leader}:
        skep_cluster.kill(i)
    wait_until(lambda: skep_cluster.leader_of("eggs") == leader == skep_cluster.controller, "the others are gone")
    process = psutil.Process(skep_cluster.broker(leader).pid)
    process.suspend()
    # Longer than one question waits for its response.
    waking = threading.Timer(3, process.resume)
    waking.start()
    assert skep_cluster.leader_of("eggs") == leader
    assert process.status() != psutil.STATUS_STOPPED
    waking.join()


def test_a_broker_is_not_paused_while_the_store_is_locked(skep_cluster: EmbeddedCluster) -> None:
    store = sqlite3.connect(skep_cluster.data_dir / "metadata.sqlite", isolation_level=None, check_same_thread=False)
    store.execute("BEGIN IMMEDIATE")
    is_released = False

    def release() -> None:
        nonlocal is_released
        is_released = True
        store.execute("ROLLBACK")

    # A broker that writes holds the lock for milliseconds. Whoever holds it for longer is taken for the paused one.
    holder = threading.Timer(2.5, release)
    holder.start()
    skep_cluster.pause(2)
    assert is_released
    assert psutil.Process(skep_cluster.broker(2).pid).status() == psutil.STATUS_STOPPED
    holder.join()
    store.close()


def test_a_clean_stop_hands_leadership_over_first(skep_cluster: EmbeddedCluster) -> None:
    create(skep_cluster, "eggs")
    stopped = skep_cluster.leader_of("eggs")
    skep_cluster.stop(stopped)
    assert stored_leader(skep_cluster, "eggs") not in (stopped, -1), (
        "no need to wait: it was handed over before the end"
    )
    assert "Traceback" not in skep_cluster.log(stopped)
    skep_cluster.restart(stopped)
    skep_cluster.wait_until_ready()
    skep_cluster.wait_until_in_sync()


def test_a_broker_can_be_added(skep_cluster: EmbeddedCluster) -> None:
    assert skep_cluster.add() == 4
    skep_cluster.wait_until_ready()
    assert skep_cluster.running == [1, 2, 3, 4]


def test_a_directory_that_was_given_stays_with_all_that_is_in_it(tmp_path: Path) -> None:
    with EmbeddedCluster(3, data_dir=tmp_path) as cluster:
        create(cluster, "eggs")
        assert send(cluster, "eggs", 10) == 10
    with EmbeddedCluster(3, data_dir=tmp_path) as again:
        wait_until(lambda: has_leader(again, "eggs"), "eggs has a leader")
        again.wait_until_in_sync()
        assert latest(again, "eggs") == 10


def test_options_are_those_of_all_brokers_or_of_one() -> None:
    config, single = {"num.partitions": "4"}, {2: {"broker.rack": "b"}}
    with EmbeddedCluster(2, config=config, broker_config=single) as cluster, RawClient(cluster.brokers[1]) as client:
        response = client.ask(apis.METADATA, 9, topics=[{"name": "x"}], allow_auto_topic_creation=True)
        assert {broker.node_id: broker.rack for broker in response.brokers} == {1: None, 2: "b"}
        assert len(response.topics[0].partitions) == 4


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children = psutil.Process().children()
    with EmbeddedCluster(2) as cluster:
        cluster.pause(2)
        assert len(psutil.Process().children()) == len(children) + 2
    assert psutil.Process().children() == children
    assert list(tmp_path.iterdir()) == []


def test_a_bad_option_is_one_line_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(RuntimeError, match=r"no\.such\.option") as raised,
        EmbeddedCluster(config={"no.such.option": "1"}),
    ):
        pass
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


OWNER = """
import sys
from skep.metadata.layout import image_of
from skep.metadata.sqlite.sqlite_tables import SqliteTables
from skep.testing import EmbeddedCluster
cluster = EmbeddedCluster(2, data_dir=sys.argv[1]).start()
cluster.pause(2)
print(*(cluster.broker(i).pid for i in cluster.brokers), flush=True)
input()
"""


def test_it_goes_when_the_test_run_is_killed_also_what_is_frozen(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    brokers = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(brokers) == 2
    owner.kill()
    owner.communicate()
    for broker in brokers:
        wait_until(lambda broker=broker: is_gone(broker), "the broker stops by itself")


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_metadata_may_be_in_a_real_zookeeper() -> None:
    with EmbeddedCluster(3, metadata="zookeeper") as cluster:
        assert cluster.zookeeper is not None
        create(cluster, "eggs")
        dead = cluster.leader_of("eggs")
        cluster.kill(dead)
        wait_until(lambda: has_leader(cluster, "eggs"), "another one leads")
        assert send(cluster, "eggs", 10) == 10
        cluster.restart(dead)
        cluster.wait_until_ready()
        cluster.wait_until_in_sync()


def test_a_record_written_to_one_broker_is_on_all(shared: EmbeddedCluster) -> None:
    create(shared, "copied")
    assert send(shared, "copied", 10) == 10
    files = [shared.broker(i).data_dir / "copied-0" / "00000000000000000000.log" for i in shared.brokers]
    wait_until(lambda: len({file.read_bytes() for file in files}) == 1, "the files are equal")
    assert files[0].stat().st_size > 0, "what was acknowledged is in them"
