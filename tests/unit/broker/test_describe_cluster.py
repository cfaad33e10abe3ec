"""DescribeCluster: the brokers, and which endpoints there are none of."""

import pytest

from skep.base.errors import ErrorCode
from skep.broker import authorized_operations
from skep.wire.apis import DESCRIBE_CLUSTER


@pytest.mark.parametrize("version", range(DESCRIBE_CLUSTER.oldest, DESCRIBE_CLUSTER.newest + 1))
def test_the_brokers_and_the_cluster_id_are_told(broker, version):
    response = broker.ask(DESCRIBE_CLUSTER, version)
    assert (response.error_code, response.error_message) == (ErrorCode.none, None)
    assert (response.cluster_id, response.controller_id) == (broker.image.cluster_id, 1)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (1, "skep.example", 9092, "shed")
    assert response.cluster_authorized_operations == authorized_operations.NOT_ASKED


def test_authorized_operations_are_told_when_asked_for(broker):
    response = broker.ask(DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    assert response.cluster_authorized_operations == authorized_operations.ON_CLUSTER


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (2, ErrorCode.mismatched_endpoint_type),
        (0, ErrorCode.unsupported_endpoint_type),
        (3, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_other_endpoints_than_brokers_are_refused(broker, version, endpoint_type, code):
    response = broker.ask(DESCRIBE_CLUSTER, version, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert response.error_message
    assert response.brokers == ()
