"""AlterConfigs and IncrementalAlterConfigs: overrides change as asked, wholly or not at all."""

import asyncio

import pytest

from skep.base.config.option import parse_into
from skep.base.config.topic_config import TopicConfig
from skep.base.config.unused_options import is_kept
from skep.base.errors import ErrorCode, StoreUnavailable
from skep.broker.config.config_entries import BROKER_OPTIONS, BROKER_RESOURCE, MAX_CONFIGS, TOPIC_RESOURCE, Source
from skep.broker.handlers.incremental_alter_configs import Operation
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, Api

SET, DELETE, APPEND, SUBTRACT = Operation

EVERY_VERSION = [
    (api, version)
    for api in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS)
    for version in range(api.oldest, api.newest + 1)
]


def resource(kind, name, *configs):
    """Configs are (name, value) for AlterConfigs, (operation, name, value) for the incremental one."""
    fields = [
        {"config_operation": config[0], "name": config[1], "value": config[2]}
        if len(config) == 3
        else {"name": config[0], "value": config[1]}
        for config in configs
    ]
    return {"resource_type": kind, "resource_name": name, "configs": fields}


def alter(broker, api: Api, *resources, version=None, validate_only=False):
    responses = broker.ask(api, version, resources=list(resources), validate_only=validate_only).responses
    assert [(r.resource_type, r.resource_name) for r in responses] == [
        (r["resource_type"], r["resource_name"]) for r in resources
    ]
    return [(r.error_code, r.error_message) for r in responses]


def overrides_of(broker, topic="a"):
    return dict(broker.image.topics[topic].config)


DONE = (ErrorCode.none, None)


@pytest.fixture
def topic(broker):
    broker.create("a", configs={"retention.ms": "1000", "segment.bytes": "2000"})
    return broker


THROTTLED = [f"{side}.replication.throttled.replicas" for side in ("leader", "follower")]


@pytest.mark.parametrize("name", THROTTLED)
@pytest.mark.parametrize(("text", "stored"), [("*", "*"), ("", ""), ("0:1, 12:345", "0:1,12:345"), ("0:1,,", "0:1")])
def test_throttled_replicas_are_all_or_partitions_of_brokers(topic, name, text, stored):
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, resource(TOPIC_RESOURCE, "a", (SET, name, text))) == [DONE]
    assert overrides_of(topic)[name] == stored


@pytest.mark.parametrize("name", THROTTLED)
@pytest.mark.parametrize("text", ["all", "0", "0:", ":1", "0:1:2", "-1:0", "0:x", "*,0:1", "0:1 1:2"])
def test_throttled_replicas_that_are_anything_else_are_refused(topic, name, text):
    [(code, message)] = alter(topic, INCREMENTAL_ALTER_CONFIGS, resource(TOPIC_RESOURCE, "a", (SET, name, text)))
    assert code is ErrorCode.invalid_config
    assert message.endswith(f"{name}={text}: must be * or a list of PARTITION:BROKER")


def test_throttled_replicas_are_added_and_taken_out_one_by_one(topic):
    name = THROTTLED[0]
    for operation, text, after in [(APPEND, "0:1", "0:1"), (APPEND, "1:2", "0:1,1:2"), (SUBTRACT, "0:1", "1:2")]:
        wanted = resource(TOPIC_RESOURCE, "a", (operation, name, text))
        assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted) == [DONE]
        assert overrides_of(topic)[name] == after


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_all_overrides(topic, version):
    wanted = resource(TOPIC_RESOURCE, "a", ("retention.ms", " 5000"), ("flush.ms", "9"))
    assert alter(topic, ALTER_CONFIGS, wanted, version=version) == [DONE]
    assert overrides_of(topic) == {"retention.ms": "5000", "flush.ms": "9"}
    assert alter(topic, ALTER_CONFIGS, resource(TOPIC_RESOURCE, "a"), version=version) == [DONE]
    assert overrides_of(topic) == {}


@pytest.mark.parametrize("version", [0, 1])
def test_incremental_changes_leave_the_other_options_alone(topic, version):
    wanted = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "9"), (DELETE, "retention.ms", None))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted, version=version) == [DONE]
    assert overrides_of(topic) == {"segment.bytes": "2000", "flush.ms": "9"}


def test_deleting_what_has_no_override_does_nothing(topic):
    wanted = resource(TOPIC_RESOURCE, "a", (DELETE, "flush.ms", None), (DELETE, "gone.with.an.old.version", None))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted) == [DONE]
    assert overrides_of(topic) == {"retention.ms": "1000", "segment.bytes": "2000"}


def test_appending_begins_with_what_is_in_force_and_adds_nothing_twice(topic):
    wanted = resource(TOPIC_RESOURCE, "a", (APPEND, "cleanup.policy", "delete, delete"))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted) == [DONE]
    assert overrides_of(topic)["cleanup.policy"] == "delete"


