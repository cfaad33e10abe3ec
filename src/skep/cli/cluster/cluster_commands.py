"""``skep cluster``: describe a cluster, wait for it, elect leaders, unregister a broker.

``reassign`` and ``drain``, which move replicas, are in ``reassign_commands``; ``config`` is in ``config_commands``.
"""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.cluster import cluster_admin, config_commands
from skep.cli.cluster.cluster_progress import wait_until_in_sync
from skep.cli.cluster.cluster_state import ClusterState, read_cluster
from skep.cli.cluster.cluster_tables import SHOWN_TROUBLES, as_document, show
from skep.cli.cluster.reassign_commands import Topics, drain, reassign
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client

DESCRIBE_TIMEOUT_S = 9.0
"""A broker that does not respond uses up a third of it; then the next one is tried."""
_CLEAR_SCREEN = b"\x1b[H\x1b[2J"


def register(app: typer.Typer) -> None:
    about = "Show brokers and partitions, move replicas, set options."
    cluster = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {
        "describe": describe,
        "wait": wait,
        "reassign": reassign,
        "elect": elect,
        "drain": drain,
        "unregister": unregister,
    }
    for name, command in commands.items():
        cluster.command(name)(command)
    config_commands.register(cluster)
    app.add_typer(cluster, name="cluster")


def describe(
    every: Annotated[
        bool, typer.Option("--all", help=f"Show all unhealthy partitions, not only the first {SHOWN_TROUBLES}.")
    ] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.1, metavar="SECONDS", help="Repeat at this interval, until Ctrl-C.")
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show brokers and unhealthy partitions.

    Under-replicated: a replica is not in sync; its lag is the number of records it is behind. Under min ISR: fewer
    replicas than min.insync.replicas are in sync, and acks=all producers are refused. Offline: the partition has no
    leader.

    \b
    Examples:
      skep cluster describe
      skep cluster describe --watch 1
      skep cluster describe --json | jq '.partitions.under_replicated'
    """
    cluster = cluster_of(bootstrap, properties)
    cluster.request_timeout_s = DESCRIBE_TIMEOUT_S
    with skep_client(cluster) as client:
        while True:
            state = read_cluster(client)
            if watch is not None and sys.stdout.isatty():
                output.write(_CLEAR_SCREEN)
            if json:
                output.document(as_document(state))
            else:
                show(state, every)
            if watch is None:
                return
            output.flush()
            time.sleep(watch)


def wait(
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Fail after this many seconds.")
    ] = 300,
    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, metavar="N", help="Wait also until N brokers are running.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Wait until all replicas are in sync.

    Every partition must have a leader, too. Use it between the steps of a rolling restart.

    \b
    Examples:
      skep cluster wait
      skep cluster wait --brokers 3 --timeout 60
    """
    # The only broker of the address may be restarting.
    with skep_client(cluster_of(bootstrap, properties), must_answer=False) as client:
        state = wait_until_in_sync(client, timeout_s, brokers or 0)
        running = output.count(len(state.places), "broker")
        output.line(f"{output.count(len(state.partitions), 'partition')} on {running}, all replicas in sync.")


def elect(
    topics: Topics = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect a replica that is not in sync. Loses records.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Elect the preferred leaders of partitions.

    The preferred leader is the first replica in a partition's list. With --unclean, a partition without a leader gets
    one although not all replicas that were in sync are back: the running replica with the longest log. Records that
    only the other replicas have are lost.

    \b
    Examples:
      skep cluster elect
      skep cluster elect --topic orders --topic payments:0,1
      skep cluster elect --topic orders:3 --unclean
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        state = read_cluster(client, with_replicas=False)
        selected = set(state.selected_partitions(topics))
        if unclean:
            wanted = [p.where for p in state.partitions if p.where in selected and p.leader is None]
        else:
            wanted = [p.where for p in state.partitions if p.where in selected and p.leader != p.replicas[0]]
        if not wanted:
            condition = "has a leader" if unclean else "is led by its preferred replica"
            output.line(f"Every partition {condition}; no election is needed.")
            return
        if unclean and not yes:
            missing = sorted(
                {id for p in state.partitions if p.where in set(wanted) for id in _not_running(state, p.replicas)}
            )
            if missing:
                brokers = ", ".join(f"broker {id}" for id in missing)
                output.line(f"Not running: {brokers}. Records that only they have will be lost.")
            output.confirm(f"Elect out-of-sync leaders for {output.count(len(wanted), 'partition')}?")
        kind = cluster_admin.UNCLEAN if unclean else cluster_admin.PREFERRED
        with output.progress(shown=True) as bar:
            task = bar.add_task("electing", total=len(wanted))
            elected, refused = cluster_admin.elect(client, kind, wanted, lambda count: bar.advance(task, count))
        if elected:
            output.line(f"Elected the leaders of {output.count(len(elected), 'partition')}.")
        cluster_admin.raise_refused(refused, len(wanted))


def _not_running(state: ClusterState, replicas: tuple[int, ...]) -> set[int]:
    return {broker.id for broker in state.brokers if broker.address is None} & set(replicas)


def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Unregister a broker that is gone for good.

    As with kafka-cluster unregister, the cluster then no longer waits for it to delete the files of deleted topics. A
    broker that runs or is a replica of a partition is refused: move its partitions with skep cluster drain first. A
    broker with this id may be started again at any time.

    \b
    Examples:
      skep cluster drain 3
      skep cluster unregister 3
    """
    # A broker registers by running, so all that is left of a stopped one is the deleted topics whose files it has not
    # removed. Kafka also unregisters a broker that runs or holds replicas, which is never intended.
    with skep_client(cluster_of(bootstrap, properties)) as client:
        state = read_cluster(client, with_replicas=False)
        if broker in state.places:
            raise CommandError(f"broker {broker} is running; stop it first")
        if held := sum(broker in partition.replicas for partition in state.partitions):
            raise CommandError(
                f"broker {broker} is a replica of {output.count(held, 'partition')}; move them first with: "
                f"skep cluster drain {broker}"
            )
        if cluster_admin.unregister(client, broker):
            output.line(f"Unregistered broker {broker}.")
        else:
            output.line(f"Broker {broker} is not registered; nothing to do.")
