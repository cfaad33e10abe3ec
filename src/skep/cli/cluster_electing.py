"""``skep cluster elect``: leaders as they were planned, or, where nothing better is left, unclean ones."""

from typing import Annotated

import typer

from skep.cli import output
from skep.cli.cluster import cluster_admin
from skep.cli.cluster.cluster_state import read_cluster
from skep.cli.cluster_choosing import Topics, partitions_in, refuse
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.skep_client import asking


def elect(
    topics: Topics = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Let a replica lead that was not in sync. Loses records.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Let every partition be led by its preferred replica, the first of its list, as the cluster was planned.

    With --unclean partitions that have no leader get one although not all replicas are back that were in sync: the
    one with the longest log of those that are there. What only the others have is gone for good.

    \b
    Examples:
      skep cluster elect
      skep cluster elect --topic orders --topic payments:0,1
      skep cluster elect --topic orders:3 --unclean
    """
    with asking(cluster_of(bootstrap, properties)) as client:
        state = read_cluster(client, with_replicas=False)
        chosen = set(partitions_in(state, topics))
        if unclean:
            wanted = [p.where for p in state.partitions if p.where in chosen and p.leader is None]
        else:
            wanted = [p.where for p in state.partitions if p.where in chosen and p.leader != p.replicas[0]]
        if not wanted:
            done = "has a leader" if unclean else "is led by its preferred replica"
            output.line(f"Every partition {done}; nobody is elected.")
            return
        if unclean and not yes:
            absent = {broker.id for broker in state.brokers if broker.address is None}
            given_up = sorted(
                {id for p in state.partitions if p.where in set(wanted) for id in absent & set(p.replicas)}
            )
            if given_up:
                output.line(
                    f"Not there: {', '.join(f'broker {id}' for id in given_up)}. Records that only they have are lost."
                )
            output.confirm(f"Elect leaders that lack records for {output.count(len(wanted), 'partition')}?")
        kind = cluster_admin.UNCLEAN if unclean else cluster_admin.PREFERRED
        with output.progress(shown=True) as bar:
            task = bar.add_task("electing", total=len(wanted))
            elected, refused = cluster_admin.elect(client, kind, wanted, lambda count: bar.advance(task, count))
        if elected:
            output.line(f"Elected the leaders of {output.count(len(elected), 'partition')}.")
        refuse(refused, len(wanted))
