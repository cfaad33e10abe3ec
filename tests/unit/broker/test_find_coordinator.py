"""FindCoordinator: this broker, in both shapes of the response."""

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import FIND_COORDINATOR


@pytest.mark.parametrize("version", range(4))
def test_one_key_is_answered_with_this_broker(broker, version):
    response = broker.ask(FIND_COORDINATOR, version, key="g")
    node = broker.services.node
    assert (response.error_code, response.node_id, response.host, response.port) == (0, node.id, node.host, node.port)


@pytest.mark.parametrize("version", range(4, FIND_COORDINATOR.newest + 1))
def test_several_keys_are_answered_one_by_one(broker, version):
    response = broker.ask(FIND_COORDINATOR, version, key_type=1, coordinator_keys=["a", "b"])
    assert [(c.key, c.error_code, c.node_id) for c in response.coordinators] == [
        ("a", 0, broker.services.node.id),
        ("b", 0, broker.services.node.id),
    ]


@pytest.mark.parametrize(("version", "key_type"), [(5, 2), (6, 3), (6, -1)])
def test_a_key_type_that_the_version_does_not_have_is_refused(broker, version, key_type):
    response = broker.ask(FIND_COORDINATOR, version, key_type=key_type, coordinator_keys=["a"])
    assert [c.error_code for c in response.coordinators] == [ErrorCode.invalid_request]


def test_a_group_id_that_is_refused_creates_no_topic(broker):
    response = broker.ask(FIND_COORDINATOR, 3, key="g" * 2000)
    assert response.error_code is ErrorCode.invalid_group_id
    assert not broker.services.catalog.image.topics
