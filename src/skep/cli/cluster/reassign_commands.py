"""``skep cluster reassign`` and ``drain``: what changes who holds partitions."""

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
from skep.cli.cluster_choosing import Topics, brokers_there, partitions_in, refuse
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.skep_client import asking
from skep.client.cluster_client import ClusterClient

Throttle = Annotated[
    int | None, typer.Option("--throttle", min=0, metavar="BYTES/S", help="How fast brokers may copy; 0: no limit.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan, as --file takes it, and do nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Whether to stay until everything has moved.")]


def reassign(
    topics: Topics = None,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="1,2,3", help="Exactly these brokers hold each partition.")
    ] = None,
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="1,2,3", help="Spread evenly over these, moving little.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="With --brokers: so many replicas of each.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A plan as kafka-reassign-partitions has them.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Call off what is being moved.")] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Move partitions to other brokers, or change how many replicas they have. Without a plan, show what is moving.

    New replicas are made first; old ones go when the new ones are in sync, so a partition never has fewer than before.
    With --replicas the first broker is to lead the first partition, the second the next one, and so on. A --throttle is
    taken off when all has moved; --throttle alone changes it for what is being moved.

    \b
    Examples:
      skep cluster reassign --brokers 1,2,3,4
      skep cluster reassign --topic orders --brokers 1,2,3 --replication-factor 3
      skep cluster reassign --topic orders:0 --replicas 2,3,1
      skep cluster reassign --brokers 1,2,3,4 --dry-run > plan.json
      skep cluster reassign --file plan.json --throttle 50000000
      skep cluster reassign --cancel
    """
    chosen = _chosen(topics, replicas, brokers, replication_factor, file, cancel)
    if chosen is None and (topics or dry_run):
        raise UsageError("say where to: --replicas, --brokers or --file; or --cancel")
    with asking(cluster_of(bootstrap, properties)) as client:
        if cancel:
            _cancel(client, topics)
            return
        if chosen is None:
            if throttle is not None:
                cluster_admin.set_throttle(client, throttle or None)
            _show_moves(cluster_admin.moves_under_way(client), json)
            return
        state = read_cluster(client, with_replicas=False)
        plan = {where: wanted for where, wanted in chosen(state).items() if wanted != state.assignment[where]}
        if dry_run:
            output.document(plan_document(plan))
        elif plan:
            _move(client, plan, throttle, wait)
        else:
            output.line("All partitions are where they should be; nothing is moved.")


def _chosen(
    topics: list[str] | None,
    replicas: str | None,
    brokers: str | None,
    replication_factor: int | None,
    file: Path | None,
    cancel: bool,
) -> Callable[[ClusterState], Assignment] | None:
    """What makes the plan once it is known what there is; None when no plan is asked for."""
    if sum((replicas is not None, brokers is not None, file is not None, cancel)) > 1:
        raise UsageError("choose one of --replicas, --brokers, --file and --cancel")
    if replication_factor is not None and brokers is None:
        raise UsageError("--replication-factor goes with --brokers")
    if replicas is not None:
        if not topics:
            raise UsageError("--replicas needs --topic: which partitions shall these brokers hold?")
        holders = parse_brokers(replicas)
        return lambda state: rotated(partitions_in(state, topics), brokers_there(state, holders))
    if brokers is not None:
        among = parse_brokers(brokers)
        return lambda state: spread(
            {where: state.assignment[where] for where in partitions_in(state, topics)},
            {broker: state.places[broker] for broker in brokers_there(state, among)},
            replication_factor,
        )
    if file is not None:
        if topics:
            raise UsageError("the file says which partitions; --topic does not go with it")
        plan = _plan_in(file)
        return lambda state: _known(state, plan)
    return None


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    throttle: Throttle = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Move every replica off a broker, to those with the fewest; ends when it holds nothing and can be taken away.

    The broker may be one that is gone for good: its replicas are made anew on the others. A topic that is created
    meanwhile may get replicas on it; they are moved too.

    \b
    Examples:
      skep cluster drain 3
      skep cluster drain 3 --throttle 50000000
      skep cluster drain 3 --dry-run
    """
    moved: set[TopicPartition] = set()
    with asking(cluster_of(bootstrap, properties)) as client, _throttled(client, None if dry_run else throttle):
        while True:
            state = read_cluster(client, with_replicas=False)
            if broker not in {known.id for known in state.brokers}:
                raise CommandError(f"there is no broker {broker}, and no partition that it should hold")
            plan = drained(state.assignment, broker, state.places)
            if dry_run:
                output.document(plan_document(plan))
                return
            if plan:
                refuse(cluster_admin.move(client, plan), len(plan))
            leaving = {
                where for where, move in cluster_admin.moves_under_way(client).items() if broker in move.removing
            }
            moved |= leaving | set(plan)
            if not leaving and not plan:
                break
            wait_for_moves(client, leaving, what=f"draining broker {broker}")
        output.line(f"Broker {broker} holds nothing; {output.count(len(moved), 'partition')} moved. It can be stopped.")


def _plan_in(file: Path) -> Assignment:
    try:
        plan = read_plan(file.read_text(), str(file))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    if not plan:
        raise UsageError(f"{file} has no partitions")
    return plan


def _known(state: ClusterState, plan: Assignment) -> Assignment:
    """The plan, when all that it names is there."""
    brokers_there(state, sorted({broker for replicas in plan.values() for broker in replicas}))
    for where in plan:
        partitions_in(state, [f"{where.topic}:{where.partition}"])
    return plan


def _move(client: ClusterClient, plan: Assignment, throttle: int | None, wait: bool) -> None:
    if not wait:
        if throttle is not None:
            cluster_admin.set_throttle(client, throttle or None)
        refuse(cluster_admin.move(client, plan), len(plan))
        output.line(f"{output.count(len(plan), 'partition')} being moved; see how far with: skep cluster reassign")
        return
    with _throttled(client, throttle):
        refused = cluster_admin.move(client, plan)
        moving = set(plan) - {refusal.where for refusal in refused}
        wait_for_moves(client, moving, what="moving")
    if moving:
        output.line(f"Moved {output.count(len(moving), 'partition')}.")
    refuse(refused, len(plan))


@contextmanager
def _throttled(client: ClusterClient, bytes_per_second: int | None) -> Iterator[None]:
    """The limit holds until all has moved. Ended before that, it stays with the moves, which go on; that is said."""
    if not bytes_per_second:
        yield
        return
    cluster_admin.set_throttle(client, bytes_per_second)
    try:
        yield
    except BaseException:
        output.note("The throttle stays; take it off with: skep cluster reassign --throttle 0")
        raise
    cluster_admin.set_throttle(client, None)


def _cancel(client: ClusterClient, topics: Iterable[str] | None) -> None:
    chosen = None if not topics else set(partitions_in(read_cluster(client, with_replicas=False), topics))
    moves = cluster_admin.moves_under_way(client)
    plan = {where: None for where in moves if chosen is None or where in chosen}
    refused = cluster_admin.move(client, plan)
    output.line(f"Called off {output.count(len(plan) - len(refused), 'move')}.")
    refuse(refused, len(plan))


def _show_moves(moves: dict[TopicPartition, Move], json: bool) -> None:
    if json:
        rows = [{"topic": where.topic, "partition": where.partition, **move._asdict()} for where, move in moves.items()]
        output.document(rows)
    elif moves:
        rows_shown = ((*where, *(",".join(map(str, ids)) or None for ids in move)) for where, move in moves.items())
        output.table(("topic", "partition", "replicas", "adding", "removing"), rows_shown, right=("partition",))
    else:
        output.note("Nothing is being moved.")
