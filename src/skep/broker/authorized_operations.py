"""The authorised operations of a client, as the bit sets in Metadata and Describe responses (KIP-430).

A client without limits may do everything that the resource supports.
"""

from skep.security.access import Access
from skep.security.operations import CLUSTER_NAME, Operation, ResourceType

NOT_ASKED = -(1 << 31)

_OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
}


def _bits(resource: ResourceType) -> int:
    return sum(1 << operation for operation in _OPERATIONS[resource])


ON_TOPIC, ON_CLUSTER, ON_GROUP = map(_bits, (ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.GROUP))
"""Everything that a type of resource supports."""
_ALL = {ResourceType.TOPIC: ON_TOPIC, ResourceType.CLUSTER: ON_CLUSTER, ResourceType.GROUP: ON_GROUP}


def operations_on(access: Access, resource: ResourceType, name: str) -> int:
    if not access.is_limited:
        return _ALL[resource]
    operations = _OPERATIONS[resource]
    return sum(1 << operation for operation in operations if access.allows(operation, resource, name))


def operations_on_cluster(access: Access) -> int:
    """Returns 0, as Kafka does, for a client that may not describe the cluster."""
    if not access.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_on(access, ResourceType.CLUSTER, CLUSTER_NAME)
