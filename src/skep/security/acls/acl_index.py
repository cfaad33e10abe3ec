"""The ACLs of a cluster, indexed so that a decision does not look through all of them.

Three kinds of patterns concern a resource: the literal one of its name, the literal ``*``, and each prefix of its name.
All are found in dictionaries. For prefixes the lengths that occur are kept, and for each of them the beginning of the
name is looked up: with prefixes of three different lengths a decision makes five lookups, however many ACLs there are.
The rules of a pattern are divided by principal.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from skep.metadata.cluster_image import Fields
from skep.security.acls.acl import ANY_HOST, ANY_NAME, Acl, AclFilter, ResourcePattern, Rule, pattern_of, rules_of
from skep.security.operations import Operation, PatternType, Permission, ResourceType

ANY_USER = "User:*"
_DESCRIBE_IS_IMPLIED_BY = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
_DESCRIBE_CONFIGS_IS_IMPLIED_BY = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})


class PatternRules:
    """One resource pattern with its rules. Never changes."""

    def __init__(self, pattern: ResourcePattern, fields: Fields) -> None:
        self.pattern = pattern
        self.fields = fields
        self.count = 0
        self._by_principal: dict[str, list[Rule]] = {}
        for rule in rules_of(fields):
            self._by_principal.setdefault(rule.principal, []).append(rule)
            self.count += 1

    def rules(self) -> Iterator[Rule]:
        for rules in self._by_principal.values():
            yield from rules

    def rules_for(self, principal: str) -> Iterator[Rule]:
        """Returns the rules for a user, and those for all users."""
        yield from self._by_principal.get(principal, ())
        if principal.startswith("User:") and principal != ANY_USER:
            yield from self._by_principal.get(ANY_USER, ())


class Found(NamedTuple):
    """What the ACLs say about one operation: the rule that forbids it, or else one that allows it."""

    forbids: Acl | None = None
    allows: Acl | None = None
    concerns: bool = False
    """Whether any ACL is about the resource, for whomever it is."""


class AclIndex:
    """All ACLs. Does not change: ``updated`` returns another one, which shares the patterns that are the same."""

    def __init__(self) -> None:
        self.count = 0
        self._by_entry: dict[str, PatternRules] = {}
        self._literal: dict[tuple[ResourceType, str], PatternRules] = {}
        self._prefixed: dict[tuple[ResourceType, str], PatternRules] = {}
        self._lengths: dict[ResourceType, list[int]] = {}

    def updated(self, entries: Mapping[str, Fields]) -> "AclIndex":
        """Returns the index of other entries. Most of them are the same objects, and are only compared."""
        known = self._by_entry
        changed = {
            name: fields
            for name, fields in entries.items()
            if (one := known.get(name)) is None or one.fields is not fields
        }
        after = AclIndex()
        after._by_entry, after._literal, after._prefixed = known.copy(), self._literal.copy(), self._prefixed.copy()
        after.count = self.count
        for name in known.keys() - entries.keys():
            after._remove(name)
        for name, fields in changed.items():
            if name in after._by_entry:
                after._remove(name)
            after._add(name, PatternRules(pattern_of(name), fields))
        lengths: dict[ResourceType, set[int]] = {}
        for kind, prefix in after._prefixed:
            lengths.setdefault(kind, set()).add(len(prefix))
        after._lengths = {kind: sorted(some, reverse=True) for kind, some in lengths.items()}
        return after

    def _add(self, entry: str, one: PatternRules) -> None:
        self._by_entry[entry] = one
        self._of(one)[one.pattern.type, one.pattern.name] = one
        self.count += one.count

    def _remove(self, entry: str) -> None:
        one = self._by_entry.pop(entry)
        del self._of(one)[one.pattern.type, one.pattern.name]
        self.count -= one.count

    def _of(self, one: PatternRules) -> dict[tuple[ResourceType, str], PatternRules]:
        return self._prefixed if one.pattern.pattern_type is PatternType.PREFIXED else self._literal

    def acls(self, wanted: AclFilter | None = None) -> Iterator[Acl]:
        for one in self._by_entry.values():
            if wanted is None or wanted.matches_pattern(one.pattern):
                for rule in one.rules():
                    if wanted is None or wanted.matches_rule(rule):
                        yield Acl(one.pattern, rule)

    def concerning(self, kind: ResourceType, name: str) -> Iterator[PatternRules]:
        """Returns the patterns that match a resource, the most special one first."""
        if (literal := self._literal.get((kind, name))) is not None:
            yield literal
        for length in self._lengths.get(kind, ()):
            if length <= len(name) and (prefixed := self._prefixed.get((kind, name[:length]))) is not None:
                yield prefixed
        if name != ANY_NAME and (wildcard := self._literal.get((kind, ANY_NAME))) is not None:
            yield wildcard

    def find(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> Found:
        allows, concerns = None, False
        for one in self.concerning(kind, name):
            concerns = True
            for rule in one.rules_for(principal):
                if not is_from(rule, host) or not _is_about(rule, operation):
                    continue
                if rule.permission is Permission.DENY:
                    return Found(forbids=Acl(one.pattern, rule), concerns=True)
                if allows is None:
                    allows = Acl(one.pattern, rule)
        return Found(None, allows, concerns)

    def allows_somewhere(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> Acl | None:
        """Returns an ACL that allows the operation on some resource of a type, and that no other ACL overrules.

        As in Kafka (``authorizeByResourceType``), an ACL is overruled by a DENY with the same name, with a prefix of
        its name, or with the name ``*``.
        """
        allowing: list[Acl] = []
        denied: set[tuple[PatternType, str]] = set()
        for one in self._by_entry.values():
            if one.pattern.type is not kind:
                continue
            for rule in one.rules_for(principal):
                if is_from(rule, host) and rule.operation in (operation, Operation.ALL):
                    if rule.permission is Permission.DENY:
                        denied.add((one.pattern.pattern_type, one.pattern.name))
                    else:
                        allowing.append(Acl(one.pattern, rule))
        if (PatternType.LITERAL, ANY_NAME) in denied:
            return None
        return next((acl for acl in allowing if not _is_overruled(acl.pattern, denied)), None)


def _is_overruled(pattern: ResourcePattern, denied: set[tuple[PatternType, str]]) -> bool:
    if pattern.pattern_type is PatternType.LITERAL:
        if pattern.name == ANY_NAME:
            return False
        if (PatternType.LITERAL, pattern.name) in denied:
            return True
    return any((PatternType.PREFIXED, pattern.name[:length]) in denied for length in range(1, len(pattern.name) + 1))


def is_from(rule: Rule, host: str) -> bool:
    """Returns whether a rule is for clients at this address. Its host may be a range of addresses, as 10.0.0.0/8."""
    if rule.host in (ANY_HOST, host):
        return True
    if "/" not in rule.host:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule.host, strict=False)
    except ValueError:
        return False


def _is_about(rule: Rule, operation: Operation) -> bool:
    if rule.operation in (operation, Operation.ALL):
        return True
    if rule.permission is Permission.DENY:
        return False
    if operation is Operation.DESCRIBE:
        return rule.operation in _DESCRIBE_IS_IMPLIED_BY
    if operation is Operation.DESCRIBE_CONFIGS:
        return rule.operation in _DESCRIBE_CONFIGS_IS_IMPLIED_BY
    return False
