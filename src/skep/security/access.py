"""What one client may do. Each connection has an ``Access``, and handlers ask it.

Without an authorizer everybody may do everything, and connections share FULL_ACCESS.
"""

from typing import Protocol

from skep.base.errors import ErrorCode, KafkaError
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

    @property
    def principal(self) -> Principal: ...

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool: ...


class FullAccess:
    """Allows everything: there is no authorizer, or the caller is this broker itself."""

    def __init__(self, principal: Principal = ANONYMOUS) -> None:
        self.principal = principal

    def allows(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True


FULL_ACCESS = FullAccess()


def refusal(resource: ResourceType) -> KafkaError:
    """Returns the error for a resource of this type that a client may not use. It does not say why."""
    return KafkaError(REFUSED[resource], f"not authorized to access this {resource.name.lower().replace('_', ' ')}")


def check(access: Access, operation: Operation, resource: ResourceType, name: str) -> None:
    """Raises the KafkaError for a resource that the client may not use in this way."""
    if not access.allows(operation, resource, name):
        raise refusal(resource)
