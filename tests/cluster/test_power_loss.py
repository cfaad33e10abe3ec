"""Power lost by the whole cluster: what one replica of the last ISR still has is kept, whoever comes back first.

A power cut is ``kill -9`` of the process, another boot id, and files cut where the lost pages began.
"""

from collections.abc import Iterator

import pytest

from skep.testing import EmbeddedCluster
from tests.cluster.scenes import create, end_of, read_all, send, wait_until_equal

pytestmark = pytest.mark.xdist_group("cluster")

CONFIG = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"}


@pytest.fixture(params=["sqlite", "zookeeper"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, metadata=request.param, config=CONFIG) as cluster:
        yield cluster


def lose_power(cluster: EmbeddedCluster, *brokers: int) -> None:
    """All at once. What their files lose is up to the test."""
    for i in brokers:
        cluster.kill(i)
    for i in brokers:
        (cluster.broker(i).data_dir / "boot-id").write_text("the run of the machine before this one")


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
