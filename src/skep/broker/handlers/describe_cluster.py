"""DescribeCluster (API 60), versions 0 to 2.

Behaviour
    Returns the cluster's id, its brokers and its controller.

Versions
    1: endpoint type, in the request and in the response (KIP-919).
    2: whether to list fenced brokers, and whether a broker is fenced (KIP-1073).

Refusals
    MISMATCHED_ENDPOINT_TYPE: endpoint type 2, controllers. UNSUPPORTED_ENDPOINT_TYPE: any other type than 1, brokers.

Left out
    Fenced brokers: a broker is registered and serves, or it is not listed.
"""

from typing import TYPE_CHECKING

from skep.base.errors import ErrorCode
from skep.broker import authorized_operations
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.topics.current_leaders import brokers_at, controller_id
from skep.wire.codec import Body

if TYPE_CHECKING:
    from skep.wire.entities.request_types import DescribeClusterRequest

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, request: "Request[DescribeClusterRequest]") -> Body:
    endpoint_type = getattr(request.body, "endpoint_type", BROKERS)
    if endpoint_type == CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return {**refuse(request, ErrorCode.mismatched_endpoint_type), "error_message": message}
    if endpoint_type != BROKERS:
        message = f"Unsupported endpoint type {endpoint_type}"
        return {**refuse(request, ErrorCode.unsupported_endpoint_type), "error_message": message}
    operations = authorized_operations.NOT_ASKED
    if request.body.include_cluster_authorized_operations:
        operations = authorized_operations.operations_on_cluster(request.access)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": BROKERS,
        "cluster_id": services.catalog.image.cluster_id,
        "controller_id": controller_id(services),
        "brokers": [
            {
                "broker_id": broker.id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_fenced": False,
            }
            for broker in brokers_at(services, request.listener_name).values()
        ],
        "cluster_authorized_operations": operations,
    }


def refuse(request: "Request[DescribeClusterRequest]", code: ErrorCode) -> Body:
    return {"error_code": code, "endpoint_type": BROKERS, "cluster_id": "", "controller_id": -1, "brokers": []}
