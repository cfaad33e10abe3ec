"""A second driver asks a leader of ``__spark_commits`` that was succeeded and does not know it: no epoch counts twice.

There are two ways to such a leader: it is cut off from ZooKeeper alone, or it is frozen past its session and woken. In
both it would answer reads with what was committed before. The driver's protocol is played without Spark.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import pytest

from pyspark_skep.write import decisions
from pyspark_skep.write.epoch_commit import commit_epoch, ensure_topic
from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.task_transactions import driver_id
from skep.client.cluster_client import ClusterClient
from skep.client.topic_info import find_leader
from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import COORDINATOR_PARTITIONS, transaction_coordinator_of
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.scenes import create
from tests.spark.driver_model import KEEPS_ALL, PARTITIONS, Queries, rows_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.timeout(300)]

OPTIONS = {
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITIONS),
    "replica.lag.time.max.ms": "15000",
    "min.insync.replicas": "2",
    **KEEPS_ALL,
}
DECIDED, REPLAYED = 6, 7


class Scene:
    """A query with one epoch decided. ``leader`` leads its decisions and does not coordinate its driver."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.cluster = cluster
        create(cluster, topic, PARTITIONS)
        with ClusterClient(cluster.bootstrap_servers) as client:
            ensure_topic(PartitionAccess(client))
        self.queries = Queries(cluster.bootstrap_servers, topic)
        self.query = self.queries.query()
        self._epoch(DECIDED - 1)  # makes the coordinators' topics
        cluster.wait_until_in_sync()
        while self._coordinator == self.leader:
            self.query = self.queries.query()
        self._epoch(DECIDED)

    def _epoch(self, epoch: int) -> None:
        self.queries.epoch(self.query, epoch, 2)
        self.queries.expect(self.query, epoch)

    @property
    def _coordinator(self) -> int:
        return transaction_coordinator_of(self.cluster, driver_id(self.query))

    @property
    def leader(self) -> int:
        return self.cluster.leader_of(decisions.TOPIC, decisions.partition_of(self.query))

    def others(self, than: int) -> list[int]:
        return [i for i in self.cluster.brokers if i != than]

    def leader_by(self, broker: int) -> int:
        """Who leads the decisions, by the word of one broker."""
        with ClusterClient(self.cluster.brokers[broker]) as client:
            _, leader = find_leader(client, decisions.TOPIC, decisions.partition_of(self.query))
        return -1 if leader is None else leader.node_id

    def wait_for_successor(self, deposed: int) -> None:
        others = self.others(deposed)
        wait_until(
            lambda: not {self.leader_by(i) for i in others} & {deposed, -1}, "another broker leads the decisions"
        )

    def commit(self, cuts: int, *, asks: list[int], tasks_ask: list[int]) -> None:
        """Commits the epoch that is replayed, with a driver and tasks that know these brokers, in this order."""
        with (
            Queries(self._addresses(tasks_ask), self.queries.topic).start(self.query) as run,
            ClusterClient(self._addresses(asks), timeout_s=60) as client,
        ):
            tasks = run.tasks(rows_of(self.query, REPLAYED), cuts)
            commit_epoch(PartitionAccess(client), self.query, REPLAYED, tasks)

    def _addresses(self, brokers: list[int]) -> str:
        return ",".join(self.cluster.brokers[i] for i in brokers)


@pytest.fixture(scope="module")
def on_zookeeper() -> Iterator[FaultCluster]:
    # Half of the session timeout is the time for which a deposed leader still answers: enough for two drivers.
    with FaultCluster(3, metadata="zookeeper", config={**OPTIONS, "zookeeper.session.timeout.ms": "10000"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def on_sqlite() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=OPTIONS) as cluster:
        yield cluster


def test_an_epoch_counts_once_though_the_second_driver_asks_a_leader_that_is_cut_off_from_zookeeper(
    on_zookeeper: FaultCluster,
) -> None:
    scene = Scene(on_zookeeper, "out")
    deposed = scene.leader
    others = scene.others(deposed)
    on_zookeeper.links.cut(both_ways(deposed, "zk"))
    try:
        scene.wait_for_successor(deposed)
        scene.commit(2, asks=others, tasks_ask=others)
        scene.commit(3, asks=[deposed, *others], tasks_ask=others)
    finally:
        on_zookeeper.links.heal()
    scene.queries.expect(scene.query, REPLAYED)
    scene.queries.check()


def test_an_epoch_counts_once_though_the_second_driver_asks_a_leader_that_was_frozen_and_is_woken(
    on_sqlite: EmbeddedCluster,
) -> None:
    scene = Scene(on_sqlite, "out")
    deposed = scene.leader
    others = scene.others(deposed)
    waking = threading.Timer(0.5, on_sqlite.resume, [deposed])

    metadata = ClusterClient.metadata

    def by_its_word(cluster: ClusterClient, topics: Iterable[str] | None = None) -> Any:
        """Asks the frozen broker who leads the decisions. It is woken when the first such request waits for it."""
        if topics is None or list(topics) != [decisions.TOPIC]:
            return metadata(cluster, topics)
        if not waking.is_alive() and not waking.finished.is_set():
            waking.start()
        return metadata(asking, topics)

    on_sqlite.pause(deposed)
    try:
        scene.wait_for_successor(deposed)
        scene.commit(2, asks=others, tasks_ask=others)
        with (
            ClusterClient(on_sqlite.brokers[deposed], timeout_s=60) as asking,
            mock.patch.object(ClusterClient, "metadata", by_its_word),
        ):
            scene.commit(3, asks=others, tasks_ask=others)
    finally:
        on_sqlite.resume(deposed)
    scene.queries.expect(scene.query, REPLAYED)
    scene.queries.check()
