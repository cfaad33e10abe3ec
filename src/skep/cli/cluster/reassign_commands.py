"""``skep cluster reassign`` and ``skep cluster drain``: move replicas between brokers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from skep.base.ids import TopicPartition
from skep.cli import output
from skep.cli.cluster import cluster_admin
from skep.cli.cluster.cluster_admin import Move
from skep.cli.cluster.cluster_progress import wait_for_moves
from skep.cli.cluster.cluster_state import ClusterState, read_cluster
from skep.cli.cluster.reassignment_plan import (
    Assignment,
    drained,
    parse_brokers,
    plan_document,
    read_plan,
    rotated,
    spread,
)
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client
from skep.client.cluster_client import ClusterClient

Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:PARTITION,...]", help="Only these partitions. Repeatable."),
]
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", min=0, metavar="BYTES/S", help="Limit the copy rate of each broker; 0: no limit."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan in the format of --file, and do nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all partitions have moved.")]


def reassign(
    topics: Topics = None,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="1,2,3", help="Place each partition on exactly these brokers.")
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="1,2,3", help="Spread partitions evenly over these, with few moves."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, metavar="N", help="With --brokers: replicas per partition."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="A plan in the JSON format of kafka-reassign-partitions."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the moves in progress.")] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Move partitions to other brokers.

    It can change the replication factor, too. Without a destination, the command shows the moves in progress.

    New replicas are created first; old ones are removed when the new ones are in sync, so a partition never has fewer
    replicas than before. With --replicas, the preferred leaders rotate: the first broker for the first partition, the
    second for the next, and so on. A --throttle is removed when all partitions have moved; --throttle alone changes it
    for the moves in progress.

    \b
    Examples:
      skep cluster reassign --brokers 1,2,3,4
      skep cluster reassign --topic orders --brokers 1,2,3 --replication-factor 3
      skep cluster reassign --topic orders:0 --replicas 2,3,1
      skep cluster reassign --brokers 1,2,3,4 --dry-run > plan.json
      skep cluster reassign --file plan.json --throttle 50000000
      skep cluster reassign --cancel
      skep cluster reassign --cancel --topic orders
    """
    planner = _planner(topics, replicas, brokers, replication_factor, file, cancel)
    if planner is None and (dry_run or (topics and not cancel)):
        raise UsageError("give a destination with --replicas, --brokers or --file, or use --cancel")
    with skep_client(cluster_of(bootstrap, properties)) as client:
        if cancel:
            _cancel(client, topics)
            return
        if planner is None:
            if throttle is not None:
                cluster_admin.set_throttle(client, throttle or None)
            _show_moves(cluster_admin.current_moves(client), json)
            return
        state = read_cluster(client, with_replicas=False)
        plan = {where: wanted for where, wanted in planner(state).items() if wanted != state.assignment[where]}
        if dry_run:
            output.document(plan_document(plan))
        elif plan:
            _move(client, plan, throttle, wait)
        else:
            output.line("All partitions are already in place; nothing to move.")