def test_appending_what_the_list_may_not_hold_is_refused(topic):
    wanted = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "9"), (APPEND, "cleanup.policy", "compost"))
    ((code, message),) = alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted)
    assert code == ErrorCode.invalid_config
    assert "cleanup.policy=delete,compost" in message
    assert "flush.ms" not in overrides_of(topic)


def test_subtracting_passes_over_what_is_not_in_the_list(topic):
    wanted = resource(TOPIC_RESOURCE, "a", (SUBTRACT, "cleanup.policy", "compost"))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted) == [DONE]
    assert overrides_of(topic)["cleanup.policy"] == "delete"


def test_subtracting_the_last_one_is_refused_where_the_list_may_not_be_empty(topic):
    wanted = resource(BROKER_RESOURCE, "1", (SUBTRACT, "group.consumer.assignors", "uniform,range"))
    ((code, message),) = alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted)
    assert code == ErrorCode.invalid_request
    assert "must be a list of" in message
    empty = resource(TOPIC_RESOURCE, "a", (SUBTRACT, "cleanup.policy", "delete"))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, empty) == [DONE]


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_can_be_appended_to_and_subtracted_from(topic, operation):
    wanted = resource(TOPIC_RESOURCE, "a", (operation, "retention.ms", "1"))
    ((code, message),) = alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted)
    assert code == ErrorCode.invalid_config
    assert "retention.ms because its type is not LIST" in message
    wanted = resource(BROKER_RESOURCE, "1", (operation, "max.connections", "1"))
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted)[0][0] == ErrorCode.invalid_config


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_validate_only_checks_and_changes_nothing(topic, api, version):
    good = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "9"))
    bad = resource(BROKER_RESOURCE, "1", (SET, "num.partitions", "0"))
    first, second = alter(topic, api, good, bad, version=version, validate_only=True)
    assert first == DONE
    assert second[0] == ErrorCode.invalid_request
    assert "num.partitions=0" in second[1]
    assert overrides_of(topic) == {"retention.ms": "1000", "segment.bytes": "2000"}


@pytest.mark.parametrize("api", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (resource(TOPIC_RESOURCE, "b"), ErrorCode.unknown_topic_or_partition, "'b' does not exist"),
        (resource(TOPIC_RESOURCE, "b/c"), ErrorCode.invalid_topic_exception, "b/c"),
        (resource(TOPIC_RESOURCE, ""), ErrorCode.invalid_request, "Default topic resources"),
        (resource(BROKER_RESOURCE, "2"), ErrorCode.invalid_request, "expected 1"),
        (resource(BROKER_RESOURCE, "x"), ErrorCode.invalid_request, "integer"),
        (resource(16, "g"), ErrorCode.invalid_request, "CLIENT_METRICS"),
        (resource(99, "g"), ErrorCode.invalid_request, "99"),
        (resource(TOPIC_RESOURCE, "a", (SET, "no.such", "1")), ErrorCode.invalid_config, "no.such"),
        (resource(TOPIC_RESOURCE, "a", (SET, "num.partitions", "1")), ErrorCode.invalid_config, "num.partitions"),
        (resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "x")), ErrorCode.invalid_config, "flush.ms=x"),
        (resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", None)), ErrorCode.invalid_request, "flush.ms"),
        (
            resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "1"), (SET, "flush.ms", "2")),
            ErrorCode.invalid_request,
            "duplicate config keys: flush.ms",
        ),
        (resource(BROKER_RESOURCE, "1", (SET, "no.such", "1")), ErrorCode.invalid_config, "no.such"),
        (
            resource(BROKER_RESOURCE, "1", (SET, "sasl.client.callback.handler.class", "x")),
            ErrorCode.invalid_request,
            "not use it",
        ),
        (resource(BROKER_RESOURCE, "", (SET, "listeners", "x:1")), ErrorCode.invalid_request, "listeners"),
        (resource(BROKER_RESOURCE, "1", (SET, "log.retention.ms", "x")), ErrorCode.invalid_request, "log.retention.ms"),
    ],
)
def test_what_cannot_be_is_refused_beside_what_can(topic, api, wanted, code, says):
    good = resource(BROKER_RESOURCE, "1" if wanted["resource_name"] != "1" else "", (SET, "num.partitions", "2"))
    refused, done = alter(topic, api, wanted, good)
    assert refused[0] == code
    assert says in refused[1]
    assert done == DONE
    assert overrides_of(topic) == {"retention.ms": "1000", "segment.bytes": "2000"}


def test_an_unknown_operation_is_refused(topic):
    ((code, message),) = alter(topic, INCREMENTAL_ALTER_CONFIGS, resource(TOPIC_RESOURCE, "a", (4, "flush.ms", "1")))
    assert code == ErrorCode.invalid_request
    assert "4" in message


