"""ZooKeeper goes away and comes back under groups and transactions that are under way: they notice nothing.

Coordinators are where their partitions are led, and nobody has to ask the store for that. What needs it, another
coordinator for one that dies, works again as soon as ZooKeeper does.
"""

import contextlib
from collections.abc import Iterator

import pytest

from skep.testing import EmbeddedCluster
from skep.zookeeper_server import ZooKeeperEnsemble
from tests.cluster.coordinators import (
    assert_no_bug_was_logged,
    bring_back,
    coordinator_of,
    running_cluster,
    transaction_coordinator_of,
)
from tests.cluster.group_riders import TOPIC, party_of
from tests.cluster.scenes import creation_error
from tests.cluster.transactors import LEDGER, Transactor
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    # When ZooKeeper is back, each broker has so long to connect before it is given up. A broker that is killed is given
    # up as late.
    config = {"zookeeper.session.timeout.ms": "12000"}
    with running_cluster("zookeeper", TOPIC, LEDGER, config=config) as started:
        yield started


@pytest.fixture
def zookeeper(cluster: EmbeddedCluster) -> ZooKeeperEnsemble:
    assert cluster.zookeeper is not None
    cluster.wait_until_in_sync()
    return cluster.zookeeper


def test_a_group_rides_on_while_zookeeper_is_restarted(cluster: EmbeddedCluster, zookeeper: ZooKeeperEnsemble) -> None:
    group = "riders"
    with party_of(cluster, group, members=3) as party:
        before = coordinator_of(cluster, group)
        zookeeper.kill(0)
        party.ride()
        assert creation_error(cluster, "not-now") is not None, "it was away all the time"
        party.ride()
        zookeeper.restart(0)
        party.ride()
        cluster.wait_until_ready()
        assert coordinator_of(cluster, group) == before, "nobody was given up"
        # The store is of use again: this needs an election.
        cluster.kill(before)
        party.ride()
        bring_back(cluster, before)
        party.ride()
        party.check_nothing_is_lost()
    assert_no_bug_was_logged(cluster)


def test_transactions_go_on_while_zookeeper_is_restarted(
    cluster: EmbeddedCluster, zookeeper: ZooKeeperEnsemble
) -> None:
    servers, name = cluster.bootstrap_servers, "writer"
    with contextlib.closing(Transactor(servers, name)) as transactor:
        transactor.go_on()
        before = transaction_coordinator_of(cluster, name)
        transactor.go_on(under_way=lambda: zookeeper.kill(0))
        assert transactor.doubtful == set(), "the producer was never told anything amiss"
        with contextlib.closing(Transactor(servers, f"{name}-that-comes-later")) as other:
            other.go_on()
        transactor.go_on(under_way=lambda: zookeeper.restart(0))
        cluster.wait_until_ready()
        assert transaction_coordinator_of(cluster, name) == before, "nobody was given up"
        transactor.go_on(under_way=lambda: cluster.kill(before))
        wait_until(lambda: transaction_coordinator_of(cluster, name) not in (before, -1), "another coordinator")
        bring_back(cluster, before)
        transactor.go_on()
        for one in (transactor, other):
            one.check_all_or_nothing()
    assert_no_bug_was_logged(cluster)
