"""ListConfigResources (API 74), versions 0 and 1.

Behaviour
    Returns the resources of the given types that have options: all topics (type 2), the live brokers (4), the groups
    that were given options (32). No type means all types.

Versions
    0, which Kafka calls ListClientMetricsResources, has no types: it lists resources of client metrics (16). There are
    none.
    1: the types of resources (KIP-1142).

Refusals
    UNSUPPORTED_VERSION for a type that Kafka does not have.

Left out
    Loggers of brokers (8) and client metrics (16): there are none, so none are listed.
"""

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.broker.config.config_entries import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.topic_creation import alive_brokers
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import ListConfigResourcesRequest

HAS_TYPES = 1
BROKER_LOGGERS, CLIENT_METRICS = 8, 16
_ALL = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGERS, CLIENT_METRICS, GROUP_RESOURCE)


def handle(services: Services, request: "Request[ListConfigResourcesRequest]") -> Body | Awaitable[Body]:
    types = frozenset(request.body.resource_types or _ALL) if request.version >= HAS_TYPES else {CLIENT_METRICS}
    if unknown := sorted(types.difference(_ALL)):
        raise KafkaError(ErrorCode.unsupported_version, f"there are no resources of type {unknown[0]}")
    return services.slicer.run(_listed(services, types))


def _listed(services: Services, types: Iterable[int]) -> Work[Body]:
    image = services.catalog.image
    names: dict[int, Iterable[Any]] = {
        TOPIC_RESOURCE: image.topics,
        BROKER_RESOURCE: alive_brokers(services),
        GROUP_RESOURCE: image.group_configs,
    }
    resources = []
    for resource_type in sorted(types):
        for name in list(names.get(resource_type, ())):
            resources.append({"resource_name": str(name), "resource_type": resource_type})
            yield
    return {"error_code": ErrorCode.none, "config_resources": resources}


def refuse(request: "Request[ListConfigResourcesRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "config_resources": []}
