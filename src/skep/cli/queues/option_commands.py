"""``skep queues config``: list, set and delete the options of a share group.

``kafka-configs --entity-type groups`` does the same with more words, and does not say what an option is for.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from skep.base.config.share_group_config import SHARE_GROUP_OPTIONS
from skep.cli import output
from skep.cli.cluster.config_admin import Source, alter_configs, describe_configs
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of, pairs
from skep.cli.output import Json
from skep.cli.queues.queue_views import group_resource
from skep.cli.skep_client import skep_client

Group = Annotated[str, typer.Argument(metavar="GROUP")]

SHOWN_SOURCES = {
    Source.DYNAMIC_GROUP_CONFIG: "set for this group",
    Source.DYNAMIC_BROKER_CONFIG: "set for the broker",
    Source.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all brokers",
    Source.STATIC_BROKER_CONFIG: "given at the broker's start",
}


def register(queues: typer.Typer) -> None:
    config = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="List, set and delete options of a share group."
    )
    commands: dict[str, Callable[..., None]] = {"list": list_options, "set": set_options, "delete": delete_options}
    for name, command in commands.items():
        config.command(name)(command)
    queues.add_typer(config, name="config")


def list_options(
    group: Group,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List the options of a share group.

    Shows the values in force, and where each comes from. The group need not exist yet.
    All options are described in docs/CONFIGURATION.md.

    \b
    Examples:
      skep queues config list workers
      skep queues config list workers --json | jq -r '.[] | select(.source == "DYNAMIC_GROUP_CONFIG").name'
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        found = describe_configs(client, group_resource(group))
    # A group may have options of consumer groups too, which have no effect on a share group.
    shown = [config for config in found if config.name in SHARE_GROUP_OPTIONS]
    if json:
        output.document([{"name": one.name, "value": one.value, "source": one.source.name} for one in shown])
        return
    rows = ((one.name, one.value, SHOWN_SOURCES.get(one.source, "default")) for one in shown)
    output.table(("option", "value", "source"), rows)


def set_options(
    group: Group,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Set options of a share group.

    The change applies at once and is kept. All settings of a command are applied, or none. The group need not exist
    yet.

    \b
    Examples:
      skep queues config set workers share.auto.offset.reset=earliest
      skep queues config set workers share.delivery.count.limit=10 share.record.lock.duration.ms=60000
    """
    set_to = pairs(settings, "set")
    with skep_client(cluster_of(bootstrap, properties)) as client:
        alter_configs(client, group_resource(group), set_to, [])
    for name, value in set_to.items():
        output.line(f"Set {name}={value} for group {group}.")


def delete_options(
    group: Group,
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete options of a share group. Then the broker's value applies, or the default.

    \b
    Examples:
      skep queues config delete workers share.delivery.count.limit
    """
    with skep_client(cluster_of(bootstrap, properties)) as client:
        alter_configs(client, group_resource(group), {}, names)
    for name in names:
        output.line(f"Deleted {name} of group {group}.")
