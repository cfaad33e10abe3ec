"""``kafka-acls`` with Kafka's flags: list, add and remove ACLs.

Left out
    Delegation tokens and user principals as resources, which Skep has no use for. The controller is reached through any
    broker, so there is no ``--bootstrap-controller``.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from skep.cli import output
from skep.cli.acls.acl_admin import (
    CLUSTER,
    Grant,
    consumer_operations,
    create_acls,
    delete_acls,
    describe_acls,
    exact,
    operation_of,
    producer_operations,
)
from skep.cli.failures import UsageError, run
from skep.cli.kafka.kafka_flags import KafkaFlags, cluster_from
from skep.cli.skep_client import skep_client
from skep.security.acls.acl import ANY_HOST, Acl, AclFilter, ResourcePattern
from skep.security.operations import Operation, PatternType, Permission, ResourceType

EXAMPLES = """\
  kafka-acls --bootstrap-server localhost:9092 --add --allow-principal User:alice --producer --topic orders
  kafka-acls --bootstrap-server localhost:9092 --add --allow-principal User:bob --consumer --topic orders --group shop
  kafka-acls --bootstrap-server localhost:9092 --add --deny-principal User:eve --operation All --topic pay \\
      --resource-pattern-type prefixed
  kafka-acls --bootstrap-server localhost:9092 --list --topic orders
