"""Power lost by the whole cluster: what one replica of the last ISR still has is kept, whoever comes back first.

A power cut is ``kill -9`` of the process, another boot id, and files that are cut: where a test says, or where they end
on the disk (``power.py``).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import HEADER_SIZE, read_header, write_header
from skep.records.builder import build_batch
from skep.testing import EmbeddedCluster
from tests.cluster.coordinators import OPTIONS, PARTITIONS, commit_offsets, committed_offsets
from tests.cluster.driving import LONG_SESSIONS
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.power import ANOTHER_BOOT, Tail
from tests.cluster.scenes import create, end_of, read_all, send, wait_until_equal
from tests.cluster.transactors import LEDGER, Transactor
from tests.waiting import wait_until

GROUP = "riders"
CONFIG = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"}
ALL_STAY_IN_SYNC = {**LONG_SESSIONS, "replica.lag.time.max.ms": "60000"}
"""Until the power is cut. Who is in no ISR by then has not all that was acknowledged, and may not lead."""


@pytest.fixture(params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, metadata=request.param, config=CONFIG) as cluster:
        yield cluster


def lose_power(cluster: EmbeddedCluster, *brokers: int) -> None:
    """All at once. What their files lose is up to the test."""
    # None of them is to live long enough to take another out of an ISR.
    for i in brokers:
        os.kill(cluster.broker(i).pid, signal.SIGKILL)
    for i in brokers:
        cluster.kill(i)
    for i in brokers:
        (cluster.broker(i).data_dir / "boot-id").write_text(ANOTHER_BOOT)


def cut_in_half(cluster: EmbeddedCluster, i: int, topic: str) -> None:
    last = max((cluster.broker(i).data_dir / f"{topic}-0").glob("*.log"))
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size // 2)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1)], ids=["it comes back last", "it comes back first"])
def test_the_longest_log_leads_when_all_have_lost_power(cluster: EmbeddedCluster, order: tuple[int, ...]) -> None:
    create(cluster, "eggs")
    assert send(cluster, "eggs", 1000) == 1000
    wait_until_equal(cluster, "eggs")
    before = read_all(cluster, "eggs")
    lose_power(cluster, 1, 2, 3)
    cut_in_half(cluster, 3, "eggs")
    for i in order:
        cluster.restart(i)
    wait_until_equal(cluster, "eggs")
    assert end_of(cluster, "eggs") == 1000
    assert read_all(cluster, "eggs") == before
    assert send(cluster, "eggs", 5) == 5


def write_unsynced(cluster: FaultCluster, i: int, topic: str, base_offset: int) -> None:
    """As if the broker had been writing two more batches when the power went; nobody was told of them."""
    batch = build_batch([(None, b"x" * 3000, -1, ())])
    with open(max((cluster.files(i) / f"{topic}-0").glob("*.log")), "ab") as file:
        for offset in (base_offset, base_offset + 1):
            header = read_header(batch)._replace(base_offset=Offset(offset), partition_leader_epoch=LeaderEpoch(0))
            file.write(write_header(header) + batch[HEADER_SIZE:])


@pytest.mark.parametrize("tail", Tail, ids=lambda tail: tail.name.lower())
def test_a_topic_that_syncs_is_led_by_the_first_one_back(tail: Tail) -> None:
    with FaultCluster(3, config=ALL_STAY_IN_SYNC) as cluster:
        create(cluster, "eggs", flush_messages="1")
        assert send(cluster, "eggs", 200) == 200
        before = read_all(cluster, "eggs")
        for i in (1, 2, 3):
            cluster.pause(i)
            write_unsynced(cluster, i, "eggs", base_offset=200)
        cluster.tails = [tail]
        assert cluster.lose_power([1, 2, 3]) > 0
        cluster.restart(2)
        wait_until(lambda: cluster.leader_of("eggs") == 2, "the first one back leads")
        assert read_all(cluster, "eggs")[:200] == before
        for i in (1, 3):
            cluster.restart(i)
        wait_until_equal(cluster, "eggs")
        # A batch that reached one disk before the power went may be there, though nobody was told so.
        assert read_all(cluster, "eggs")[:200] == before
        assert send(cluster, "eggs", 5) == 5


def test_a_member_that_never_comes_back_is_given_up_with_one_command(cluster: EmbeddedCluster) -> None:
    create(cluster, "eggs")
    assert send(cluster, "eggs", 100) == 100
    wait_until_equal(cluster, "eggs")
    lose_power(cluster, 1, 2, 3)
    cut_in_half(cluster, 1, "eggs")
    for i in (1, 2):
        cluster.restart(i)
    cluster.wait_until_ready()
    waiting = "1 partitions without a leader wait for broker 3"
    wait_until(lambda: any(waiting in cluster.log(i) for i in (1, 2)), "the controller says for whom it waits")
    assert cluster.leader_of("eggs") == -1
    command = [sys.executable, "-m", "skep.cli.main", "cluster", "elect", "--unclean"]
    done = subprocess.run(
        [*command, "--bootstrap-server", cluster.bootstrap_servers],
        input="y\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Not running: broker 3. Records that only they have will be lost." in done.stdout
    wait_until(lambda: cluster.leader_of("eggs") == 2, "of those that are there, the one with the longest log leads")
    assert end_of(cluster, "eggs") == 100


@pytest.mark.parametrize("spared", [0, 2], ids=["all is synced", "one disk had it all"])
def test_offsets_and_transactions_are_kept_when_all_have_lost_power(spared: int) -> None:
    config = {**OPTIONS, **ALL_STAY_IN_SYNC, **({} if spared else {"log.flush.interval.messages": "1"})}
    with FaultCluster(3, config=config) as cluster:
        create(cluster, LEDGER, partitions=PARTITIONS)
        transactor = Transactor(cluster.bootstrap_servers, "ledger")
        transactor.go_on(5)
        place = TopicPartition(LEDGER, 0, 3)
        assert commit(cluster, place) == 3
        cluster.wait_until_in_sync()
        others = [i for i in (1, 2, 3) if i != spared]
        # The spared one is the last to die and the first to come back.
        lost = cluster.lose_power([*others, *filter(None, [spared])], lambda i, partition: i == spared)
        assert lost > 0 or not spared
        for i in [*filter(None, [spared]), *others]:
            cluster.restart(i)
        cluster.wait_until_in_sync()
        assert committed(cluster, place) == 3
        transactor.go_on(3)
        transactor.check_all_or_nothing()
        transactor.close()
        for i in cluster.brokers:
            assert "Traceback" not in cluster.log(i)


def commit(cluster: EmbeddedCluster, place: TopicPartition) -> int:
    [done] = commit_offsets(cluster.bootstrap_servers, GROUP, [place])
    offset: int = done.offset
    return offset


def committed(cluster: EmbeddedCluster, place: TopicPartition) -> int:
    with contextlib.closing(
        Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    ) as consumer:
        [found] = committed_offsets(consumer, [TopicPartition(place.topic, place.partition)])
    offset: int = found.offset
    return offset
