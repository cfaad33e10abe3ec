"""ACLs by request: DescribeAcls, CreateAcls and DeleteAcls, and sets of ACLs that producers and consumers need."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.cli.failures import CommandError
from skep.cli.skep_client import error_text
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_node
from skep.client.retry import call_with_retries
from skep.security.acls.acl import Acl, AclFilter, ResourcePattern, Rule
from skep.security.operations import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from skep.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, Api

OPERATIONS = {one.name.lower().replace("_", ""): one for one in Operation if one is not Operation.ANY}
"""By name without underscores: Kafka's tool says ``DescribeConfigs``, its documents say ``DESCRIBE_CONFIGS``."""

PRODUCER = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
CONSUMER = (Operation.READ, Operation.DESCRIBE)


class Grant(NamedTuple):
    """Rules for several principals and hosts, of one permission."""

    principals: Sequence[str]
    hosts: Sequence[str]
    permission: Permission

    def on(self, pattern: ResourcePattern, operations: Iterable[Operation]) -> Iterator[Acl]:
        for operation in operations:
            for principal in self.principals:
                for host in self.hosts:
                    yield Acl(pattern, Rule(principal, host, operation, self.permission))


def operation_of(text: str) -> Operation:
    """Raises CommandError."""
    try:
        return OPERATIONS[text.lower().replace("_", "").replace("-", "")]
    except KeyError:
        known = ", ".join(one.name.lower() for one in OPERATIONS.values())
        raise CommandError(f"there is no operation {text!r}; there are {known}") from None


CLUSTER = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)


def producer_operations(pattern: ResourcePattern, *, is_idempotent: bool) -> Sequence[Operation]:
    """Returns what a producer does with a resource."""
    if pattern.type is ResourceType.TOPIC:
        return PRODUCER
    if pattern.type is ResourceType.TRANSACTIONAL_ID:
        return (Operation.WRITE, Operation.DESCRIBE)
    return (Operation.IDEMPOTENT_WRITE,) if pattern.type is ResourceType.CLUSTER and is_idempotent else ()


def consumer_operations(pattern: ResourcePattern) -> Sequence[Operation]:
    if pattern.type is ResourceType.TOPIC:
        return CONSUMER
    return (Operation.READ,) if pattern.type is ResourceType.GROUP else ()


# Requests.


def describe_acls(client: ClusterClient, wanted: AclFilter) -> list[Acl]:
    """Returns the ACLs that match, sorted."""
    response = _ask(client, DESCRIBE_ACLS, _filter(wanted))
    if response.error_code is not ErrorCode.none:
        raise CommandError(f"cannot list ACLs: {response.error_message or error_text(response.error_code)}")
    return sorted(
        _acl(resource, acl.principal, acl.host, acl.operation, acl.permission_type)
        for resource in response.resources
        for acl in resource.acls
    )


def create_acls(client: ClusterClient, acls: Sequence[Acl]) -> None:
    """Raises CommandError with the first refusal."""
    creations = [
        {
            "resource_type": acl.pattern.type.value,
            "resource_name": acl.pattern.name,
            "resource_pattern_type": acl.pattern.pattern_type.value,
            "principal": acl.rule.principal,
            "host": acl.rule.host,
            "operation": acl.rule.operation.value,
            "permission_type": acl.rule.permission.value,
        }
        for acl in acls
    ]
    for acl, result in zip(acls, _ask(client, CREATE_ACLS, {"creations": creations}).results, strict=True):
        if result.error_code is not ErrorCode.none:
            raise CommandError(f"cannot add {acl}: {result.error_message or error_text(result.error_code)}")


def delete_acls(client: ClusterClient, filters: Iterable[AclFilter]) -> list[Acl]:
    """Returns the ACLs that were deleted, sorted. Raises CommandError with the first refusal."""
    deleted = set()
    for result in _ask(client, DELETE_ACLS, {"filters": [_filter(one) for one in filters]}).filter_results:
        for failed in (result, *result.matching_acls):
            if failed.error_code is not ErrorCode.none:
                raise CommandError(f"cannot remove ACLs: {failed.error_message or error_text(failed.error_code)}")
        deleted |= {
            _acl(one, one.principal, one.host, one.operation, one.permission_type) for one in result.matching_acls
        }
    return sorted(deleted)


def check_access(client: ClusterClient, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Asks a broker what its authorizer decides: ``allowed``, ``rule``, ``enforced``."""
    result: dict[str, Any] = call_with_retries(
        client, "check", lambda: command_to_node(client, client.nodes()[0], "check_access", arguments)
    )
    return result


def exact(acl: Acl) -> AclFilter:
    """Returns the filter that matches this ACL alone."""
    pattern, rule = acl
    return AclFilter(pattern.type, pattern.name, pattern.pattern_type, *rule)


def _filter(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.type.value,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type.value,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation.value,
        "permission_type": wanted.permission.value,
    }


def _acl(resource: Any, principal: str, host: str, operation: int, permission: int) -> Acl:
    return Acl(
        ResourcePattern(
            ResourceType(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type)
        ),
        Rule(principal, host, Operation(operation), Permission(permission)),
    )


def _ask(client: ClusterClient, api: Api, body: Mapping[str, Any]) -> Any:
    return call_with_retries(client, "ACLs", lambda: client.ask_node(client.nodes()[0], api, body))
