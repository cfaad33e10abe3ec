"""DescribeConfigs: every option with its value and where it comes from."""

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.option import OptionType
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode
from skep.broker.config.config_entries import BROKER_OPTIONS, BROKER_RESOURCE, TOPIC_OPTIONS, TOPIC_RESOURCE, Source
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.metadata.model import BrokerRecord
from skep.wire.apis import DESCRIBE_CONFIGS

EVERY_VERSION = range(DESCRIBE_CONFIGS.oldest, DESCRIBE_CONFIGS.newest + 1)


def resource(kind, name, keys=None):
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def describe(broker, kind, name, version=None, keys=None, **asked):
    (result,) = broker.ask(DESCRIBE_CONFIGS, version, resources=[resource(kind, name, keys)], **asked).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    return {config.name: config for config in result.configs}


def set_for(broker, owner, **texts):
    overrides = {name.replace("_", "."): text for name, text in texts.items()}
    broker.run(broker.services.catalog.alter_broker_config(owner, lambda _: overrides))


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_topic_has_every_option_with_its_default_and_source(broker, version):
    broker.create("a", configs={"retention.ms": "5000"})
    configs = describe(broker, TOPIC_RESOURCE, "a", version)
    assert set(configs) == set(TOPIC_OPTIONS)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", Source.TOPIC)
    defaults = TopicConfig()
    for name, option in TOPIC_OPTIONS.items():
        if name != "retention.ms":
            assert configs[name].value == option.show(option.value_in(defaults))
            assert configs[name].config_source == Source.DEFAULT
            assert configs[name].synonyms == ()
        assert not configs[name].read_only
        assert not configs[name].is_sensitive
    if version >= 3:
        assert configs["retention.ms"].config_type == OptionType.LONG.value
        assert configs["cleanup.policy"].config_type == OptionType.LIST.value


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_broker_has_its_own_options_and_the_defaults_of_topics(start_broker, version):
    broker = start_broker({"num.partitions": "3", "log.retention.ms": "7000"})
    configs = describe(broker, BROKER_RESOURCE, "1", version)
    assert set(configs) == set(BROKER_OPTIONS)
    assert len(configs) > len(TOPIC_OPTIONS) + 20
    told = {name: (config.value, config.config_source) for name, config in configs.items()}
    assert told["num.partitions"] == ("3", Source.STATIC_BROKER)
    assert told["log.retention.ms"] == ("7000", Source.STATIC_BROKER)
    assert told["max.connections"] == (str(BrokerConfig().max_connections), Source.DEFAULT)
    assert configs["listeners"].read_only
    assert not configs["num.partitions"].read_only


def test_advertised_listeners_is_the_address_that_clients_are_told(broker):
    configs = describe(broker, BROKER_RESOURCE, "1", keys=["advertised.listeners"])
    assert configs["advertised.listeners"].value == "skep.example:9092"
    broker.services.node = BrokerRecord(broker.services.node.id, "2001:db8::1", 9092)
    configs = describe(broker, BROKER_RESOURCE, "1", keys=["advertised.listeners"])
    assert configs["advertised.listeners"].value == "[2001:db8::1]:9092"


@pytest.mark.parametrize(
    ("static", "source"),
    [
        ({}, Source.DEFAULT),
        ({"listeners": "0.0.0.0:9092"}, Source.STATIC_BROKER),
        ({"advertised.listeners": "skep.example:9092"}, Source.STATIC_BROKER),
    ],
)
def test_advertised_listeners_has_the_source_of_what_it_follows(start_broker, static, source):
    configs = describe(start_broker(static), BROKER_RESOURCE, "1", keys=["advertised.listeners"])
    assert configs["advertised.listeners"].config_source == source


def test_only_the_options_named_are_described_and_none_named_means_all(broker):
    broker.create("a")
    keys = ["segment.bytes", "no.such.option", "retention.ms"]
    assert set(describe(broker, TOPIC_RESOURCE, "a", keys=keys)) == {"segment.bytes", "retention.ms"}
    assert set(describe(broker, TOPIC_RESOURCE, "a", keys=[])) == set(TOPIC_OPTIONS)


