"""ACLs and the filters that find them, and how they are stored.

The metadata store has one entry for each resource pattern, with all rules of it. The name of the entry is the pattern
as text, ``topic:prefixed:orders.``; its field ``rules`` is a list of principal, host, operation and permission.

A pattern is LITERAL, where the name ``*`` stands for all names, or PREFIXED. Filters may also say ANY, or MATCH: all
patterns that concern a resource of this name.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.metadata.cluster_image import Fields
from skep.security.operations import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

ANY_NAME = "*"
"""The literal name that matches every resource of its type."""
ANY_HOST = "*"
MAX_TEXT = 1_000
"""The longest name, principal or host of an ACL, in characters."""

_RULES = "rules"


class ResourcePattern(NamedTuple):
    type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.type.name}:{self.pattern_type.name}:{self.name}"

    def concerns(self, name: str) -> bool:
        """Returns whether the rules of the pattern are for the resource of this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class Rule(NamedTuple):
    """Who, from where, may or may not do what."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return f"{self.permission.name} {self.operation.name} to {self.principal} from {self.host}"


class Acl(NamedTuple):
    pattern: ResourcePattern
    rule: Rule

    def __str__(self) -> str:
        return f"{self.rule} on {self.pattern}"


class AclFilter(NamedTuple):
    """Matches ACLs. None and ANY match everything."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return self.matches_pattern(acl.pattern) and self.matches_rule(acl.rule)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.type not in (ResourceType.ANY, pattern.type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        return pattern.concerns(self.name) if self.pattern_type is PatternType.MATCH else pattern.name == self.name

    def matches_rule(self, rule: Rule) -> bool:
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )


def invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, detail)


def check_acl(acl: Acl) -> None:
    """Raises INVALID_REQUEST for an ACL that cannot be stored."""
    pattern, rule = acl
    if pattern.type is ResourceType.ANY:
        raise invalid("the resource type ANY is for filters; an ACL needs one type")
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise invalid(f"the pattern type {pattern.pattern_type.name} is for filters; an ACL is LITERAL or PREFIXED")
    if rule.operation is Operation.ANY:
        raise invalid("the operation ANY is for filters; an ACL needs one operation, or ALL")
    if rule.permission is Permission.ANY:
        raise invalid("the permission ANY is for filters; an ACL is ALLOW or DENY")
    if not pattern.name:
        raise invalid("the name of the resource is empty")
    if pattern.type is ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        raise invalid(f"the only resource of type CLUSTER is {CLUSTER_NAME!r}, not {pattern.name[:MAX_TEXT]!r}")
    kind, colon, name = rule.principal.partition(":")
    if not (kind and colon and name):
        raise invalid(f"principal {rule.principal[:MAX_TEXT]!r}: expected TYPE:NAME, e.g. User:alice")
    for text in (pattern.name, rule.principal, rule.host):
        if len(text) > MAX_TEXT:
            raise invalid(f"{text[:50]!r}... has {len(text)} characters; an ACL has texts of at most {MAX_TEXT}")
    _check_host(rule.host)


def _check_host(host: str) -> None:
    if not host:
        raise invalid("the host is empty; * stands for every host")
    try:
        if "/" in host:
            ipaddress.ip_network(host, strict=False)
        elif ":" in host:
            ipaddress.IPv6Address(host)
    except ValueError as error:
        raise invalid(f"host {host!r}: {error}") from None


# Hosts. They are compared as text, so an address has one form only.


def host_of(address: str) -> str:
    """Returns the address of a client as ACLs name it: an IPv4 client of an IPv6 socket has its IPv4 address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)


def canonical_host(host: str) -> str:
    """Returns the host of a rule in the form of ``host_of``. One that is not valid stays as it is.

    No client has an address in ``::ffff:10.0.0.0/104``, because ``host_of`` makes it an IPv4 address: this is
    ``10.0.0.0/8``.
    """
    if "/" not in host:
        return host_of(host)
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        return host
    # A mapped network address has a prefix of at least 96 bits: a shorter one clears the last bit of the ffff.
    if isinstance(network, ipaddress.IPv6Network) and (first := network.network_address.ipv4_mapped) is not None:
        return f"{first}/{network.prefixlen - 96}"
    return str(network)


# How ACLs are stored.


def entry_name(pattern: ResourcePattern) -> str:
    return f"{pattern.type.name.lower()}:{pattern.pattern_type.name.lower()}:{pattern.name}"


def pattern_of(entry_name: str) -> ResourcePattern:
    kind, pattern_type, name = entry_name.split(":", 2)
    return ResourcePattern(ResourceType[kind.upper()], name, PatternType[pattern_type.upper()])


def fields_of(rules: Iterable[Rule]) -> dict[str, Any] | None:
    """Returns the fields of an entry. None, which removes the entry, if there are no rules."""
    stored = sorted([rule.principal, rule.host, rule.operation.name, rule.permission.name] for rule in rules)
    return {_RULES: stored} if stored else None


def rules_of(fields: Fields | None) -> Iterator[Rule]:
    for principal, host, operation, permission in () if fields is None else fields[_RULES]:
        # The host may have been stored before hosts were canonical.
        yield Rule(principal, canonical_host(host), Operation[operation], Permission[permission])
