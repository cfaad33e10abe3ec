"""``skep cluster``: see the brokers of a cluster and what is wrong, move replicas, elect leaders, let a broker go."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.cluster.cluster_progress import wait_until_in_sync
from skep.cli.cluster.cluster_state import read_cluster
from skep.cli.cluster.cluster_tables import SHOWN_TROUBLES, as_document, show
from skep.cli.cluster.reassign_commands import drain, reassign
from skep.cli.cluster_electing import elect
from skep.cli.cluster_unregistering import unregister
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.output import Json
from skep.cli.skep_client import asking

LOOK_WITHIN_S = 9.0
"""Of which one broker that is silent takes a third; this is asked when some are."""
_CLEAR_SCREEN = b"\x1b[H\x1b[2J"


def register(app: typer.Typer) -> None:
    about = "The cluster as a whole: what is wrong, who holds what, and how to change that."
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
    app.add_typer(cluster, name="cluster")


def describe(
    every: Annotated[bool, typer.Option("--all", help=f"Show more than {SHOWN_TROUBLES} troubled partitions.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.1, metavar="SECONDS", help="Look again, until Ctrl-C.")
    ] = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Show the brokers, what each of them leads and holds, and the partitions that are not as they should be.

    Under-replicated: a replica is not in sync, and is behind by as many records as its lag. Under min ISR: fewer are in
    sync than min.insync.replicas, and producers with acks=all are refused. Offline: no replica can lead.

    \b
    Examples:
      skep cluster describe
      skep cluster describe --watch 1
      skep cluster describe --json | jq '.partitions.under_replicated'
    """
    cluster = cluster_of(bootstrap, properties)
    cluster.request_timeout_s = LOOK_WITHIN_S
    with asking(cluster) as client:
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
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Then it fails.")] = 300,
    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, metavar="N", help="Wait until so many brokers are there, too.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Wait until every partition has a leader and all its replicas are in sync: between the steps of a rolling restart.

    \b
    Examples:
      skep cluster wait
      skep cluster wait --brokers 3 --timeout 60
    """
    with asking(cluster_of(bootstrap, properties)) as client:
        state = wait_until_in_sync(client, timeout_s, brokers or 0)
        there = output.count(len(state.places), "broker")
        output.line(f"{output.count(len(state.partitions), 'partition')} on {there}, all replicas in sync.")