@pytest.mark.parametrize("api", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
def test_a_resource_that_appears_twice_is_not_changed(topic, api):
    one = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "1"))
    other = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "2"))
    assert [code for code, _ in alter(topic, api, one, other)] == [ErrorCode.invalid_request] * 2
    assert "flush.ms" not in overrides_of(topic)


def test_a_value_longer_than_an_old_response_can_carry_is_refused(topic):
    wanted = resource(TOPIC_RESOURCE, "a", (SET, "cleanup.policy", "delete," * 10_000))
    ((code, message),) = alter(topic, INCREMENTAL_ALTER_CONFIGS, wanted)
    assert code == ErrorCode.invalid_config
    assert "cleanup.policy" in message


def test_a_brokers_own_value_stands_before_that_of_all_brokers(broker):
    everybody = resource(BROKER_RESOURCE, "", (SET, "num.partitions", "3"), (SET, "log.flush.interval.ms", "7"))
    this_one = resource(BROKER_RESOURCE, "1", (SET, "num.partitions", "4"))
    assert alter(broker, INCREMENTAL_ALTER_CONFIGS, everybody, this_one) == [DONE, DONE]
    assert broker.services.config.num_partitions == 4
    assert broker.services.config.topic_defaults.flush_ms == 7
    assert broker.image.broker_config(CLUSTER_DEFAULT) == {"num.partitions": "3", "log.flush.interval.ms": "7"}
    back = resource(BROKER_RESOURCE, "1", (DELETE, "num.partitions", None))
    assert alter(broker, INCREMENTAL_ALTER_CONFIGS, back) == [DONE]
    assert broker.services.config.num_partitions == 3


@pytest.mark.parametrize("name", ["sasl.kerberos.min.time.before.relogin", "num.io.threads", "cleanup.policy"])
@pytest.mark.parametrize("api", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
@pytest.mark.parametrize("owner", ["", "1"])
def test_an_option_that_only_kafka_uses_is_kept_and_described_as_such(broker, name, api, owner):
    assert alter(broker, api, resource(BROKER_RESOURCE, owner, (SET, name, "58000"))) == [DONE]
    asked = {"resource_type": BROKER_RESOURCE, "resource_name": owner, "configuration_keys": [name]}
    [result] = broker.ask(DESCRIBE_CONFIGS, resources=[asked], include_documentation=True).results
    [config] = result.configs
    assert (config.name, config.value, config.read_only) == (name, "58000", True)
    assert config.config_source == (Source.BROKER if owner else Source.DEFAULT_BROKER)
    assert ("no effect" if name == "cleanup.policy" else "does not use it") in config.documentation


def test_no_option_of_ours_is_taken_for_an_unused_one():
    assert not [name for name in BROKER_OPTIONS if is_kept(name)]


def test_a_topic_may_keep_everything(topic):
    assert alter(topic, INCREMENTAL_ALTER_CONFIGS, resource(TOPIC_RESOURCE, "a", (SET, "cleanup.policy", ""))) == [DONE]
    config = parse_into(TopicConfig(), overrides_of(topic))
    assert (config.expires, config.is_compacted) == (False, False)


def test_changes_that_come_all_at_once_are_all_kept(topic):
    options = ["flush.ms", "flush.messages", "segment.ms", "max.message.bytes", "index.interval.bytes"]

    async def at_once():
        wanted = [[resource(TOPIC_RESOURCE, "a", (SET, option, "77"))] for option in options]
        await asyncio.gather(*(topic.ask_async(INCREMENTAL_ALTER_CONFIGS, resources=one) for one in wanted))

    topic.run(at_once())
    assert overrides_of(topic).items() >= dict.fromkeys(options, "77").items()


def test_a_store_that_fails_is_told_for_the_resource_it_failed_for(topic, monkeypatch):
    async def unavailable(*args, **kwargs):
        raise StoreUnavailable("disk full")

    monkeypatch.setattr(topic.services.catalog, "alter_topic_config", unavailable)
    for_topic = resource(TOPIC_RESOURCE, "a", (SET, "flush.ms", "1"))
    for_broker = resource(BROKER_RESOURCE, "", (SET, "num.partitions", "2"))
    responses = alter(topic, INCREMENTAL_ALTER_CONFIGS, for_topic, for_broker)
    assert responses == [(ErrorCode.coordinator_not_available, "disk full"), DONE]


@pytest.mark.parametrize("api", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
def test_more_configs_than_any_resource_can_have_are_refused_unread(topic, api):
    names = [f"o{number}" for number in range(MAX_CONFIGS + 1)]
    configs = [(SET, name, "1") if api is INCREMENTAL_ALTER_CONFIGS else (name, "1") for name in names]
    [(code, _)] = alter(topic, api, resource(TOPIC_RESOURCE, "a", *configs[:-1]))
    assert code is ErrorCode.invalid_config
    [(code, message)] = alter(topic, api, resource(TOPIC_RESOURCE, "a", *configs))
    assert code is ErrorCode.invalid_request
    assert "1001 configs" in message
