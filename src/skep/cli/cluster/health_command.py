"""``skep health``: one line and an exit code, for monitoring and for the health check of a container."""

from typing import Annotated, Any

import typer

from skep.cli import output
from skep.cli.cluster.cluster_state import ClusterState, read_cluster
from skep.cli.cluster.cluster_tables import counts
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client

DEFAULT_TIMEOUT_S = 5.0


def register(app: typer.Typer) -> None:
    app.command("health")(health)


def health(
    alive: Annotated[
        bool, typer.Option("--alive", help="Only check that a broker answers at the address, not the whole cluster.")
    ] = False,
    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, metavar="N", help="Expect at least N running brokers.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Fail if nothing answers for this long.")
    ] = DEFAULT_TIMEOUT_S,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Tell in one line whether the cluster is healthy. Exit code 0: it is; 1: it is not.

    A cluster is healthy if it has a controller, all brokers that hold replicas are running, every partition has a
    leader, and all replicas are in sync. A broker that holds no replica is not missed, unless --brokers says how many
    there should be. Partitions that are being moved are no problem.

    Use --alive to check a single broker, for example in a container: a broker must not be restarted because another one
    is down. skep cluster describe shows the details.

    \b
    Examples:
      skep health
      skep health --brokers 3 || page-someone
      skep health --alive -b 127.0.0.1:9092
      skep health --json | jq '.partitions.offline'
    """
    try:
        report = (
            _alive(bootstrap, properties, timeout_s) if alive else _report(bootstrap, properties, timeout_s, brokers)
        )
    except CommandError as error:
        if not json:
            raise
        report = {"healthy": False, "problems": [str(error)]}
    if json:
        output.document(report)
    elif report["healthy"]:
        output.line(report["summary"])
    else:
        output.alarm(f"not healthy: {'; '.join(report['problems'])}")
    if not report["healthy"]:
        raise typer.Exit(1)


def _alive(bootstrap: str, properties: list[str] | None, timeout_s: float) -> dict[str, Any]:
    cluster = cluster_of(bootstrap, properties)
    cluster.request_timeout_s = timeout_s
    with skep_client(cluster) as client:
        client.nodes()
    return {"healthy": True, "summary": f"alive: a broker answers at {bootstrap}", "problems": []}


def _report(bootstrap: str, properties: list[str] | None, timeout_s: float, expected: int | None) -> dict[str, Any]:
    cluster = cluster_of(bootstrap, properties)
    cluster.request_timeout_s = timeout_s
    with skep_client(cluster) as client:
        state = read_cluster(client, with_replicas=False)
    found = problems(state, expected)
    running, partitions = output.count(len(state.places), "broker"), output.count(len(state.partitions), "partition")
    return {
        "healthy": not found,
        "summary": f"healthy: {running}, {partitions}, all replicas in sync",
        "problems": found,
        "brokers": {"running": sorted(state.places), "missing": missing_brokers(state)},
        "partitions": counts(state),
    }


def missing_brokers(state: ClusterState) -> list[int]:
    """Returns the brokers that hold replicas and are not running."""
    return [broker.id for broker in state.brokers if broker.address is None]


def problems(state: ClusterState, expected: int | None = None) -> list[str]:
    """Returns what is wrong with the cluster, the worst first."""
    counted = counts(state)
    found = []
    total = output.count(counted["total"], "partition")
    labels = {"offline": "offline", "under_min_isr": "under min ISR", "under_replicated": "under-replicated"}
    if parts := [f"{counted[name]:,} {label}" for name, label in labels.items() if counted[name]]:
        found.append(f"of {total} {', '.join(parts)}")
    if missing := missing_brokers(state):
        is_are = "broker {} is" if len(missing) == 1 else "brokers {} are"
        found.append(f"{is_are.format(', '.join(map(str, missing)))} not running")
    if expected is not None and len(state.places) < expected:
        found.append(f"{len(state.places)} of {expected} expected brokers are running")
    if state.controller is None:
        found.append("there is no controller")
    return found
