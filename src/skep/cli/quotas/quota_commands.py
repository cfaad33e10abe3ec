"""``skep quotas``: list, set and remove the quotas of users, client ids and addresses."""

from collections.abc import Callable
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of, pairs
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.quotas.quota_admin import DEFAULT, alter_quotas, components_of, describe_quotas, entity_text
from skep.cli.quotas.quota_values import check_key, quota_value, shown_value
from skep.cli.skep_client import skep_client
from skep.security.quotas.entities import CLIENT_ID, ENTITY_TYPES, IP, USER, Entity

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user, without User: before the name.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Users without a quota of their own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="The client id (client.id).")]
DefaultClientId = Annotated[bool, typer.Option("--default-client-id", help="Client ids without one of their own.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The address that clients connect from.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Addresses without a quota of their own.")]


def register(app: typer.Typer) -> None:
    about = "List, set and remove quotas of users, client ids and addresses."
    quotas = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {"list": list_quotas, "set": set_quotas, "remove": remove_quotas}
    for name, command in commands.items():
        quotas.command(name)(command)
    app.add_typer(quotas, name="quotas")


def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List quotas.

    All of them, or those that are set for the given user, client id or address.

    \b
    Examples:
      skep quotas list
      skep quotas list --user alice
      skep quotas list --default-client-id --json
    """
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    with skep_client(cluster_of(bootstrap, properties)) as client:
        found = describe_quotas(client, components_of(entity), is_strict=False)
    if json:
        output.document([{"entity": dict(one.entity), "quotas": dict(one.values)} for one in found])
        return
    if not found:
        output.note("There are no quotas." if not entity else f"There are no quotas for {entity_text(entity)}.")
        return
    rows = (
        (*(_cell(one.entity, kind) for kind in ENTITY_TYPES), key, shown_value(key, value))
        for one in found
        for key, value in one.values.items()
    )
    output.table(("USER", "CLIENT ID", "IP", "QUOTA", "VALUE"), rows, right=("VALUE",))


def set_quotas(
    settings: Annotated[list[str], typer.Argument(metavar="QUOTA=VALUE")],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    Quotas are for each broker, and apply at once. Users and client ids have producer_byte_rate and consumer_byte_rate
    (bytes a second, or with a unit: 1MB/s is a million, 1MiB/s is 1048576), request_percentage (of the time of the
    broker's event loop) and controller_mutation_rate (partitions that are created and deleted in a second). Addresses
    have connection_creation_rate (new connections in a second).

    Of several quotas for a client the most specific one applies: user and client id, user, default user, client id,
    default client id.

    \b
    Examples:
      skep quotas set --user alice producer_byte_rate=1MB/s consumer_byte_rate=2MB/s
      skep quotas set --user alice --client-id app request_percentage=25
      skep quotas set --default-user producer_byte_rate=10MB/s
      skep quotas set --default-ip connection_creation_rate=20
    """
    entity = _needed_entity(user, default_user, client_id, default_client_id, ip, default_ip)
    values = {check_key(key): quota_value(key, text) for key, text in pairs(settings, "set").items()}
    with skep_client(cluster_of(bootstrap, properties)) as client:
        alter_quotas(client, entity, values)
    for key, value in values.items():
        output.line(f"Set {key} of {entity_text(entity)} to {shown_value(key, value)}.")


def remove_quotas(
    names: Annotated[list[str] | None, typer.Argument(metavar="QUOTA", show_default=False)] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Remove quotas.

    Those that are named, or all that are set for exactly this user, client id or address.

    \b
    Examples:
      skep quotas remove --user alice producer_byte_rate
      skep quotas remove --default-user
    """
    entity = _needed_entity(user, default_user, client_id, default_client_id, ip, default_ip)
    with skep_client(cluster_of(bootstrap, properties)) as client:
        found = describe_quotas(client, components_of(entity), is_strict=True)
        known = list(found[0].values) if found else []
        for name in names or ():
            if check_key(name) not in known:
                raise CommandError(f"{name} is not set for {entity_text(entity)}")
        if not known:
            raise CommandError(f"there are no quotas for {entity_text(entity)}")
        alter_quotas(client, entity, dict.fromkeys(names or known))
    for name in names or known:
        output.line(f"Removed {name} of {entity_text(entity)}.")


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str | None]:
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        (USER, user, default_user),
        (CLIENT_ID, client_id, default_client_id),
        (IP, ip, default_ip),
    ):
        if name is not None and is_default:
            raise UsageError(f"--{kind} and --default-{kind} cannot be used together")
        if name is not None or is_default:
            entity[kind] = name
    if IP in entity and len(entity) > 1:
        raise UsageError("quotas of an address are for all users and client ids: use --ip alone")
    return entity


def _needed_entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str | None]:
    if entity := _entity(user, default_user, client_id, default_client_id, ip, default_ip):
        return entity
    raise UsageError("say for whom: --user, --client-id, --ip, or --default-user, --default-client-id, --default-ip")


def _cell(entity: Entity, kind: str) -> str:
    return (entity[kind] or DEFAULT) if kind in entity else ""
