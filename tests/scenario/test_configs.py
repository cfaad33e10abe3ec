"""Configs: described with their sources, changed while the broker runs, in force at once."""

from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.config.option import declared
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, now_ms
from tests.waiting import wait_until

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
FROM_TOPIC, FROM_BROKER, FROM_CLUSTER, FROM_START, FROM_DEFAULT = 1, 2, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
EARLIEST = -2
HOUR_MS = 3_600_000


def describe(client: RawClient, kind: int, name: str, keys: list[str] | None = None, version: int = 4) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    response = client.ask(
        apis.DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True, include_documentation=True
    )
    [result] = response.results
    return result


def value_of(client: RawClient, kind: int, name: str, option: str) -> tuple[str, int]:
    [config] = describe(client, kind, name, [option]).configs
    return config.value, config.config_source


def alter(
    client: RawClient,
    kind: int,
    name: str,
    *operations: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> Any:
    configs = [
        {"name": option, "config_operation": operation, "value": value} for option, operation, value in operations
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [response] = client.ask(
        apis.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only
    ).responses
    return response


def altered(client: RawClient, kind: int, name: str, *operations: tuple[str, int, str | None]) -> None:
    response = alter(client, kind, name, *operations)
    assert response.error_code is ErrorCode.none, response.error_message


@pytest.mark.parametrize("version", range(apis.DESCRIBE_CONFIGS.oldest, apis.DESCRIBE_CONFIGS.newest + 1))
def test_every_topic_config_is_described_with_value_and_source(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic, retention_ms=77)
    configs = {config.name: config for config in describe(client, TOPIC, topic, version=version).configs}
    assert configs.keys() == declared(TopicConfig).keys()
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("77", FROM_TOPIC)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (str(1 << 30), FROM_DEFAULT)
    assert not any(config.is_sensitive or config.read_only for config in configs.values())
    names = [(synonym.name, synonym.source) for synonym in configs["retention.ms"].synonyms]
    assert names == [("retention.ms", FROM_TOPIC), ("log.retention.hours", FROM_DEFAULT)]
    if version >= 3:
        assert all(config.documentation and config.config_type for config in configs.values())


def test_a_broker_describes_where_clients_are_to_connect(skep_broker: EmbeddedBroker, client: RawClient) -> None:
    result = describe(client, BROKER, "1")
    configs = {config.name: config for config in result.configs}
    assert configs["advertised.listeners"].value == skep_broker.bootstrap_servers
    assert configs["log.retention.ms"].value == str(168 * HOUR_MS)
    assert configs["node.id"].read_only
    assert not configs["num.partitions"].read_only
    assert configs["listeners"].config_source == FROM_START
    assert configs["num.partitions"].config_source == FROM_DEFAULT


def test_what_cannot_be_described_is_refused(client: RawClient, topic: str) -> None:
    assert describe(client, TOPIC, topic).error_code is ErrorCode.unknown_topic_or_partition
    assert describe(client, TOPIC, "a/b").error_code is ErrorCode.invalid_topic_exception
    assert describe(client, BROKER, "2").error_code is ErrorCode.invalid_request
    assert describe(client, BROKER_LOGGER, "1").error_code is ErrorCode.invalid_request


def test_set_and_delete(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    altered(client, TOPIC, topic, ("retention.ms", SET, "5000"), ("segment.bytes", SET, "1000000"))
    assert value_of(client, TOPIC, topic, "retention.ms") == ("5000", FROM_TOPIC)
    altered(client, TOPIC, topic, ("retention.ms", DELETE, None))
    assert value_of(client, TOPIC, topic, "retention.ms") == (str(168 * HOUR_MS), FROM_DEFAULT)
    assert value_of(client, TOPIC, topic, "segment.bytes") == ("1000000", FROM_TOPIC)


def test_append_and_subtract_are_for_lists(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    altered(client, TOPIC, topic, ("cleanup.policy", APPEND, "delete"))
    assert value_of(client, TOPIC, topic, "cleanup.policy") == ("delete", FROM_TOPIC)
    for operation in (APPEND, SUBTRACT):
        refused = alter(client, TOPIC, topic, ("retention.ms", operation, "1"))
        assert refused.error_code is ErrorCode.invalid_config
        assert "retention.ms" in refused.error_message


@pytest.mark.parametrize(
    ("option", "operation", "value", "code"),
    [
        ("color", SET, "red", ErrorCode.invalid_config),
        ("retention.ms", SET, "long", ErrorCode.invalid_config),
        ("retention.ms", SET, "-2", ErrorCode.invalid_config),
        ("retention.ms", SET, None, ErrorCode.invalid_request),
        ("retention.ms", 9, "1", ErrorCode.invalid_request),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(
    client: RawClient, topic: str, option: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    client.create_topic(topic)
    refused = alter(client, TOPIC, topic, ("segment.bytes", SET, "100000"), (option, operation, value))
    assert refused.error_code is code, refused.error_message
    assert refused.error_message
    assert value_of(client, TOPIC, topic, "segment.bytes")[1] == FROM_DEFAULT


def test_validate_only_changes_nothing(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    checked = alter(client, TOPIC, topic, ("retention.ms", SET, "1"), validate_only=True)
    assert checked.error_code is ErrorCode.none
    assert value_of(client, TOPIC, topic, "retention.ms")[1] == FROM_DEFAULT


def test_alter_configs_replaces_all_overrides(client: RawClient, topic: str) -> None:
    client.create_topic(topic, retention_ms=77)
    for version in range(apis.ALTER_CONFIGS.oldest, apis.ALTER_CONFIGS.newest + 1):
        resource = {
            "resource_type": TOPIC,
            "resource_name": topic,
            "configs": [{"name": "segment.bytes", "value": str(10_000 + version)}],
        }
        [response] = client.ask(apis.ALTER_CONFIGS, version, resources=[resource]).responses
        assert response.error_code is ErrorCode.none
        assert value_of(client, TOPIC, topic, "segment.bytes") == (str(10_000 + version), FROM_TOPIC)
        assert value_of(client, TOPIC, topic, "retention.ms")[1] == FROM_DEFAULT


def test_max_message_bytes_holds_from_the_change_on(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"x" * 1000)
    client.append(topic, batch)
    altered(client, TOPIC, topic, ("max.message.bytes", SET, "500"))
    assert client.produce(topic, batch).error_code is ErrorCode.message_too_large
    altered(client, TOPIC, topic, ("max.message.bytes", SET, "2000"))
    assert client.append(topic, batch) == 1
    # What was accepted before stays readable.
    assert len(client.fetch_one(Want(topic, 0)).records) == 2 * len(batch)


def test_segment_bytes_holds_from_the_change_on(skep_broker: EmbeddedBroker, client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"x" * 1000)
    for _ in range(4):
        client.append(topic, batch)
    segments = skep_broker.data_dir / f"{topic}-0"
    assert len(list(segments.glob("*.log"))) == 1
    altered(client, TOPIC, topic, ("segment.bytes", SET, str(len(batch))))
    for _ in range(3):
        client.append(topic, batch)
    assert sorted(int(path.stem) for path in segments.glob("*.log")) == [0, 4, 5, 6]


def test_the_timestamp_type_holds_from_the_change_on(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    altered(client, TOPIC, topic, ("message.timestamp.type", SET, "LogAppendTime"))
    assert client.produce(topic, batch_of(b"egg")).log_append_time is not None
    altered(client, TOPIC, topic, ("message.timestamp.type", DELETE, None))
    assert client.produce(topic, batch_of(b"egg")).log_append_time is None


@pytest.fixture
def tidy_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options={"log.retention.check.interval.ms": "50"}) as broker:
        yield broker


def test_retention_moves_the_log_start_under_a_reader(tidy_broker: EmbeddedBroker, topic: str) -> None:
    batch = batch_of(b"x" * 100, timestamp=now_ms() - 2 * HOUR_MS)
    with RawClient(tidy_broker.bootstrap_servers) as client:
        client.create_topic(topic, segment_bytes=2 * len(batch), file_delete_delay_ms=0)
        for _ in range(6):
            client.append(topic, batch)
        client.append(topic, batch_of(b"young"))
        assert client.list_offset(topic, EARLIEST).offset == 0
        altered(client, TOPIC, topic, ("retention.ms", SET, str(HOUR_MS)))
        wait_until(lambda: client.list_offset(topic, EARLIEST).offset == 6, "the expired segments go")
        assert client.fetch_one(Want(topic, 3)).error_code is ErrorCode.offset_out_of_range
        fetched = client.fetch_one(Want(topic, 6))
        assert (fetched.error_code, fetched.log_start_offset) == (ErrorCode.none, 6)
        directory = tidy_broker.data_dir / f"{topic}-0"
        wait_until(lambda: [path.name for path in directory.glob("*.log*")] == [f"{6:020}.log"], "their files go too")


def test_retention_by_size_keeps_what_fits(tidy_broker: EmbeddedBroker, topic: str) -> None:
    batch = batch_of(b"x" * 100)
    with RawClient(tidy_broker.bootstrap_servers) as client:
        client.create_topic(topic, segment_bytes=len(batch), retention_bytes=3 * len(batch))
        for _ in range(10):
            client.append(topic, batch)
        wait_until(lambda: client.list_offset(topic, EARLIEST).offset == 7, "seven segments of ten go")


def test_broker_options_change_for_one_broker_and_for_all(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    with RawClient(skep_fresh_broker.bootstrap_servers) as client:
        client.create_topic(topic)
        altered(client, BROKER, "", ("num.partitions", SET, "5"), ("message.max.bytes", SET, "900"))
        assert value_of(client, BROKER, "1", "num.partitions") == ("5", FROM_CLUSTER)
        assert value_of(client, TOPIC, topic, "max.message.bytes") == ("900", FROM_CLUSTER)
        altered(client, BROKER, "1", ("num.partitions", SET, "7"))
        assert value_of(client, BROKER, "1", "num.partitions") == ("7", FROM_BROKER)
        [made] = client.ask(apis.METADATA, 9, topics=[{"name": f"{topic}-auto"}], allow_auto_topic_creation=True).topics
        assert len(made.partitions) == 7
        # The default of topics reaches a log that is open already.
        assert client.produce(topic, batch_of(b"x" * 1000)).error_code is ErrorCode.message_too_large
        skep_fresh_broker.restart()
    with RawClient(skep_fresh_broker.bootstrap_servers) as client:
        assert value_of(client, BROKER, "1", "num.partitions") == ("7", FROM_BROKER)
        assert client.produce(topic, batch_of(b"x" * 1000)).error_code is ErrorCode.message_too_large
        altered(client, BROKER, "", ("message.max.bytes", DELETE, None))
        assert client.append(topic, batch_of(b"x" * 1000)) == 0


def test_options_of_threads_and_unused_ones_are_set_while_the_broker_runs_and_survive_a_restart(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    with RawClient(skep_fresh_broker.bootstrap_servers) as client:
        client.create_topic(topic, cleanup_policy="", flush_messages=1)
        altered(client, BROKER, "1", ("background.threads", SET, "2"), ("num.io.threads", SET, "16"))
        assert client.append(topic, batch_of(b"synced by the new threads")) == 0
        skep_fresh_broker.restart()
    with RawClient(skep_fresh_broker.bootstrap_servers) as client:
        assert value_of(client, BROKER, "1", "background.threads") == ("2", FROM_BROKER)
        assert value_of(client, BROKER, "1", "num.io.threads") == ("16", FROM_BROKER)
        assert value_of(client, TOPIC, topic, "cleanup.policy")[0] == ""
        assert client.append(topic, batch_of(b"after the restart")) == 1


@pytest.mark.parametrize(
    ("name", "option", "value", "code"),
    [
        ("1", "node.id", "4", ErrorCode.invalid_request),
        ("1", "num.partitions", "many", ErrorCode.invalid_request),
        ("1", "color", "red", ErrorCode.invalid_config),
        ("2", "num.partitions", "2", ErrorCode.invalid_request),
    ],
)
def test_a_bad_broker_change_is_refused(client: RawClient, name: str, option: str, value: str, code: ErrorCode) -> None:
    refused = alter(client, BROKER, name, (option, SET, value))
    assert refused.error_code is code, refused.error_message