def _planner(
    topics: list[str] | None,
    replicas: str | None,
    brokers: str | None,
    replication_factor: int | None,
    file: Path | None,
    cancel: bool,
) -> Callable[[ClusterState], Assignment] | None:
    """Returns the function that computes the plan from the state of the cluster; None if no plan is asked for."""
    if sum((replicas is not None, brokers is not None, file is not None, cancel)) > 1:
        raise UsageError("only one of --replicas, --brokers, --file and --cancel can be used")
    if replication_factor is not None and brokers is None:
        raise UsageError("--replication-factor can only be used with --brokers")
    if replicas is not None:
        if not topics:
            raise UsageError("--replicas needs --topic: name the partitions to move to these brokers")
        holders = parse_brokers(replicas)
        return lambda state: rotated(state.selected_partitions(topics), state.check_running(holders))
    if brokers is not None:
        among = parse_brokers(brokers)
        return lambda state: spread(
            {where: state.assignment[where] for where in state.selected_partitions(topics)},
            {broker: state.places[broker] for broker in state.check_running(among)},
            replication_factor,
        )
    if file is not None:
        if topics:
            raise UsageError("--file names the partitions; --topic cannot be used with it")
        plan = _plan_in(file)
        return lambda state: _checked(state, plan)
    return None


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    throttle: Throttle = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Move all replicas off a broker.

    They go to the brokers with the fewest replicas. The broker can be removed afterwards. It need not be running: its
    replicas are copied from the others. Replicas that a new topic gets on it meanwhile are moved, too.

    \b
    Examples:
      skep cluster drain 3
      skep cluster drain 3 --throttle 50000000
      skep cluster drain 3 --dry-run
    """
    moved: set[TopicPartition] = set()
    with skep_client(cluster_of(bootstrap, properties)) as client, _throttled(client, None if dry_run else throttle):
        while True:
            state = read_cluster(client, with_replicas=False)
            if broker not in {known.id for known in state.brokers}:
                raise CommandError(f"there is no broker {broker}: it is not running and is no replica of a partition")
            plan = drained(state.assignment, broker, state.places)
            if dry_run:
                output.document(plan_document(plan))
                return
            if plan:
                cluster_admin.raise_refused(cluster_admin.move(client, plan), len(plan))
            leaving = {where for where, move in cluster_admin.current_moves(client).items() if broker in move.removing}
            moved |= leaving | set(plan)
            if not leaving and not plan:
                break
            wait_for_moves(client, leaving, what=f"draining broker {broker}")
        output.line(f"Moved {output.count(len(moved), 'partition')} off broker {broker}; it can be stopped now.")


def _plan_in(file: Path) -> Assignment:
    try:
        plan = read_plan(file.read_text(), str(file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    if not plan:
        raise UsageError(f"the plan in {file} has no partitions")
    return plan


def _checked(state: ClusterState, plan: Assignment) -> Assignment:
    """Returns the plan. Raises CommandError if one of its brokers or partitions does not exist."""
    state.check_running(sorted({broker for replicas in plan.values() for broker in replicas}))
    for where in plan:
        state.selected_partitions([f"{where.topic}:{where.partition}"])
    return plan


def _move(client: ClusterClient, plan: Assignment, throttle: int | None, wait: bool) -> None:
    if not wait:
        if throttle is not None:
            cluster_admin.set_throttle(client, throttle or None)
        cluster_admin.raise_refused(cluster_admin.move(client, plan), len(plan))
        output.line(f"Moving {output.count(len(plan), 'partition')}; to see the moves: skep cluster reassign")
        return
    with _throttled(client, throttle):
        refused = cluster_admin.move(client, plan)
        moving = set(plan) - {refusal.where for refusal in refused}
        wait_for_moves(client, moving, what="moving")
    if moving:
        output.line(f"Moved {output.count(len(moving), 'partition')}.")
    cluster_admin.raise_refused(refused, len(plan))


@contextmanager
def _throttled(client: ClusterClient, bytes_per_second: int | None) -> Iterator[None]:
    """Sets the throttle and removes it at the end. On an error or Ctrl-C it stays, because the moves continue."""
    if not bytes_per_second:
        yield
        return
    cluster_admin.set_throttle(client, bytes_per_second)
    try:
        yield
    except BaseException:
        output.note("The throttle is still set; to remove it: skep cluster reassign --throttle 0")
        raise
    cluster_admin.set_throttle(client, None)


def _cancel(client: ClusterClient, topics: Iterable[str] | None) -> None:
    selected = set(read_cluster(client, with_replicas=False).selected_partitions(topics)) if topics else None
    moves = cluster_admin.current_moves(client)
    plan = {where: None for where in moves if selected is None or where in selected}
    refused = cluster_admin.move(client, plan)
    output.line(f"Cancelled {output.count(len(plan) - len(refused), 'move')}.")
    cluster_admin.raise_refused(refused, len(plan))


def _show_moves(moves: dict[TopicPartition, Move], json: bool) -> None:
    if json:
        rows = [{"topic": where.topic, "partition": where.partition, **move._asdict()} for where, move in moves.items()]
        output.document(rows)
    elif moves:
        rows_shown = ((*where, *(",".join(map(str, ids)) or None for ids in move)) for where, move in moves.items())
        output.table(("topic", "partition", "replicas", "adding", "removing"), rows_shown, right=("partition",))
    else:
        output.note("No partition is being moved.")
