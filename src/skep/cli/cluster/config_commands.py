"""``skep cluster config``: list, set and delete the options of brokers at run time."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from skep.cli import output
from skep.cli.cluster.config_admin import (
    EVERY_BROKER,
    Config,
    Resource,
    Source,
    alter_configs,
    broker,
    describe_configs,
)
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of, pairs
from skep.cli.failures import UsageError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client
from skep.client.cluster_client import ClusterClient

BrokerId = Annotated[
    int | None,
    typer.Option("--broker", min=0, metavar="ID", help="Only this broker. [default: all brokers]", show_default=False),
]
SHOWN_SOURCES = {
    Source.DYNAMIC_BROKER_CONFIG: "set for this broker",
    Source.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all brokers",
    Source.STATIC_BROKER_CONFIG: "given at start",
    Source.DEFAULT_CONFIG: "default",
}


def register(cluster: typer.Typer) -> None:
    about = "List, set and delete options of brokers."
    config = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {"list": list_options, "set": set_options, "delete": delete_options}
    for name, command in commands.items():
        config.command(name)(command)
    cluster.add_typer(config, name="config")


def list_options(
    broker_id: BrokerId = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every option of the broker, also those with their default.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List the options of brokers.

    Without --broker: the options that were set at run time, for all brokers and for single ones that are running. With
    --broker: the options of this broker that differ from their default, and where each value comes from. An option that
    is set for the broker wins over one that is set for all brokers; both win over what was given at the broker's start
    (file, environment, flags). All options are described in docs/CONFIGURATION.md.

    \b
    Examples:
      skep cluster config list
      skep cluster config list --broker 1 --all
      skep cluster config list --broker 1 --all --json | jq -r '.[] | select(.name == "num.partitions").value'
    """
    if every and broker_id is None:
        raise UsageError("--all needs --broker ID, because brokers can differ")
    with skep_client(cluster_of(bootstrap, properties)) as client:
        if broker_id is None:
            _show_changed(client, json)
            return
        configs = describe_configs(client, broker(broker_id))
    configs = [config for config in configs if every or config.source is not Source.DEFAULT_CONFIG]
    if json:
        output.document([_as_document(config) for config in configs])
    elif configs:
        rows = (
            (config.name, _shown(config), SHOWN_SOURCES[config.source], "" if config.is_read_only else "at run time")
            for config in configs
        )
        output.table(("option", "value", "source", "can change"), rows)
    else:
        output.note(f"Every option of broker {broker_id} has its default; to see them: --all")


def _show_changed(client: ClusterClient, json: bool) -> None:
    resources = [EVERY_BROKER, *(broker(node.node_id) for node in sorted(client.nodes()))]
    rows = [
        (resource, config) for resource in resources for config in describe_configs(client, resource, own_only=True)
    ]
    if json:
        output.document([{"broker": _id_of(resource), **_as_document(config)} for resource, config in rows])
    elif rows:
        output.table(
            ("broker", "option", "value"),
            ((resource.name or "all", config.name, _shown(config)) for resource, config in rows),
        )
    else:
        output.note("No option was changed at run time. To change one: skep cluster config set NAME=VALUE")


def _id_of(resource: Resource) -> int | None:
    return int(resource.name) if resource.name else None


def _shown(config: Config) -> str:
    return "(hidden)" if config.is_sensitive else config.value or ""


def _as_document(config: Config) -> dict[str, Any]:
    return {
        "name": config.name,
        "value": config.value,
        "source": config.source.name,
        "read_only": config.is_read_only,
    }


def set_options(
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
    broker_id: BrokerId = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Set options of all brokers, or of one.

    The change applies at once and is kept over restarts. All settings of a command are applied, or none. An option that
    cannot change at run time is refused: give it to skep serve and restart the broker.

    \b
    Examples:
      skep cluster config set num.partitions=3
      skep cluster config set log.retention.ms=86400000 log.retention.bytes=-1
      skep cluster config set skep.log.level=DEBUG --broker 2
    """
    set_to = pairs(settings, "set")
    _alter(bootstrap, properties, broker(broker_id), set_to, [])
    for name, value in set_to.items():
        output.line(f"Set {name}={value} for {broker(broker_id)}.")


def delete_options(
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    broker_id: BrokerId = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Delete options that were set at run time.

    Then the value for all brokers applies, or what was given at the broker's start, or the default.

    \b
    Examples:
      skep cluster config delete num.partitions
      skep cluster config delete skep.log.level --broker 2
    """
    _alter(bootstrap, properties, broker(broker_id), {}, names)
    for name in names:
        output.line(f"Deleted {name} of {broker(broker_id)}.")


def _alter(
    bootstrap: str, properties: list[str] | None, resource: Resource, set_to: dict[str, str], unset: list[str]
) -> None:
    with skep_client(cluster_of(bootstrap, properties)) as client:
        alter_configs(client, resource, set_to, unset)
