"""``skep health``: what counts as a problem."""

import pytest

from skep.base.ids import TopicPartition
from skep.cli.cluster.cluster_admin import Move
from skep.cli.cluster.cluster_state import BrokerState, ClusterState, PartitionState
from skep.cli.cluster.health_command import problems


def cluster(*partitions: PartitionState, missing: tuple[int, ...] = (), controller: int | None = 1) -> ClusterState:
    brokers = [BrokerState(id, None if id in missing else f"b{id}:9092", None, None) for id in (1, 2, 3)]
    return ClusterState("id", controller, brokers, list(partitions))


def partition(
    leader: int | None, isr: tuple[int, ...], min_insync: int = 1, move: Move | None = None
) -> PartitionState:
    return PartitionState(TopicPartition("orders", 0), leader, (1, 2, 3), isr, min_insync, move)


WELL = partition(1, (1, 2, 3))


@pytest.mark.parametrize(
    ("state", "expected", "found"),
    [
        (cluster(WELL), None, []),
        (cluster(WELL), 3, []),
        (cluster(WELL, partition(1, (1, 2), move=Move((1, 2, 3), (3,), ()))), None, []),
        (cluster(WELL, partition(1, (1, 2))), None, ["of 2 partitions 1 under-replicated"]),
        (cluster(WELL, controller=None), None, ["there is no controller"]),
        (cluster(WELL), 4, ["3 of 4 expected brokers are running"]),
        (
            cluster(partition(None, (3,), 2), WELL, missing=(2, 3)),
            None,
            [
                "of 2 partitions 1 offline, 1 under min ISR, 1 under-replicated",
                "brokers 2, 3 are not running",
            ],
        ),
    ],
)
def test_problems_are_found(state: ClusterState, expected: int | None, found: list[str]) -> None:
    assert problems(state, expected) == found
