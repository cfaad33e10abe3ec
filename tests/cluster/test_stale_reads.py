"""A leader that was succeeded and does not know it: what it refuses, so that nobody takes its old state for the newest.

docs/decisions/0011-stale-reads.md says which reads may be old and which may not.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import COORDINATOR_PARTITIONS, OPTIONS, commit_offsets, coordinator_of
from tests.cluster.driving import ask, state
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.scenes import create, leaders, new_producer, send
from tests.raw_client import RawClient
from tests.raw_requests import Want, seconds
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

LATEST, EARLIEST = -1, -2
BEFORE, AFTER = 10, 20
"""What is committed before a broker is succeeded, and after: records, and the offset of a group."""
SESSION_TIMEOUT_S = 6
CONFIG = {**OPTIONS, "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_S * 1000)}
"""Sessions that end soon, but not by a short pause of a busy machine: who leads is to lead until the test ends it."""


class Scene:
    """Records and an offset, of a topic and a group that one broker leads and coordinates."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        create(cluster, topic)
        self.leader = cluster.leader_of(topic)
        self.others = [i for i in cluster.brokers if i != self.leader]
        self._commit("warm-up", 0, list(cluster.brokers))
        self._elect_the_preferred()
        names = (f"{topic}-{number}" for number in range(1000))
        self.group = next(name for name in names if coordinator_of(cluster, name) == self.leader)
        self.write(list(cluster.brokers), BEFORE)

    def _elect_the_preferred(self) -> None:
        """So that each broker coordinates a group, and no check of the balance moves one in the midst of the test."""
        self.cluster.wait_until_in_sync()
        chosen = {"election_type": 0, "topic_partitions": None, "timeout": seconds(60)}
        ask(self.cluster, self.leader, apis.ELECT_LEADERS, 2, **chosen)

        def are_elected() -> bool:
            places = [(self.topic, 0), *(("__consumer_offsets", number) for number in range(COORDINATOR_PARTITIONS))]
            known = [state(self.cluster, *place, seen_by=i) for place in places for i in self.cluster.brokers]
            return all(one is not None and one.leader == one.replicas[0] for one in known)

        wait_until(are_elected, "all partitions are led by their preferred replicas")

    def write(self, known: list[int], end: int) -> None:
        """As many records as are missing, and the offset, by clients that know these brokers."""
        count = end - (0 if end == BEFORE else BEFORE)
        assert send(self.cluster, self.topic, count, producer=new_producer(self.cluster, first=known[0])) == count
        self._commit(self.group, end, known)

    def _commit(self, group: str, offset: int, known: list[int]) -> None:
        servers = ",".join(self.cluster.brokers[i] for i in known)
        commit_offsets(servers, group, [TopicPartition(self.topic, 0, offset)])

    def wait_for_successor(self) -> None:
        def have_moved() -> bool:
            coordinators = self._coordinators()
            return not (leaders(self.cluster, self.topic, self.others) | coordinators) & {self.leader, -1}

        wait_until(have_moved, "others lead and coordinate")

    def _coordinators(self) -> set[int]:
        found = set()
        for i in self.others:
            with RawClient(self.cluster.brokers[i]) as client:
                found.add(client.ask(apis.FIND_COORDINATOR, 3, key=self.group, key_type=0).node_id)
        return found

    def list_offsets(self, timestamp: int = LATEST) -> dict[str, Any]:
        wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        return {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": self.topic, "partitions": [wanted]}],
        }

    def offset_fetch(self, *, require_stable: bool) -> dict[str, Any]:
        wanted = {"name": self.topic, "partition_indexes": [0]}
        return {"group_id": self.group, "topics": [wanted], "require_stable": require_stable}


def listed(answer: Any) -> tuple[ErrorCode, int]:
    [row] = answer.topics[0].partitions
    return row.error_code, row.offset


def committed(answer: Any) -> tuple[ErrorCode, int]:
    code = answer.error_code
    return (code, -1) if code is not ErrorCode.none else (code, answer.topics[0].partitions[0].committed_offset)


@pytest.fixture(scope="module")
def on_zookeeper() -> Iterator[FaultCluster]:
    with FaultCluster(3, metadata="zookeeper", config={**CONFIG, "replica.lag.time.max.ms": "30000"}) as cluster:
        yield cluster


