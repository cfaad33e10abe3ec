"""``skep acls``: list, add and remove ACLs, and say which of them decides."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from skep.cli import output
from skep.cli.acls.acl_admin import (
    CLUSTER,
    Grant,
    check_access,
    consumer_operations,
    create_acls,
    delete_acls,
    describe_acls,
    exact,
    operation_of,
    producer_operations,
)
from skep.cli.connection import DEFAULT_BOOTSTRAP, Bootstrap, Properties, cluster_of
from skep.cli.failures import CommandError, UsageError
from skep.cli.output import Json
from skep.cli.skep_client import skep_client
from skep.security.acls.acl import ANY_HOST, Acl, AclFilter, ResourcePattern
from skep.security.operations import Operation, PatternType, Permission, ResourceType

Topic = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; * stands for all.")]
Group = Annotated[list[str] | None, typer.Option("--group", metavar="ID", help="A group; * stands for all.")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
TransactionalId = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id; * stands for all.")
]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes: all that begin with them.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="TYPE:NAME", help="Who may, e.g. User:alice; User:* is everybody."),
]
Deny = Annotated[
    list[str] | None, typer.Option("--deny", metavar="TYPE:NAME", help="Who may not, whatever else allows it.")
]
Host = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="From where: an address or 10.0.0.0/8. Default: *."),
]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", metavar="NAME", help="What: read, write, describe ... Default: all.")
]
AsProducer = Annotated[bool, typer.Option("--producer", help="All that a producer to these topics needs.")]
AsConsumer = Annotated[bool, typer.Option("--consumer", help="All that a consumer of these topics and groups needs.")]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: also on the cluster, for old clients.")
]
Principal = Annotated[str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only those of a principal.")]


def register(app: typer.Typer) -> None:
    about = "List, add and remove ACLs, which say who may do what."
    acls = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    commands: dict[str, Callable[..., None]] = {"list": list_acls, "add": add, "remove": remove, "check": check}
    for name, command in commands.items():
        acls.command(name)(command)
    app.add_typer(acls, name="acls")


def list_acls(
    topic: Topic = None,
    group: Group = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalId = None,
    principal: Principal = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """List ACLs.

    All of them, or those that concern the given resources: also by prefixes and by *.

    \b
    Examples:
      skep acls list
      skep acls list --topic orders
      skep acls list --principal User:alice --json
    """
    named = _patterns(topic, group, cluster, transactional_id, PatternType.MATCH)
    filters = [AclFilter(one.type, one.name, one.pattern_type, principal) for one in named]
    with skep_client(cluster_of(bootstrap, properties)) as client:
        found = sorted(
            {acl for one in filters or [AclFilter(principal=principal)] for acl in describe_acls(client, one)}
        )
    _show(found, json, "There are no ACLs." if not filters else "There are no ACLs for these.")


def add(
    topic: Topic = None,
    group: Group = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalId = None,
    prefixed: Prefixed = False,
    allow: Allow = None,
    deny: Deny = None,
    host: Host = None,
    operation: Operations = None,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    idempotent: Idempotent = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Add ACLs.

    DENY is stronger than ALLOW. Adding an ACL again is no error.

    \b
    Examples:
      skep acls add --allow User:alice --producer --topic orders
      skep acls add --allow User:bob --consumer --topic orders --group shipping
      skep acls add --allow User:ops --operation describe --topic '*' --cluster
      skep acls add --deny User:mallory --topic pay --prefixed
    """
    patterns = _patterns(topic, group, cluster or idempotent, transactional_id, _pattern_type(prefixed))
    acls = _acls(_grants(allow, deny, host), patterns, operation, producer, consumer, idempotent)
    with skep_client(cluster_of(bootstrap, properties)) as client:
        create_acls(client, acls)
    _show(acls, json, "")


