"""ListConfigResources: what can be asked of DescribeConfigs."""

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import LIST_CONFIG_RESOURCES
from tests.unit.broker.clusters import register

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture
def full(broker):
    register(broker, 2)
    broker.create("a")
    broker.create("b")
    catalog = broker.services.catalog
    broker.run(catalog.alter_group_config("g", lambda _: {"consumer.session.timeout.ms": "50000"}))
    return broker


def listed(broker, *types):
    response = broker.ask(LIST_CONFIG_RESOURCES, 1, resource_types=list(types))
    assert response.error_code is ErrorCode.none
    return {(one.resource_type, one.resource_name) for one in response.config_resources}


def test_topics_brokers_and_groups_with_options_are_listed_by_type(full):
    topics, brokers, groups = {(TOPIC, "a"), (TOPIC, "b")}, {(BROKER, "1"), (BROKER, "2")}, {(GROUP, "g")}
    assert listed(full, TOPIC) == topics
    assert listed(full, BROKER, GROUP, GROUP) == brokers | groups
    assert listed(full) == topics | brokers | groups


def test_there_are_no_loggers_and_no_client_metrics(full):
    assert listed(full, LOGGER, METRICS) == set()
    response = full.ask(LIST_CONFIG_RESOURCES, 0)
    assert (response.error_code, response.config_resources) == (ErrorCode.none, ())


def test_a_type_that_kafka_does_not_have_is_refused(full):
    assert full.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[3]).error_code is ErrorCode.unsupported_version