def test_the_strongest_source_holds_and_the_synonyms_are_all_that_were_found(start_broker):
    broker = start_broker({"log.retention.hours": "2"})
    node = broker.services.node.id

    def told(kind, name, option):
        config = describe(broker, kind, name, keys=[option], include_synonyms=True)[option]
        assert config.config_source == config.synonyms[0].source
        return config.value, [(s.name, s.value, s.source) for s in config.synonyms]

    chain = [
        ("log.retention.hours", "2", Source.STATIC_BROKER),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    broker.create("a")
    assert told(TOPIC_RESOURCE, "a", "retention.ms") == ("7200000", chain)
    set_for(broker, CLUSTER_DEFAULT, log_retention_ms="3000")
    chain.insert(0, ("log.retention.ms", "3000", Source.DEFAULT_BROKER))
    assert told(TOPIC_RESOURCE, "a", "retention.ms") == ("3000", chain)
    set_for(broker, node, log_retention_ms="4000")
    chain.insert(0, ("log.retention.ms", "4000", Source.BROKER))
    assert told(TOPIC_RESOURCE, "a", "retention.ms") == ("4000", chain)
    assert told(BROKER_RESOURCE, "1", "log.retention.ms") == ("4000", chain)
    broker.run(broker.services.catalog.alter_topic_config("a", lambda _: {"retention.ms": "5000"}))
    chain.insert(0, ("retention.ms", "5000", Source.TOPIC))
    assert told(TOPIC_RESOURCE, "a", "retention.ms") == ("5000", chain)


def test_the_broker_without_a_name_lists_what_was_set_for_all_and_only_that(broker):
    assert describe(broker, BROKER_RESOURCE, "") == {}
    set_for(broker, CLUSTER_DEFAULT, num_partitions="9")
    set_for(broker, broker.services.node.id, max_connections="5")
    configs = describe(broker, BROKER_RESOURCE, "")
    assert {name: (c.value, c.config_source) for name, c in configs.items()} == {
        "num.partitions": ("9", Source.DEFAULT_BROKER)
    }


def test_documentation_is_given_when_asked_for(broker):
    broker.create("a")
    plain = describe(broker, TOPIC_RESOURCE, "a")
    with_documentation = describe(broker, TOPIC_RESOURCE, "a", include_documentation=True)
    for name, option in TOPIC_OPTIONS.items():
        assert plain[name].documentation is None
        assert with_documentation[name].documentation == option.doc


@pytest.mark.parametrize(
    ("kind", "name", "code", "says"),
    [
        (TOPIC_RESOURCE, "b", ErrorCode.unknown_topic_or_partition, "'b' does not exist"),
        (TOPIC_RESOURCE, "b/c", ErrorCode.invalid_topic_exception, "b/c"),
        (BROKER_RESOURCE, "2", ErrorCode.invalid_request, "expected 1 or empty string, but received 2"),
        (BROKER_RESOURCE, "one", ErrorCode.invalid_request, "must be an integer"),
        (8, "1", ErrorCode.invalid_request, "BROKER_LOGGER"),
        (16, "x", ErrorCode.invalid_request, "CLIENT_METRICS"),
        (32, "", ErrorCode.invalid_request, "not allowed"),
        (77, "x", ErrorCode.invalid_request, "77"),
    ],
)
def test_what_cannot_be_described_is_refused_beside_what_can(broker, kind, name, code, says):
    broker.create("a")
    asked = [resource(kind, name), resource(TOPIC_RESOURCE, "a")]
    refused, described = broker.ask(DESCRIBE_CONFIGS, resources=asked).results
    assert (refused.resource_type, refused.resource_name, refused.error_code) == (kind, name, code)
    assert says in refused.error_message
    assert refused.configs == ()
    assert described.error_code == ErrorCode.none
    assert described.configs


def test_a_resource_is_described_as_often_as_it_is_named(broker):
    assert len(broker.ask(DESCRIBE_CONFIGS, resources=[resource(BROKER_RESOURCE, "1")] * 50).results) == 50


def test_a_password_is_told_to_nobody(start_broker):
    broker = start_broker({"skep.zookeeper.auth": "digest:me:secret", "skep.zookeeper.ssl": "true"})
    configs = describe(broker, BROKER_RESOURCE, "1", include_synonyms=True)
    assert configs["skep.zookeeper.auth"].is_sensitive
    assert configs["skep.zookeeper.auth"].config_type == OptionType.PASSWORD.value
    assert "secret" not in str(configs)
    assert configs["skep.zookeeper.auth"].config_source == Source.STATIC_BROKER
    assert configs["skep.zookeeper.ssl"].value == "true", "what is no password is told"


def test_options_of_a_listener_are_described_and_its_passwords_are_not(start_broker):
    given = {
        "listener.name.plaintext.plain.sasl.jaas.config": "PlainLoginModule required user_a='secret';",
        "listener.name.plaintext.ssl.client.auth": "required",
    }
    configs = describe(start_broker(given), BROKER_RESOURCE, "1", include_synonyms=True)
    assert configs["listener.name.plaintext.ssl.client.auth"].value == "required"
    assert configs["listener.name.plaintext.plain.sasl.jaas.config"].is_sensitive
    assert "secret" not in str(configs)
