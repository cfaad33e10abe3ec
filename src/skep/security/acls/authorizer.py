"""The authorizer: decides by super users and ACLs who may do what.

In order: a super user may do everything; a DENY that matches forbids; an ALLOW that matches allows; if no ACL is about
the resource at all, ``allow.everyone.if.no.acl.found`` decides; everything else is forbidden. READ, WRITE, DELETE and
ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS, in ALLOW only.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from skep.base.errors import OptionError
from skep.metadata.cluster_image import ACLS, NO_ENTRIES, ClusterImage, Fields
from skep.security.acls.acl_index import AclIndex
from skep.security.operations import Operation, ResourceType
from skep.security.principal import Principal, parse_principal

SUPER_USER = "super.users"
NO_ACL_FOUND = "allow.everyone.if.no.acl.found"
NOTHING_ALLOWS = "no ACL allows it"


class Decision(NamedTuple):
    is_allowed: bool
    rule: str
    """The ACL that decided, or the option, as text for people."""


class Authorizer:
    """Decides. ``version`` changes when a decision may be another than before."""

    def __init__(
        self, super_users: Iterable[Principal] = (), *, allow_everyone: bool = False, only_logs: bool = False
    ) -> None:
        self.super_users = frozenset(map(str, super_users))
        self.allow_everyone = allow_everyone
        self.only_logs = only_logs
        self.version = 0
        self._index = AclIndex()
        self._entries: Mapping[str, Fields] = NO_ENTRIES
        self._is_index_old = False

    @property
    def index(self) -> AclIndex:
        """The ACLs. The index follows when it is needed: many changes in a row cost one update."""
        if self._is_index_old:
            self._index = self._index.updated(self._entries)
            self._is_index_old = False
        return self._index

    def follow(self, image: ClusterImage) -> None:
        """Takes over the ACLs of the image."""
        entries = image.entries_of(ACLS)
        if entries is not self._entries:
            self._entries, self._is_index_old = entries, True
            self.version += 1

    def decide(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> Decision:
        who = str(principal)
        if who in self.super_users:
            return Decision(True, SUPER_USER)
        found = self.index.find(who, host, operation, resource, name)
        if found.forbids is not None:
            return Decision(False, str(found.forbids))
        if found.allows is not None:
            return Decision(True, str(found.allows))
        if not found.concerns and self.allow_everyone:
            return Decision(True, NO_ACL_FOUND)
        return Decision(False, NOTHING_ALLOWS)

    def decide_somewhere(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType
    ) -> Decision:
        """Decides whether the operation is allowed on some resource of a type, e.g. WRITE on any topic (KIP-679)."""
        who = str(principal)
        if who in self.super_users:
            return Decision(True, SUPER_USER)
        found = self.index.allows_somewhere(who, host, operation, resource)
        if found is not None:
            return Decision(True, str(found))
        # What holds for a name of which no ACL is known holds for some resource. No topic has such a name.
        return self.decide(principal, host, operation, resource, "\0")


def parse_super_users(text: str) -> list[Principal]:
    """Parses ``User:alice;User:bob``. Names of certificates have commas, so principals are separated by semicolons.

    Raises OptionError.
    """
    try:
        return [parse_principal(one.strip()) for one in text.split(";") if one.strip()]
    except OptionError as error:
        raise OptionError(f"super.users: {error}") from None
