"""Waiting with a progress bar: until partitions have moved, or until all replicas are in sync."""

import time
from collections.abc import Callable, Collection

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.cluster.cluster_admin import Move, current_moves
from skep.cli.cluster.cluster_state import ClusterState, PartitionState, read_cluster
from skep.cli.failures import CommandError
from skep.client.cluster_client import ClusterClient
from skep.client.retry import call_with_retries

PAUSE_S = 0.3


def wait_for_moves(client: ClusterClient, partitions: Collection[TopicPartition], *, what: str) -> None:
    """Waits until none of the partitions is being moved. Ctrl-C ends the wait, not the moves."""
    total = len(partitions)
    reported: set[int] = set()
    try:
        with output.progress(shown=True) as bar:
            task = bar.add_task(what, total=total)
            while left := _left(client, partitions):
                adding = sum(len(move.adding) for move in left.values())
                bar.update(task, completed=total - len(left), description=_described(what, adding))
                _report_stopped_brokers(client, left, reported)
                time.sleep(PAUSE_S)
            bar.update(task, completed=total, description=what)
    except KeyboardInterrupt:
        output.note("The moves continue without this command; to see them: skep cluster reassign")
        raise


def _left(client: ClusterClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Move]:
    return {where: move for where, move in current_moves(client).items() if where in partitions}


def _described(what: str, adding: int) -> str:
    return f"{what}, {output.count(adding, 'replica')} to copy"


def _report_stopped_brokers(client: ClusterClient, left: dict[TopicPartition, Move], reported: set[int]) -> None:
    """Reports, once for each, the stopped brokers that a move needs."""
    running = {node.node_id for node in call_with_retries(client, "reading the brokers", client.nodes)}
    needed = {broker for move in left.values() for broker in move.replicas if broker not in move.removing}
    for broker in sorted(needed - running - reported):
        reported.add(broker)
        output.note(
            f"Broker {broker} is not running; moves to it wait until it is. To cancel: skep cluster reassign --cancel"
        )


def wait_until_in_sync(
    client: ClusterClient,
    timeout_s: float,
    brokers: int = 0,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ClusterState:
    """Waits until enough brokers run and each partition has a leader and all its replicas in sync.

    Every broker that holds a replica has to run: a stopped one keeps its partitions under-replicated. Raises
    CommandError after ``timeout_s`` and names what is missing.
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
        running = len(state.places)
        return f"only {running} of {brokers} brokers {'is' if running == 1 else 'are'} running"
    first = late[0]
    behind = ",".join(map(str, first.behind))
    why = "has no leader" if first.leader is None else f"is not in sync on broker {behind}"
    more = f"; {output.count(len(late) - 1, 'more partition')}" if len(late) > 1 else ""
    return f"{first.where} {why}{more}"
