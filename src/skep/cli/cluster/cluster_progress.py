"""Waiting for a cluster, with a bar: until partitions have moved, until all replicas are in sync."""

import time
from collections.abc import Callable, Collection

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.cluster.cluster_admin import Move, moves_under_way
from skep.cli.cluster.cluster_state import ClusterState, PartitionState, read_cluster
from skep.cli.failures import CommandError
from skep.client.asking import until_answered
from skep.client.cluster_client import ClusterClient

PAUSE_S = 0.3


def wait_for_moves(client: ClusterClient, partitions: Collection[TopicPartition], *, what: str) -> None:
    """Until none of the partitions is being moved. Interrupted, it says that the moves go on."""
    total = len(partitions)
    told: set[int] = set()
    try:
        with output.progress(shown=True) as bar:
            task = bar.add_task(what, total=total)
            while left := _left(client, partitions):
                coming = sum(len(move.adding) for move in left.values())
                bar.update(task, completed=total - len(left), description=_described(what, coming))
                _tell_of_absent(client, left, told)
                time.sleep(PAUSE_S)
            bar.update(task, completed=total, description=what)
    except KeyboardInterrupt:
        output.note("The moves go on without this command; see them with: skep cluster reassign")
        raise


def _left(client: ClusterClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Move]:
    return {where: move for where, move in moves_under_way(client).items() if where in partitions}


def _described(what: str, coming: int) -> str:
    return f"{what}, {output.count(coming, 'replica')} to be copied"


def _tell_of_absent(client: ClusterClient, left: dict[TopicPartition, Move], told: set[int]) -> None:
    """Once for each broker: what is to be moved to one that is not there waits for it."""
    there = {node.node_id for node in until_answered(client, "the brokers", client.nodes)}
    wanted = {broker for move in left.values() for broker in move.replicas if broker not in move.removing}
    for broker in sorted(wanted - there - told):
        told.add(broker)
        output.note(f"Broker {broker} is not there; what is to be moved to it waits for it, or for --cancel.")


def wait_until_in_sync(
    client: ClusterClient,
    timeout_s: float,
    brokers: int = 0,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterState:
    """Until so many brokers are there and each partition has a leader and all its replicas in sync.

    CommandError, saying what is missing, when the time is over. Each broker that holds a replica has to be there: one
    that is away keeps its partitions under-replicated.
    """
    deadline = now() + timeout_s
    with output.progress(shown=True) as bar:
        task = bar.add_task("in sync", total=None)
        while True:
            state = read_cluster(client, with_replicas=False)
            late = [p for p in state.partitions if p.leader is None or p.behind]
            bar.update(task, total=len(state.partitions), completed=len(state.partitions) - len(late))
            if not late and len(state.places) >= brokers:
                return state
            if now() >= deadline:
                raise CommandError(f"not in sync after {timeout_s:g} s: {_missing(state, late, brokers)}")
            sleep(PAUSE_S)


def _missing(state: ClusterState, late: list[PartitionState], brokers: int) -> str:
    if len(state.places) < brokers:
        there = len(state.places)
        return f"only {there} of {brokers} brokers {'is' if there == 1 else 'are'} there"
    first = late[0]
    behind = ",".join(map(str, first.behind))
    why = "has no leader" if first.leader is None else f"is not in sync on {behind}"
    more = f", nor are {len(late) - 1:,} more partitions" if len(late) > 1 else ""
    return f"{first.where} {why}{more}"
