"""``skep cluster unregister``: a broker that is gone for good is forgotten, as by ``kafka-cluster unregister``.

A broker registers by being there, so of one that is away little is left to forget: the deleted topics whose files it
was to remove. Kafka forgets also a broker that runs, or that is still a replica of partitions; nobody means that.
"""

from typing import Annotated

import typer

from skep.cli import output
from skep.cli.cluster import cluster_admin
from skep.cli.cluster.cluster_state import read_cluster
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError
from skep.cli.skep_client import asking


def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Forget a broker that is gone and will not come back: nobody waits for it to remove the files of deleted topics.

    It is refused while the broker runs, and while it is to hold partitions: move those to others first, with skep
    cluster drain. A broker of this id may be started again at any time.

    \b
    Examples:
      skep cluster drain 3
      skep cluster unregister 3
    """
    with asking(cluster_of(bootstrap, properties)) as client:
        state = read_cluster(client, with_replicas=False)
        if broker in state.places:
            raise CommandError(f"broker {broker} is running; stop it first")
        if held := sum(broker in partition.replicas for partition in state.partitions):
            raise CommandError(
                f"broker {broker} is to hold {output.count(held, 'partition')}; move them first, with: "
                f"skep cluster drain {broker}"
            )
        if cluster_admin.unregister(client, broker):
            output.line(f"Broker {broker} is forgotten.")
        else:
            output.line(f"Nothing is known of a broker {broker}; there is nothing to forget.")
