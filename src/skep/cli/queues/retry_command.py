"""``skep queues retry``: when one record is delivered again."""

from typing import Annotated

import typer

from skep.base.errors import KafkaError
from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.moments import parse_duration_ms
from skep.cli.queues.queue_views import check_queue_exists
from skep.cli.skep_client import skep_client
from skep.client.commands import command_to_leader


def retry(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    delay: Annotated[str, typer.Option("--in", metavar="DURATION", help="For example 90s or 1h30m; 0s is at once.")],
    text: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why it fails, for the dead letter of a record in flight.")
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Set when one record is delivered again.

    A record that waits for its next delivery gets it after this time. One that a member holds waits for this time if
    the member releases it or its lock runs out, instead of what the group's options say. To see both: skep queues
    describe.

    \b
    Examples:
      skep queues retry workers jobs 0 1234 --in 0s
      skep queues retry workers jobs 0 1234 --in 90s --reason "the bank is closed"
    """
    delay_ms = parse_duration_ms(delay)
    arguments = {"group": group, "offset": offset, "delay_ms": delay_ms, "text": text}
    cluster = cluster_of(bootstrap, properties)
    cluster.topic(topic)
    with skep_client(cluster) as client:
        try:
            result = command_to_leader(client, topic, partition, "delay", arguments)
        except KafkaError:
            check_queue_exists(cluster, group)
            raise
    record = f"offset {offset} of {topic}-{partition}"
    if result["state"] == "acquired":
        output.line(f"A member holds {record}. If this delivery fails, the next one is {delay} later.")
    else:
        output.line(f"Group {group} gets {record} again in {delay}.")
