"""Configs of groups (KIP-848): described with the broker's as their defaults, changed within the broker's limits."""

import pytest

from skep.base.errors import ErrorCode
from skep.broker.config.config_entries import GROUP_RESOURCE, Source
from skep.broker.handlers.incremental_alter_configs import Operation
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SHARE_DEFAULTS = {
    "share.session.timeout.ms": "45000",
    "share.heartbeat.interval.ms": "5000",
    "share.assignment.interval.ms": "1000",
    "share.assignor.offload.enable": "true",
    "share.record.lock.duration.ms": "30000",
    "share.delivery.count.limit": "5",
    "share.partition.max.record.locks": "2000",
    "share.auto.offset.reset": "latest",
    "share.isolation.level": "read_uncommitted",
    "share.renew.acknowledge.enable": "true",
    "errors.deadletterqueue.topic.name": "",
    "errors.deadletterqueue.copy.record.enable": "false",
}


def describe(broker, name):
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": name, "configuration_keys": None}
    (result,) = broker.ask(DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True).results
    assert result.error_code is ErrorCode.none
    return {config.name: config for config in result.configs}


def alter(broker, name, *configs, operation=Operation.SET, validate_only=False):
    fields = [{"config_operation": operation, "name": option, "value": value} for option, value in configs]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": name, "configs": fields}
    (response,) = broker.ask(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=validate_only).responses
    return response.error_code


def test_a_group_that_nobody_has_heard_of_has_the_configs_of_the_broker(broker):
    broker.run(
        broker.services.catalog.alter_broker_config(
            CLUSTER_DEFAULT, lambda _: {"group.consumer.session.timeout.ms": "50000"}
        )
    )
    configs = describe(broker, "g")
    # Those beyond Kafka are many, and all off.
    beyond = {name: configs.pop(name) for name in list(configs) if name.startswith("skep.")}
    assert all(config.config_source == Source.DEFAULT for config in beyond.values())
    assert {name: (config.value, config.config_source) for name, config in configs.items()} == {
        SESSION: ("50000", Source.DEFAULT_BROKER),
        HEARTBEAT: ("5000", Source.DEFAULT),
        **{name: (value, Source.DEFAULT) for name, value in SHARE_DEFAULTS.items()},
    }


@pytest.mark.parametrize("name", ["g", "a/b", "..", "%", "grüppe"])
def test_what_is_set_for_a_group_is_described_and_outlives_the_image(broker, name):
    assert alter(broker, name, (SESSION, "60000")) is ErrorCode.none
    config = describe(broker, name)[SESSION]
    assert (config.value, config.config_source) == ("60000", Source.GROUP)
    assert [synonym.name for synonym in config.synonyms] == [SESSION, "group.consumer.session.timeout.ms"]
    assert describe(broker, "another")[SESSION].value == "45000"
    assert broker.image.group_configs == {name: {SESSION: "60000"}}
    assert alter(broker, name, (SESSION, None), operation=Operation.DELETE) is ErrorCode.none
    assert broker.image.group_configs == {}


@pytest.mark.parametrize(
    "config",
    [
        (SESSION, "44999"),
        (SESSION, "60001"),
        (HEARTBEAT, "4999"),
        (HEARTBEAT, "15001"),
        (SESSION, "x"),
        ("no.such", "1"),
        ("share.session.timeout.ms", "44999"),
        ("share.heartbeat.interval.ms", "15001"),
        ("share.assignment.interval.ms", "15001"),
        ("share.record.lock.duration.ms", "14999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "1"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "99"),
        ("share.partition.max.record.locks", "4001"),
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "by_duration:"),
        ("share.isolation.level", "serializable"),
        ("errors.deadletterqueue.topic.name", "__dead"),
        ("errors.deadletterqueue.topic.name", "orders"),
        ("errors.deadletterqueue.topic.name", "dlq.or/ders"),
        ("errors.deadletterqueue.copy.record.enable", "perhaps"),
        ("skep.share.breaker.percent", "101"),
        ("skep.share.breaker.window.ms", "0"),
        ("skep.share.breaker.pause.ms", "-1"),
    ],
)
def test_what_is_outside_the_limits_of_the_broker_is_refused(broker, config):
    assert alter(broker, "g", config) is ErrorCode.invalid_config
    assert alter(broker, "g", config, validate_only=True) is ErrorCode.invalid_config
    assert broker.image.group_configs == {}


def test_a_session_must_be_longer_than_the_time_between_heartbeats(start_broker):
    broker = start_broker({"group.consumer.min.session.timeout.ms": "1"})
    assert alter(broker, "g", (SESSION, "5000")) is ErrorCode.invalid_config
    assert alter(broker, "g", (SESSION, "5001")) is ErrorCode.none
    assert alter(broker, "g", (HEARTBEAT, "6000")) is ErrorCode.invalid_config


def test_a_group_without_a_name_has_no_configs(broker):
    assert alter(broker, "", (SESSION, "50000")) is ErrorCode.invalid_request


def test_alter_configs_replaces_all_that_is_set_for_a_group(broker):
    alter(broker, "g", (SESSION, "60000"))
    resource = {
        "resource_type": GROUP_RESOURCE,
        "resource_name": "g",
        "configs": [{"name": HEARTBEAT, "value": "6000"}],
    }
    broker.ask(ALTER_CONFIGS, resources=[resource], validate_only=False)
    assert broker.image.group_configs == {"g": {HEARTBEAT: "6000"}}


@pytest.mark.parametrize(
    "config",
    [
        ("share.delivery.count.limit", "10"),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"),
        ("share.isolation.level", "read_committed"),
        ("share.renew.acknowledge.enable", "false"),
        ("errors.deadletterqueue.topic.name", "dlq.orders"),
    ],
)
def test_what_is_set_for_a_share_group_is_described(broker, config):
    name, value = config
    assert alter(broker, "g", config) is ErrorCode.none
    assert (described := describe(broker, "g")[name]).value == value
    assert described.config_source == Source.GROUP
    assert described.synonyms[-1].source == Source.DEFAULT


def test_the_prefix_of_dead_letter_topics_is_an_option(start_broker):
    broker = start_broker({"errors.deadletterqueue.topic.name.prefix": ""})
    assert alter(broker, "g", ("errors.deadletterqueue.topic.name", "orders")) is ErrorCode.none
