"""The rights of one connection, decided once for each operation and resource that it uses.

Produce and Fetch ask for each topic of each request. After the first time that is one dictionary lookup and one
comparison of integers: when ACLs change, the authorizer's version changes, and everything is decided again.
"""

import logging

from skep.security.acls.authorizer import Authorizer, Decision
from skep.security.audit.audit import NO_AUDIT, Actor, Allowance, Audit
from skep.security.operations import Operation, ResourceType
from skep.security.principal import Principal

logger = logging.getLogger(__name__)

MAX_DECISIONS = 10_000
"""Decisions kept for a connection. A client that names more resources than this begins anew."""

_Key = tuple[Operation, ResourceType, str | None]
"""The name is None for some resource of a type."""


class CachedAccess:
    """The rights of a principal at a host. Owned by one connection."""

    is_limited = True

    def __init__(
        self, authorizer: Authorizer, principal: Principal, host: str, listener: str = "", audit: Audit = NO_AUDIT
    ) -> None:
        self.principal = principal
        self.host = host
        self.listener = listener
        self._authorizer = authorizer
        self._audit = audit
        self._refusals = Allowance(audit.refusals_per_second)
        self._version = authorizer.version
        self._known: dict[_Key, bool] = {}
        self._silent: set[_Key] = set()
        """What is allowed and not recorded, for the shortest way through ``asked``."""

    @property
    def version(self) -> int:
        return self._authorizer.version

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return self.really_allows(operation, resource, name) or self._authorizer.only_logs

    def really_allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        if self._version != self._authorizer.version:
            self._forget()
        key = (operation, resource, name)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_DECISIONS:
                self._forget()
            known = self._known[key] = self._decide(operation, resource, name).is_allowed
        return known

    def really_allows_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        if self._version != self._authorizer.version:
            self._forget()
        key = (operation, resource, None)
        known = self._known.get(key)
        if known is None:
            decision = self._authorizer.decide_somewhere(self.principal, self.host, operation, resource)
            known = self._known[key] = decision.is_allowed
        return known

    def _forget(self) -> None:
        self._known.clear()
        self._silent.clear()
        self._version = self._authorizer.version

    def _decide(self, operation: Operation, resource: ResourceType, name: str) -> Decision:
        return self._authorizer.decide(self.principal, self.host, operation, resource, name)

    def asked(self, actor: Actor, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether a request may do this. The audit gets what it records of it."""
        if self._version == self._authorizer.version and (operation, resource, name) in self._silent:
            return True
        is_allowed = self.really_allows(operation, resource, name)
        is_recorded = self._audit.operations >> operation & 1
        if is_allowed and not is_recorded:
            self._silent.add((operation, resource, name))
            return True
        decision = self._decide(operation, resource, name)
        if decision.is_allowed:
            self._audit.decided(actor, operation, resource, name, "allowed", decision.rule)
            return True
        self._refused(actor, operation, resource, name, decision)
        return self._authorizer.only_logs

    def _refused(
        self, actor: Actor, operation: Operation, resource: ResourceType, name: str, decision: Decision
    ) -> None:
        said = "would be denied" if self._authorizer.only_logs else "denied"
        if self._authorizer.only_logs and not self._audit.is_on and self._refusals.take():
            logger.warning(
                "%s of %s would be refused %s on %s %r: %s",
                actor.api.name,
                self.principal,
                operation.name,
                resource.name,
                name,
                decision.rule,
            )
        self._audit.decided(actor, operation, resource, name, said, decision.rule, self._refusals)
