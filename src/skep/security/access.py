"""What one client may do. Each connection has an ``Access``, and handlers ask it.

Without an authorizer everybody may do everything, and connections share FULL_ACCESS.
"""

from typing import NamedTuple, Protocol

from skep.base.errors import ErrorCode, KafkaError
from skep.security.audit.audit import Actor, HasName
from skep.security.operations import Operation, ResourceType
from skep.security.principal import ANONYMOUS, Principal

REFUSED = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
}


class Access(Protocol):
    """The rights of one principal at one host. They change when ACLs change, also while a request waits."""

    is_limited: bool
    """False if it allows everything. So whoever is not limited pays for nothing but this attribute."""
    listener: str

    @property
    def principal(self) -> Principal: ...

    @property
    def version(self) -> int:
        """Changes when an operation may be allowed that was not before, or the other way round."""
        ...

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool: ...

    def really_allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """``allows`` as if refusals were not only logged (``skep.authorizer.mode=log``).

        For a right that is enough but not needed. With ``allows`` every client would seem to have it in this mode, and
        the right that is missing would never be asked for, and not be logged.
        """
        ...

    def really_allows_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        """``really_allows`` for some resource of a type (KIP-679)."""
        ...

    def asked(self, actor: Actor, operation: Operation, resource: ResourceType, name: str) -> bool:
        """``allows`` for a request that asks for this resource: the audit hears of it."""
        ...


class Who(NamedTuple):
    """The sender of a request, for one that waits and does not keep its body. An ``Actor``."""

    api: HasName
    client_id: str | None
    client_host: str
    access: Access


class FullAccess:
    """Allows everything: there is no authorizer, or the caller is this broker itself."""

    is_limited = False
    version = 0

    def __init__(self, principal: Principal = ANONYMOUS, listener: str = "") -> None:
        self.principal = principal
        self.listener = listener

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True

    def really_allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True

    def really_allows_somewhere(self, operation: Operation, resource: ResourceType) -> bool:
        return True

    def asked(self, actor: Actor, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True


FULL_ACCESS = FullAccess()


def refusal(resource: ResourceType) -> KafkaError:
    """Returns the error for a resource of this type that a client may not use. It does not say why."""
    return KafkaError(REFUSED[resource], f"not authorized to access this {resource.name.lower().replace('_', ' ')}")


def check(access: Access, operation: Operation, resource: ResourceType, name: str) -> None:
    """Raises the KafkaError for a resource that the client may not use in this way."""
    if not access.allows(operation, resource, name):
        raise refusal(resource)
