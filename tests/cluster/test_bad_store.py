"""ZooKeeper away: at the start, and in the middle, of all brokers and of one."""

import re
import time
from pathlib import Path

from skep.base.reserved_port import ReservedPort
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.zookeeper_server import HOST, ZooKeeperServer
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.scenes import (
    create,
    creation_error,
    leaders,
    new_producer,
    read_all,
    run_broker,
    send,
    wait_until_equal,
)
from tests.waiting import wait_until


def options_for(port: int, directory: Path, **more: str) -> dict[str, str]:
    return {
        "listeners": "127.0.0.1:0",
        "node.id": "1",
        "skep.metadata": f"zk://127.0.0.1:{port}/skep",
        "log.dirs": str(directory),
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def test_a_broker_that_does_not_find_zookeeper_says_so_and_gives_up_after_its_time(tmp_path: Path) -> None:
    reserved = ReservedPort(HOST)
    began = time.monotonic()
    code, log = run_broker(options_for(reserved.number, tmp_path / "data", zookeeper_connection_timeout_ms="3000"))
    assert code == 2
    assert time.monotonic() - began >= 3.0
    assert log.count("does not respond yet; trying for 3 s") == 1
    assert "Traceback" not in log
    [line] = [line for line in log.splitlines() if line.startswith("skep: ")]
    assert "did not respond within 3 s (zookeeper.connection.timeout.ms)" in line
    assert f"127.0.0.1:{reserved.number}" in line
    reserved.release()


def test_a_broker_waits_for_a_zookeeper_that_starts_later(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    options = options_for(server.port, tmp_path / "data", zookeeper_connection_timeout_ms="60000")
    broker = EmbeddedBroker(data_dir=tmp_path / "data", options=options)
    try:
        broker.options.pop("listeners")
        broker.launch()
        wait_until(lambda: "does not respond yet" in broker.log, "the broker says that it waits")
        server.start()
        broker.wait_until_ready()
    finally:
        broker.stop()
        server.stop()


def test_without_zookeeper_what_is_led_is_served_what_needs_it_is_refused_and_all_goes_on_after_it() -> None:
    with EmbeddedCluster(3, metadata="zookeeper", config={"min.insync.replicas": "2"}) as cluster:
        assert cluster.zookeeper is not None
        create(cluster, "eggs")
        producer = new_producer(cluster)
        assert send(cluster, "eggs", 10, producer=producer) == 10
        cluster.zookeeper.kill(0)
        wait_until(lambda: all("lost the connection" in cluster.log(i) for i in cluster.brokers), "all notice it")
        assert send(cluster, "eggs", 10, producer=producer) == 10
        assert len(read_all(cluster, "eggs")) == 20
        refusal = creation_error(cluster, "hens")
        assert refusal is not None
        assert re.search("cannot be reached|COORDINATOR_NOT_AVAILABLE", refusal), refusal
        cluster.zookeeper.restart(0)
        cluster.wait_until_ready()
        wait_until(lambda: creation_error(cluster, "hens-again") is None, "topics can be created again")
        cluster.wait_until_in_sync()
        assert send(cluster, "eggs", 10) == 10
        wait_until_equal(cluster, "eggs")
        for i in cluster.brokers:
            assert "Traceback" not in cluster.log(i), cluster.log(i)


def test_a_leader_that_is_cut_from_zookeeper_is_succeeded_and_comes_back_as_a_follower() -> None:
    with FaultCluster(3, metadata="zookeeper") as cluster:
        create(cluster, "eggs")
        cut = cluster.leader_of("eggs")
        cluster.links.cut(both_ways(cut, "zk"))
        # It believes to lead until it hears otherwise; the others know better, and who asks it is sent to ask them.
        others = [i for i in cluster.brokers if i != cut]
        wait_until(lambda: not leaders(cluster, "eggs", others) & {cut, -1}, "another leads")
        assert send(cluster, "eggs", 50, producer=new_producer(cluster, first=cut)) == 50
        cluster.links.heal()
        wait_until(lambda: "is registered again" in cluster.log(cut), "it is a member again")
        cluster.wait_until_ready()
        wait_until_equal(cluster, "eggs")
        assert len(read_all(cluster, "eggs")) == 50


def test_a_leader_that_zookeeper_hears_and_that_does_not_hear_it_loses_nothing() -> None:
    with FaultCluster(3, metadata="zookeeper") as cluster:
        create(cluster, "eggs")
        producer, cut = new_producer(cluster), cluster.leader_of("eggs")
        assert send(cluster, "eggs", 10, producer=producer) == 10
        cluster.links.cut([("zk", str(cut))])
        wait_until(lambda: "lost the connection" in cluster.log(cut), "it notices")
        # Each of its attempts to connect is heard, and may keep its session alive: it leads on, or it is succeeded.
        assert send(cluster, "eggs", 50, producer=producer) == 50
        cluster.links.heal()
        wait_until(lambda: "reconnected to" in cluster.log(cut), "it hears again")
        cluster.wait_until_ready()
        wait_until_equal(cluster, "eggs")
        assert len(read_all(cluster, "eggs")) == 60