"""
PATTERN_TYPES = {one.name.lower(): one for one in PatternType}
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}


def main() -> None:
    sys.exit(run("kafka-acls", lambda: execute(None)))


def _parser() -> KafkaFlags:
    parser = KafkaFlags("kafka-acls", "List, add and remove ACLs.", EXAMPLES)
    parser.add_argument("--add", action="store_true", help="add ACLs")
    parser.add_argument("--remove", action="store_true", help="remove ACLs")
    parser.add_argument("--list", action="store_true", help="list ACLs, of the given resources or all")
    parser.add_argument("--topic", action="append", metavar="NAME", help="a topic; * stands for all")
    parser.add_argument("--group", action="append", metavar="ID", help="a group; * stands for all")
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")
    parser.add_argument(
        "--transactional-id", action="append", metavar="ID", help="a transactional id; * stands for all"
    )
    parser.add_argument(
        "--resource-pattern-type",
        default="literal",
        metavar="TYPE",
        help="literal or prefixed; with --list and --remove also any and match",
    )
    parser.add_argument("--allow-principal", action="append", metavar="TYPE:NAME", help="who may; User:* is everybody")
    parser.add_argument("--deny-principal", action="append", metavar="TYPE:NAME", help="who may not")
    parser.add_argument("--allow-host", action="append", metavar="ADDRESS", help="from where they may; default *")
    parser.add_argument("--deny-host", action="append", metavar="ADDRESS", help="from where they may not; default *")
    parser.add_argument("--principal", action="append", metavar="TYPE:NAME", help="with --list: only of this principal")
    parser.add_argument("--operation", action="append", metavar="NAME", help="Read, Write, Describe ...; default All")
    parser.add_argument("--producer", action="store_true", help="what a producer needs: WRITE, DESCRIBE, CREATE")
    parser.add_argument(
        "--consumer", action="store_true", help="what a consumer needs: READ, DESCRIBE, READ on the group"
    )
    parser.add_argument("--idempotent", action="store_true", help="with --producer: IDEMPOTENT_WRITE on the cluster")
    parser.add_argument("--force", action="store_true", help="do not ask")
    return parser


def execute(arguments: list[str] | None) -> None:
    flags = _parser().parse(arguments)
    if flags.add + flags.remove + flags.list != 1:
        raise UsageError("Command must include exactly one action: --list, --add, --remove.")
    _check(flags)
    patterns = _patterns(flags)
    with skep_client(cluster_from(flags)) as client:
        if flags.list:
            _show(_listed(describe_acls(client, one) for one in _filters(flags, patterns)))
            return
        if flags.add:
            acls = _acls(flags, patterns)
            _print_changes("Adding ACLs for", acls)
            create_acls(client, acls)
        else:
            acls = _acls(flags, patterns) if flags.allow_principal or flags.deny_principal else []
            filters = [exact(acl) for acl in acls] or _filters(flags, patterns)
            if not flags.force:
                shown = "\n".join(str(acl) for acl in acls) or "\n".join(map(_resource, patterns))
                output.confirm(f"Are you sure you want to remove these ACLs?\n{shown}\n")
            delete_acls(client, filters)
        found = _listed(describe_acls(client, AclFilter(one.type, one.name, one.pattern_type)) for one in patterns)
    _show(found)


def _check(flags: argparse.Namespace) -> None:
    if flags.resource_pattern_type.lower() not in PATTERN_TYPES:
        raise UsageError(f"Unknown resource-pattern-type {flags.resource_pattern_type}")
    if flags.add and flags.resource_pattern_type.lower() in ("any", "match"):
        raise UsageError("A '--resource-pattern-type' value of 'any' or 'match' is not valid when adding acls.")
    if flags.list and (flags.producer or flags.consumer or flags.allow_principal or flags.deny_principal):
        raise UsageError(
            "Option --list cannot be used with --producer, --consumer, --allow-principal, --deny-principal"
        )
    if (flags.producer or flags.consumer) and (flags.operation or flags.deny_principal or flags.deny_host):
        raise UsageError(
            "Option --producer or --consumer cannot be specified together with --operation, --deny-principal,"
            " --deny-host"
        )
    if flags.principal and not flags.list:
        raise UsageError("The --principal option is only available if --list is set")
    if flags.producer and not flags.topic:
        raise UsageError("With --producer you must specify a --topic")
    if flags.idempotent and not flags.producer:
        raise UsageError("The --idempotent option is only available if --producer is set")
    if flags.consumer and not (flags.topic and flags.group):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option"
            " should be specified."
        )


def _patterns(flags: argparse.Namespace) -> list[ResourcePattern]:
    """Returns the resources of the flags. Raises UsageError if there are none and they are needed."""
    pattern_type = PATTERN_TYPES[flags.resource_pattern_type.lower()]
    patterns = [
        ResourcePattern(kind, name.strip(), pattern_type)
        for flag, kind in RESOURCES.items()
        for name in getattr(flags, flag) or ()
    ]
    if flags.cluster or flags.idempotent:
        patterns.append(CLUSTER)
    if not patterns and not flags.list:
        raise UsageError("You must provide at least one resource: --topic <topic> or --cluster or --group <group>")
    return patterns


def _filters(flags: argparse.Namespace, patterns: Sequence[ResourcePattern]) -> list[AclFilter]:
    named = [AclFilter(one.type, one.name, one.pattern_type) for one in patterns]
    if not named:
        named = [AclFilter()]
    return [one._replace(principal=principal) for one in named for principal in flags.principal or (None,)]


def _acls(flags: argparse.Namespace, patterns: Sequence[ResourcePattern]) -> list[Acl]:
    grants = []
    if flags.allow_principal:
        grants.append(Grant(flags.allow_principal, flags.allow_host or [ANY_HOST], Permission.ALLOW))
    if flags.deny_principal:
        grants.append(Grant(flags.deny_principal, flags.deny_host or [ANY_HOST], Permission.DENY))
    if not grants:
        raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    acls: dict[Acl, None] = {}
    for pattern in patterns:
        operations: list[Operation] = []
        if flags.producer:
            operations += producer_operations(pattern, is_idempotent=flags.idempotent)
        if flags.consumer:
            operations += consumer_operations(pattern)
        if not (flags.producer or flags.consumer):
            operations = [operation_of(one) for one in flags.operation or ("all",)]
        for grant in grants:
            acls.update(dict.fromkeys(grant.on(pattern, operations)))
    return list(acls)


def _listed(found: Iterable[list[Acl]]) -> list[Acl]:
    return sorted({acl for some in found for acl in some})


def _resource(pattern: ResourcePattern) -> str:
    return (
        f"ResourcePattern(resourceType={pattern.type.name}, name={pattern.name},"
        f" patternType={pattern.pattern_type.name})"
    )


def _show(acls: Sequence[Acl]) -> None:
    _print_changes("Current ACLs for", acls)


def _print_changes(what: str, acls: Sequence[Acl]) -> None:
    """Prints ACLs as Kafka's tool does, by resource."""
    for pattern, some in groupby(sorted(acls), key=lambda acl: acl.pattern):
        output.line(f"{what} resource `{_resource(pattern)}`: ")
        for _, rule in some:
            output.line(
                f" \t(principal={rule.principal}, host={rule.host}, operation={rule.operation.name},"
                f" permissionType={rule.permission.name})"
            )
        output.line()
