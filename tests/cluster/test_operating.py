"""Brokers come, go and come back, on either store: what the others know of it, and what clients notice."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import (
    FEW_INTERNAL_PARTITIONS,
    LATEST,
    ask,
    create,
    offset_of,
    read,
    send,
    state,
    unused_name,
    wait_for_isr,
    wait_for_leader,
    wait_until_equal,
)
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

CONFIG = {
    **FEW_INTERNAL_PARTITIONS,
    # A follower that is frozen falls behind long before it is given up, also if the test does not run for some seconds.
    "replica.lag.time.max.ms": "1000",
    "zookeeper.session.timeout.ms": "12000",
}


@pytest.fixture(scope="module", params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, metadata=request.param, config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """A name that no test has used; all brokers are there and in sync before the test begins."""
    name = unused_name(cluster)
    cluster.wait_until_in_sync()
    return name


def test_any_broker_answers_metadata_of_the_whole_cluster(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2], [2, 3], [3, 1]])

    def responses() -> list[Any] | None:
        found = [ask(cluster, i, apis.METADATA, 9, topics=[{"name": topic}]) for i in (1, 2, 3)]
        return found if all(one.topics == found[0].topics for one in found) else None

    # A follower that does not run for a second leaves the ISR, and one broker knows that before another.
    known = wait_until(responses, "all say the same")
    for answer in known:
        assert {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers} == cluster.brokers
        assert answer.controller_id == cluster.controller
    assert [one.leader_id for one in known[0].topics[0].partitions] == [1, 2, 3]


def test_a_second_broker_of_the_same_id_is_refused_by_name(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    second = EmbeddedBroker(data_dir=tmp_path / "second", options=cluster.broker(2).options)
    try:
        with pytest.raises(RuntimeError, match=r"the broker did not start: .*\b2\b") as raised:
            second.start()
    finally:
        second.stop()
    assert cluster.brokers[2] in str(raised.value), "it says who has the id"
    [known] = [one for one in ask(cluster, 1, apis.METADATA, 9, topics=[]).brokers if one.node_id == 2]
    assert f"{known.host}:{known.port}" == cluster.brokers[2], "the first one goes on"


def test_a_broker_that_runs_cannot_be_unregistered_and_one_that_never_was_is_not_known(
    cluster: EmbeddedCluster, topic: str
) -> None:
    assert ask(cluster, 1, apis.UNREGISTER_BROKER, 0, broker_id=2).error_code is ErrorCode.invalid_request
    assert ask(cluster, 1, apis.UNREGISTER_BROKER, 0, broker_id=9).error_code is ErrorCode.broker_id_not_registered


def test_a_killed_leader_is_removed_succeeded_and_comes_back_into_the_isr(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]], min_insync_replicas=2)
    send(cluster, topic, [b"before %d" % number for number in range(50)])
    before = state(cluster, topic)
    assert before is not None
    assert before.leader == 1
    cluster.kill(1)
    assert wait_for_leader(cluster, topic, other_than=1) in (2, 3)
    wait_for_isr(cluster, topic, {2, 3})
    after = state(cluster, topic)
    assert after is not None
    assert after.leader_epoch > before.leader_epoch
    for i in (2, 3):
        assert {one.node_id for one in ask(cluster, i, apis.METADATA, 9, topics=[]).brokers} == {2, 3}
    send(cluster, topic, [b"after %d" % number for number in range(50)])
    cluster.restart(1)
    cluster.wait_until_ready()
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=100)
    values = read(cluster, topic, 100)
    assert values == [b"before %d" % n for n in range(50)] + [b"after %d" % n for n in range(50)]


def test_a_killed_controller_is_succeeded(cluster: EmbeddedCluster, topic: str) -> None:
    dead = cluster.controller
    cluster.kill(dead)
    wait_until(lambda: cluster.controller in cluster.running, "another is the controller")
    others = sorted(cluster.running)
    create(cluster, topic, [others])
    assert send(cluster, topic, [b"x"]) == [0]


def test_leadership_goes_back_to_the_preferred_replica_when_it_is_asked_for(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[3, 1, 2]])
    cluster.stop(3)
    assert wait_for_leader(cluster, topic, other_than=3) == 1, "the first of those that are left"
    cluster.restart(3)
    wait_for_isr(cluster, topic, {1, 2, 3})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    partition = TopicPartition(topic, 0)
    assert admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(60) == {partition: None}
    assert wait_for_leader(cluster, topic, other_than=1) == 3
    again = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(60)[partition]
    assert again.name() == "ELECTION_NOT_NEEDED"


def test_a_controlled_stop_leaves_no_moment_without_a_leader(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[2, 3, 1]], min_insync_replicas=2)
    errors: list[object] = []
    leaders: list[int] = []
    stopped, enough = threading.Event(), threading.Event()

    def produce() -> None:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 60_000, "log_level": 0}
        producer = Producer({**settings, "retry.backoff.ms": 20, "linger.ms": 1, "enable.idempotence": True})
        left = 200
        while left:
            producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: errors.append(error))
            producer.poll(0.005)
            # Some more when it is over, to see that it has not only come to a halt.
            left -= stopped.is_set()
        producer.flush(60)

    def watch() -> None:
        while not enough.is_set():
            if (seen := state(cluster, topic, seen_by=1)) is not None:
                leaders.append(seen.leader)

    threads = [threading.Thread(target=produce), threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: errors, "records are acknowledged")
        cluster.stop(2)
    finally:
        stopped.set()
        threads[0].join()
        enough.set()
        threads[1].join()
    assert [error for error in errors if error is not None] == []
    # Broker 3 is the next in line, unless it did not run for a second and has left the ISR.
    assert set(leaders) in ({2, 3}, {2, 1})
    assert offset_of(cluster, topic, LATEST) == len(errors)


def test_a_frozen_follower_leaves_the_isr_by_its_lag_and_joins_it_again(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    cluster.pause(3)
    try:
        send(cluster, topic, [b"without 3"], acks=1)
        wait_for_isr(cluster, topic, {1, 2})
        registered = {one.node_id for one in ask(cluster, 1, apis.METADATA, 9, topics=[]).brokers}
        assert registered == {1, 2, 3}, "it was not taken for dead"
        # On a busy machine broker 2 may have fallen behind with it, and come back.
        assert re.search(rf"{topic}-0: the ISR is now \[1(, 2)?\], \[(2, )?3\] fell behind", cluster.log(1))
        send(cluster, topic, [b"all that are left"])
    finally:
        cluster.resume(3)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=2)


def test_a_record_that_was_appended_before_too_few_were_in_sync_is_told_of_as_such(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2]], min_insync_replicas=2)
    cluster.pause(2)
    try:
        with RawClient(cluster.brokers[1]) as client:
            told = client.produce(topic, batch_of(b"on one alone"))
            assert told.error_code is ErrorCode.not_enough_replicas_after_append
            assert client.produce(topic, batch_of(b"refused")).error_code is ErrorCode.not_enough_replicas
    finally:
        cluster.resume(2)
    wait_for_isr(cluster, topic, {1, 2})
    wait_until_equal(cluster, topic, (1, 2), end=1)
    assert offset_of(cluster, topic, LATEST) == 1


def test_everything_is_there_when_all_brokers_were_killed_and_started_again(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for partition in range(3):
        send(cluster, topic, [b"%d" % number for number in range(20)], partition=partition)
    for i in (1, 2, 3):
        cluster.kill(i)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(cluster.restart, (1, 2, 3)))
    cluster.wait_until_ready()
    cluster.wait_until_in_sync()
    for partition in range(3):
        assert read(cluster, topic, 20, partition=partition) == [b"%d" % number for number in range(20)]
        assert offset_of(cluster, topic, LATEST, partition=partition) == 20
        wait_until_equal(cluster, topic, (1, 2, 3), end=20, partition=partition)
