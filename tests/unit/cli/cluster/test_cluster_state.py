"""What is wrong with a partition, and how a cluster is shown."""

import json

import pytest

from skep.base.ids import TopicPartition
from skep.cli.cluster.cluster_admin import Move
from skep.cli.cluster.cluster_state import BrokerState, ClusterState, Held, PartitionState
from skep.cli.cluster.cluster_tables import as_document, show, summary

WHERE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def partition(
    leader: int | None = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    min_insync: int = 1,
    move: Move | None = None,
    where: TopicPartition = WHERE,
) -> PartitionState:
    return PartitionState(where, leader, replicas, isr, min_insync, move)


@pytest.mark.parametrize(
    ("state", "troubles"),
    [
        (partition(), []),
        (partition(isr=(1, 2)), ["under-replicated"]),
        (partition(isr=(1, 2), min_insync=2), ["under-replicated"]),
        (partition(isr=(1,), min_insync=2), ["under min ISR", "under-replicated"]),
        (partition(leader=None, isr=(3,), min_insync=2), ["offline", "under-replicated"]),
        (partition(replicas=(1,), isr=(1,), min_insync=2), []),
        (partition(isr=(1, 2), move=Move((1, 2, 3), (3,), ())), ["being moved"]),
        (partition(isr=(1,), move=Move((1, 2, 3), (3,), (2,))), ["under-replicated", "being moved"]),
    ],
)
def test_the_troubles_of_a_partition(state: PartitionState, troubles: list[str]) -> None:
    assert state.troubles == troubles


def cluster() -> ClusterState:
    return ClusterState(
        "id",
        2,
        [
            BrokerState(1, "a:9092", "r1", {WHERE: Held(100, 0), OTHER: Held(50, 0)}),
            BrokerState(2, "b:9092", None, {WHERE: Held(80, 7), OTHER: Held(50, 5)}),
            BrokerState(3, None, None, None),
            BrokerState(4, "d:9092", None, None),
        ],
        [
            partition(isr=(1,), min_insync=2),
            partition(leader=2, isr=(1, 2), replicas=(2, 1), where=OTHER),
        ],
    )


def test_lag_counts_what_a_broker_follows_only() -> None:
    state = cluster()
    assert [state.lag_of(broker) for broker in state.brokers] == [0, 7, None, None]


def test_places_are_racks_or_hosts_of_the_brokers_that_are_there() -> None:
    assert cluster().places == {1: "r1", 2: "host b", 4: "host d"}


def test_a_move_under_way_counts_as_done() -> None:
    moved = ClusterState("id", 1, [], [partition(replicas=(2, 3, 1), move=Move((2, 3, 1), (2, 3), (1,)))])
    assert moved.assignment == {WHERE: (2, 3)}


def test_the_summary_counts() -> None:
    assert summary(cluster()) == "2 partitions: 1 under-replicated, 1 under min ISR, 0 offline, 0 being moved"


def test_the_tables(capfd: pytest.CaptureFixture[str]) -> None:
    show(cluster(), every=False)
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == "cluster id 3 brokers controller 2"
    assert lines[2] == "1 a:9092 r1 1 2 2 0 150"
    assert lines[3] == "2 b:9092 - 1 2 1 7 130 controller"
    assert lines[4] == "3 - - 0 1 0 - - not running"
    assert lines[5] == "4 d:9092 - 0 0 0 - - no response"
    assert lines[-1] == "orders 0 1 1,2,3 1 2 2: 7 under min ISR, under-replicated"


def test_a_sound_cluster_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    show(ClusterState("id", 1, [BrokerState(1, "a:1", None, {})], [partition((1), (1,), (1,))]), every=False)
    assert capfd.readouterr().out.splitlines()[-1] == "1 partition, all replicas in sync"


def test_many_troubles_are_cut_unless_all_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    state = ClusterState(
        "id", 1, [], [partition(isr=(1,), where=TopicPartition("orders", number)) for number in range(60)]
    )
    show(state, every=False)
    assert capfd.readouterr().out.splitlines()[-1] == "... and 10 more; show them with --all"
    show(state, every=True)
    assert "more" not in capfd.readouterr().out


def test_the_document_is_json_with_everything() -> None:
    document = json.loads(json.dumps(as_document(cluster())))
    assert document["controller"] == 2
    assert document["partitions"] == {
        "total": 2,
        "under_replicated": 1,
        "under_min_isr": 1,
        "offline": 0,
        "reassigning": 0,
    }
    assert [broker["id"] for broker in document["brokers"]] == [1, 2, 3, 4]
    [troubled] = document["troubled"]
    assert troubled["lag"] == {"2": 7, "3": None}
    assert troubled["troubles"] == ["under min ISR", "under-replicated"]