def remove(
    topic: Topic = None,
    group: Group = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalId = None,
    prefixed: Prefixed = False,
    allow: Allow = None,
    deny: Deny = None,
    host: Host = None,
    operation: Operations = None,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    idempotent: Idempotent = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Remove ACLs.

    With --allow or --deny: exactly those that ``skep acls add`` adds with the same options. Without: all of the given
    resources, by exactly this name.

    \b
    Examples:
      skep acls remove --allow User:alice --producer --topic orders
      skep acls remove --topic orders
    """
    patterns = _patterns(topic, group, cluster or idempotent, transactional_id, _pattern_type(prefixed))
    if allow or deny:
        acls = _acls(_grants(allow, deny, host), patterns, operation, producer, consumer, idempotent)
        filters = [exact(acl) for acl in acls]
    elif operation or producer or consumer or host:
        raise UsageError("give --allow or --deny with --operation, --host, --producer and --consumer")
    elif not patterns:
        raise UsageError("give --topic, --group, --cluster or --transactional-id")
    else:
        filters = [AclFilter(one.type, one.name, one.pattern_type) for one in patterns]
    with skep_client(cluster_of(bootstrap, properties)) as client:
        deleted = delete_acls(client, filters)
    _show(deleted, json, "There are no such ACLs.")


def check(
    who: Annotated[str, typer.Option("--as", metavar="TYPE:NAME", help="The principal, e.g. User:alice.")],
    operation: Annotated[str, typer.Option("--operation", metavar="NAME", help="read, write, describe ...")],
    topic: Topic = None,
    group: Group = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalId = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="From where.")] = "127.0.0.1",
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
) -> None:
    """Say whether a principal may do something, and which rule decides.

    Exits with 1 if it is denied.

    \b
    Examples:
      skep acls check --as User:alice --operation write --topic orders
    """
    patterns = _patterns(topic, group, cluster, transactional_id, PatternType.LITERAL)
    if len(patterns) != 1:
        raise UsageError("give one of --topic, --group, --cluster and --transactional-id")
    [pattern] = patterns
    found = operation_of(operation)
    if found is Operation.ALL:
        raise UsageError("--operation all is for ACLs; a request does one thing, e.g. read")
    arguments = {
        "principal": who,
        "host": host,
        "operation": found.name.lower(),
        "resource": pattern.type.name.lower(),
        "name": pattern.name,
    }
    with skep_client(cluster_of(bootstrap, properties)) as client:
        decision = check_access(client, arguments)
    if json:
        output.document({**arguments, **decision})
    else:
        verdict = "allowed" if decision["allowed"] else "denied"
        note = "" if decision["enforced"] else " (the authorizer only logs: it refuses nothing)"
        output.line(f"{verdict}: {decision['rule']}{note}")
    if not decision["allowed"]:
        raise typer.Exit(1)


def _pattern_type(is_prefixed: bool) -> PatternType:
    return PatternType.PREFIXED if is_prefixed else PatternType.LITERAL


def _patterns(
    topics: Iterable[str] | None,
    groups: Iterable[str] | None,
    cluster: bool,
    transactional_ids: Iterable[str] | None,
    pattern_type: PatternType,
) -> list[ResourcePattern]:
    named = (
        (ResourceType.TOPIC, topics),
        (ResourceType.GROUP, groups),
        (ResourceType.TRANSACTIONAL_ID, transactional_ids),
    )
    patterns = [ResourcePattern(kind, name, pattern_type) for kind, names in named for name in names or ()]
    return [*patterns, *([CLUSTER] if cluster else [])]


def _grants(allow: Sequence[str] | None, deny: Sequence[str] | None, host: Sequence[str] | None) -> list[Grant]:
    hosts = host or [ANY_HOST]
    given = ((allow, Permission.ALLOW), (deny, Permission.DENY))
    grants = [Grant(principals, hosts, permission) for principals, permission in given if principals]
    if not grants:
        raise UsageError("give --allow TYPE:NAME or --deny TYPE:NAME, e.g. --allow User:alice")
    for grant in grants:
        for principal in grant.principals:
            if not all(principal.partition(":")):
                raise UsageError(f"principal {principal!r}: expected TYPE:NAME, e.g. User:alice")
    return grants


def _acls(
    grants: Sequence[Grant],
    patterns: Sequence[ResourcePattern],
    operations: Sequence[str] | None,
    is_producer: bool,
    is_consumer: bool,
    is_idempotent: bool,
) -> list[Acl]:
    if not patterns:
        raise UsageError("give --topic, --group, --cluster or --transactional-id")
    if (is_producer or is_consumer) and operations:
        raise UsageError("--producer and --consumer say which operations; leave --operation out")
    kinds = {pattern.type for pattern in patterns}
    if (is_producer or is_consumer) and ResourceType.TOPIC not in kinds:
        raise UsageError("give --topic with --producer and --consumer")
    if is_consumer and ResourceType.GROUP not in kinds:
        raise UsageError("give --group with --consumer")
    acls: dict[Acl, None] = {}
    for pattern in patterns:
        wanted: list[Operation] = []
        if is_producer:
            wanted += producer_operations(pattern, is_idempotent=is_idempotent)
        if is_consumer:
            wanted += consumer_operations(pattern)
        if not (is_producer or is_consumer):
            wanted = [operation_of(one) for one in operations or ("all",)]
        for grant in grants:
            acls.update(dict.fromkeys(grant.on(pattern, wanted)))
    if not acls:
        raise CommandError("these options name no ACL")
    return list(acls)


def _show(acls: Sequence[Acl], json: bool, nothing: str) -> None:
    if json:
        output.document(
            [
                {
                    "resource_type": pattern.type.name.lower(),
                    "name": pattern.name,
                    "pattern_type": pattern.pattern_type.name.lower(),
                    "principal": rule.principal,
                    "host": rule.host,
                    "operation": rule.operation.name.lower(),
                    "permission": rule.permission.name.lower(),
                }
                for pattern, rule in acls
            ]
        )
        return
    if not acls:
        output.note(nothing)
        return
    rows = (
        (
            pattern.type.name.lower(),
            pattern.name,
            pattern.pattern_type.name.lower(),
            rule.principal,
            rule.host,
            rule.operation.name.lower(),
            rule.permission.name.lower(),
        )
        for pattern, rule in acls
    )
    output.table(("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"), rows)
