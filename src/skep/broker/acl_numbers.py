"""ACLs and filters as requests and responses have them: resource type, pattern type, operation, permission as numbers.

A number that this version does not know is refused, as in Kafka.
"""

import enum
from typing import Any, Protocol, TypeVar

from skep.base.errors import ErrorCode, KafkaError
from skep.broker.services import Services
from skep.security.acls.acl import AclFilter, Rule, canonical_host, invalid
from skep.security.acls.authorizer import Authorizer
from skep.security.operations import Operation, PatternType, Permission, ResourceType

E = TypeVar("E", bound=enum.IntEnum)


class FilterFields(Protocol):
    """A filter of DescribeAcls or DeleteAcls."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def known(numbers: type[E], number: int) -> E:
    """Returns the member of an enum. Raises INVALID_REQUEST."""
    try:
        return numbers(number)
    except ValueError:
        raise invalid(f"{number} is not a {numbers.__name__}") from None


def filter_of(fields: FilterFields) -> AclFilter:
    """Raises INVALID_REQUEST."""
    return AclFilter(
        known(ResourceType, fields.resource_type_filter),
        fields.resource_name_filter,
        known(PatternType, fields.pattern_type_filter),
        fields.principal_filter,
        None if fields.host_filter is None else canonical_host(fields.host_filter),
        known(Operation, fields.operation),
        known(Permission, fields.permission_type),
    )


def fields_of_rule(rule: Rule) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.value,
        "permission_type": rule.permission.value,
    }


def authorizer_of(services: Services) -> Authorizer:
    """Raises SECURITY_DISABLED."""
    authorizer = services.security.authorizer
    if authorizer is None:
        raise KafkaError(
            ErrorCode.security_disabled,
            "There is no authorizer: everybody may do everything. Set authorizer.class.name, e.g. with"
            " skep.authorizer.mode=log at first.",
        )
    authorizer.follow(services.catalog.image)
    return authorizer
