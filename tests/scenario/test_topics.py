"""Topics as clients make, see, grow and delete them."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, create_topics_body, seconds
from tests.waiting import wait_until

METADATA_VERSIONS = range(apis.METADATA.oldest, apis.METADATA.newest + 1)


def create(client: RawClient, version: int = 7, validate_only: bool = False, **topic: Any) -> Any:
    topic = {"num_partitions": 1, "replication_factor": 1, **topic}
    response = client.ask(apis.CREATE_TOPICS, version, topics=[topic], timeout=seconds(30), validate_only=validate_only)
    [created] = response.topics
    return created


def described(client: RawClient, name: str) -> Any:
    [topic] = client.ask(apis.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
    return topic


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_naming_a_missing_topic_creates_it(client: RawClient, topic: str, version: int) -> None:
    [found] = client.ask(apis.METADATA, version, topics=[{"name": topic}], allow_auto_topic_creation=True).topics
    assert (found.error_code, found.name, len(found.partitions)) == (ErrorCode.none, topic, 1)
    assert client.append(topic, batch_of(b"egg")) == 0


@pytest.mark.parametrize("version", range(4, apis.METADATA.newest + 1))
def test_a_missing_topic_is_not_created_against_the_clients_will(client: RawClient, topic: str, version: int) -> None:
    [found] = client.ask(apis.METADATA, version, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
    assert found.error_code is ErrorCode.unknown_topic_or_partition
    assert described(client, topic).error_code is ErrorCode.unknown_topic_or_partition


@pytest.fixture
def strict_broker() -> Iterator[EmbeddedBroker]:
    options = {"auto.create.topics.enable": "false", "delete.topic.enable": "false", "num.partitions": "3"}
    with EmbeddedBroker(options=options) as broker:
        yield broker


def test_a_broker_can_refuse_to_create_and_to_delete(strict_broker: EmbeddedBroker, topic: str) -> None:
    with RawClient(strict_broker.bootstrap_servers) as client:
        for version in (0, 9):
            [found] = client.ask(apis.METADATA, version, topics=[{"name": topic}]).topics
            assert found.error_code is ErrorCode.unknown_topic_or_partition
        assert create(client, name=topic, num_partitions=-1).num_partitions == 3
        for version, code in ((5, ErrorCode.topic_deletion_disabled), (1, ErrorCode.invalid_request)):
            [refused] = client.ask(apis.DELETE_TOPICS, version, topic_names=[topic], timeout=seconds(9)).responses
            assert refused.error_code is code


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_metadata_lists_all_topics_and_no_topics(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic, 2)
    everything = client.ask(apis.METADATA, version, topics=[] if version == 0 else None)
    [found] = [one for one in everything.topics if one.name == topic]
    assert [partition.partition_index for partition in found.partitions] == [0, 1]
    [broker] = everything.brokers
    assert {partition.leader_id for partition in found.partitions} == {broker.node_id}
    if version > 0:
        assert client.ask(apis.METADATA, version, topics=[]).topics == ()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd", "x" * 250, "ключ", "a b"])
def test_a_bad_name_is_refused_everywhere(client: RawClient, name: str) -> None:
    [found] = client.ask(apis.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
    assert found.error_code is ErrorCode.invalid_topic_exception
    assert create(client, name=name).error_code is ErrorCode.invalid_topic_exception


def test_metadata_finds_a_topic_by_its_id(client: RawClient, topic: str) -> None:
    topic_id = client.create_topic(topic)
    asked = [{"topic_id": topic_id, "name": None}, {"topic_id": uuid.uuid4(), "name": None}]
    known, unknown = client.ask(apis.METADATA, 12, topics=asked).topics
    assert (known.error_code, known.name, known.topic_id) == (ErrorCode.none, topic, topic_id)
    assert unknown.error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("version", range(apis.CREATE_TOPICS.oldest, apis.CREATE_TOPICS.newest + 1))
def test_every_version_creates(client: RawClient, topic: str, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "77"}]
    created = create(client, version, name=topic, num_partitions=3, configs=configs)
    assert created.error_code is ErrorCode.none
    assert len(described(client, topic).partitions) == 3
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
        values = {config.name: (config.value, config.config_source) for config in created.configs}
        assert values["retention.ms"] == ("77", 1)
        assert values["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert created.topic_id == described(client, topic).topic_id


def test_a_topic_that_was_only_validated_does_not_exist(client: RawClient, topic: str) -> None:
    assert create(client, name=topic, validate_only=True).error_code is ErrorCode.none
    assert described(client, topic).error_code is ErrorCode.unknown_topic_or_partition


CREATE_REFUSALS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "no partitions": ({"num_partitions": 0}, ErrorCode.invalid_partitions),
    "too many replicas": ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
    "no replicas": ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
    "unknown config": ({"configs": [{"name": "color", "value": "red"}]}, ErrorCode.invalid_config),
    "bad value": ({"configs": [{"name": "retention.ms", "value": "long"}]}, ErrorCode.invalid_config),
    "no such policy": ({"configs": [{"name": "cleanup.policy", "value": "compost"}]}, ErrorCode.invalid_config),
    "unknown broker": (
        {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [9]}],
        },
        ErrorCode.invalid_replica_assignment,
    ),
    "partitions with a gap": (
        {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 1, "broker_ids": [1]}],
        },
        ErrorCode.invalid_replica_assignment,
    ),
}


@pytest.mark.parametrize("what", CREATE_REFUSALS)
def test_a_topic_that_cannot_be_is_refused(client: RawClient, topic: str, what: str) -> None:
    wanted, code = CREATE_REFUSALS[what]
    for validate_only in (True, False):
        created = create(client, name=topic, validate_only=validate_only, **wanted)
        assert created.error_code is code, created.error_message
        assert created.error_message
    assert described(client, topic).error_code is ErrorCode.unknown_topic_or_partition


def test_replicas_can_be_chosen_by_hand(client: RawClient, topic: str) -> None:
    chosen = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
    created = create(client, name=topic, num_partitions=-1, replication_factor=-1, assignments=chosen)
    assert (created.error_code, created.num_partitions) == (ErrorCode.none, 2)


def test_a_topic_that_exists_is_refused_beside_one_that_is_made(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    bodies = [create_topics_body(name)["topics"][0] for name in (topic, f"{topic}-new", f"{topic}-2", f"{topic}-2")]
    response = client.ask(apis.CREATE_TOPICS, 7, topics=bodies, timeout=seconds(30))
    codes = {one.name: one.error_code for one in response.topics}
    assert codes == {
        topic: ErrorCode.topic_already_exists,
        f"{topic}-new": ErrorCode.none,
        f"{topic}-2": ErrorCode.invalid_request,
    }


@pytest.mark.parametrize("version", range(apis.CREATE_PARTITIONS.oldest, apis.CREATE_PARTITIONS.newest + 1))
def test_a_topic_grows_and_never_shrinks(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic, 2)
    client.append(topic, batch_of(b"egg"))

    def grow(count: int, name: str = topic, validate_only: bool = False) -> Any:
        body = {"topics": [{"name": name, "count": count, "assignments": None}], "timeout": seconds(30)}
        [result] = client.ask(apis.CREATE_PARTITIONS, version, validate_only=validate_only, **body).results
        return result.error_code

    assert grow(4, validate_only=True) is ErrorCode.none
    assert len(described(client, topic).partitions) == 2
    assert grow(4) is ErrorCode.none
    assert client.append(topic, batch_of(b"new"), partition=3) == 0
    assert client.list_offset(topic, -1).offset == 1
    for count in (4, 3, 0, -1):
        assert grow(count) is ErrorCode.invalid_partitions
    assert grow(2, name=f"{topic}-none") is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(apis.DELETE_TOPICS.oldest, apis.DELETE_TOPICS.newest + 1))
def test_a_deleted_topic_is_gone_with_its_files(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str, version: int
) -> None:
    topic_id = client.create_topic(topic)
    client.append(topic, batch_of(b"egg"))
    named = {"topics": [{"name": None, "topic_id": topic_id}], "topic_names": [topic]}
    [deleted] = client.ask(apis.DELETE_TOPICS, version, timeout=seconds(30), **named).responses
    assert (deleted.error_code, deleted.name) == (ErrorCode.none, topic)
    assert described(client, topic).error_code is ErrorCode.unknown_topic_or_partition
    assert client.fetch_one(Want(topic, 0)).error_code is ErrorCode.unknown_topic_or_partition
    wait_until(lambda: not list(skep_broker.data_dir.glob(f"{topic}*")), "the files are gone")
    [again] = client.ask(apis.DELETE_TOPICS, version, timeout=seconds(30), **named).responses
    missing = ErrorCode.unknown_topic_id if version >= 6 else ErrorCode.unknown_topic_or_partition
    assert again.error_code is missing