def test_the_first_request_after_a_freeze_is_not_answered_from_before_it() -> None:
    with EmbeddedCluster(3, config=CONFIG) as cluster:
        scene = Scene(cluster, "eggs")
        with contextlib.ExitStack() as clients:
            asking = [clients.enter_context(RawClient(cluster.brokers[scene.leader])) for _ in range(2)]
            for client in asking:
                assert client.ask(apis.METADATA, 9, topics=[]).brokers, "it is connected"
            cluster.pause(scene.leader)
            asking[0].send(apis.LIST_OFFSETS, 5, **scene.list_offsets())
            asking[1].send(apis.OFFSET_FETCH, 7, **scene.offset_fetch(require_stable=False))
            scene.wait_for_successor()
            scene.write(scene.others, AFTER)
            cluster.resume(scene.leader)
            assert listed(asking[0].receive()) == (ErrorCode.not_leader_or_follower, -1)
            assert committed(asking[1].receive()) == (ErrorCode.not_coordinator, -1)


def test_a_leader_that_hears_neither_zookeeper_nor_its_followers_refuses_what_must_not_be_old(
    on_zookeeper: FaultCluster,
) -> None:
    cluster = on_zookeeper
    scene = Scene(cluster, "eggs")
    cut = scene.leader
    with RawClient(cluster.brokers[cut]) as client:
        cluster.links.cut([*both_ways(cut, "zk"), *(way for i in scene.others for way in both_ways(cut, i))])
        try:
            scene.wait_for_successor()
            scene.write(scene.others, AFTER)
            stable = client.ask(apis.OFFSET_FETCH, 7, **scene.offset_fetch(require_stable=True))
            assert committed(stable) == (ErrorCode.not_coordinator, -1), "never, however short the time"
            wait_until(
                lambda: (
                    listed(client.ask(apis.LIST_OFFSETS, 5, **scene.list_offsets()))[0]
                    is ErrorCode.not_leader_or_follower
                ),
                "it does not say where the log ends",
            )
            # Each partition has its own lease: the followers were not last heard of all at the same moment.
            wait_until(
                lambda: (
                    committed(client.ask(apis.OFFSET_FETCH, 7, **scene.offset_fetch(require_stable=False)))
                    == (ErrorCode.not_coordinator, -1)
                ),
                "it does not say what is committed",
            )
            past_its_end = client.fetch_one(Want(scene.topic, offset=AFTER))
            assert past_its_end.error_code is ErrorCode.not_leader_or_follower, "a consumer is not to start over"
            assert client.fetch_one(Want(scene.topic, offset=0)).records, "what is committed stays so, whoever leads"
            assert listed(client.ask(apis.LIST_OFFSETS, 5, **scene.list_offsets(EARLIEST))) == (ErrorCode.none, 0)
        finally:
            cluster.links.heal()
    wait_until(lambda: "is registered again" in cluster.log(cut), "it is a member again")
    cluster.wait_until_ready()
    cluster.wait_until_in_sync()


def test_without_zookeeper_for_long_a_leader_that_hears_its_followers_answers_all(on_zookeeper: FaultCluster) -> None:
    cluster = on_zookeeper
    scene = Scene(cluster, "hens")
    assert cluster.zookeeper is not None
    cluster.links.cut([way for i in cluster.brokers for way in both_ways(i, "zk")])
    try:
        with RawClient(cluster.brokers[scene.leader]) as client:
            wait_until(lambda: all("lost the connection" in cluster.log(i) for i in cluster.brokers), "all notice it")
            # Not for a condition: that nothing happens is seen only after the time in which it could.
            time.sleep(1.5 * SESSION_TIMEOUT_S)
            # On a busy machine a follower may not have run just now, so the leader is asked again. One that refuses
            # without ZooKeeper refuses for as long as the links are cut.
            wait_until(
                lambda: listed(client.ask(apis.LIST_OFFSETS, 5, **scene.list_offsets())) == (ErrorCode.none, BEFORE),
                "it says where the log ends",
            )
            for stable in (True, False):
                wait_until(
                    lambda stable=stable: (
                        committed(client.ask(apis.OFFSET_FETCH, 7, **scene.offset_fetch(require_stable=stable)))
                        == (ErrorCode.none, BEFORE)
                    ),
                    "it says what is committed",
                )
    finally:
        cluster.links.heal()
