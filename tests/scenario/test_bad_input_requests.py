"""Requests that are well formed and ask for the impossible, or for very much: a code for each thing, and in time."""

from collections.abc import Iterator

import pytest

from skep.base.errors import ErrorCode
from skep.wire import apis
from tests.fuzz.scene import MEBIBYTE, Scene, files_under, scene
from tests.raw_requests import Want, batch_of, seconds

TOPIC = "plain"
MANY = 10_000


@pytest.fixture(scope="module")
def the_scene() -> Iterator[Scene]:
    with scene() as found, found.client() as client:
        client.create_topic(TOPIC, partitions=3)
        yield found


BAD_NAMES = {
    "dot": ".",
    "dots": "..",
    "up and out": "../outside",
    "slash": "a/b",
    "absolute": "/tmp/outside",
    "nothing": "",
    "space": "a b",
    "zero byte": "a\0b",
    "line break": "a\nb",
    "not ASCII": "tôpic",
    "250 characters": "x" * 250,
    "32,000 characters": "x" * 32_000,
    "32,767 characters": "y" * 32_767,
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_bad_topic_name_is_refused_everywhere_and_makes_no_file(the_scene: Scene, name: str) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        before = files_under(the_scene.broker)
        for version in (apis.CREATE_TOPICS.oldest, apis.CREATE_TOPICS.newest):
            topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
            [created] = client.ask(apis.CREATE_TOPICS, version, topics=[topic], timeout=seconds(5)).topics
            assert created.error_code is ErrorCode.invalid_topic_exception
        for version in (4, 9, 13):
            [described] = client.ask(
                apis.METADATA, version, topics=[{"name": name}], allow_auto_topic_creation=True
            ).topics
            assert described.error_code is ErrorCode.invalid_topic_exception
        for version in (3, 8, 11):
            produced = client.produce(name, batch_of(b"x"), version=version)
            assert produced.error_code is ErrorCode.unknown_topic_or_partition
        assert client.fetch_one(Want(name, 0)).error_code is ErrorCode.unknown_topic_or_partition
        assert client.list_offset(name, -1).error_code is ErrorCode.unknown_topic_or_partition
        assert files_under(the_scene.broker) == before


def test_the_longest_name_works(the_scene: Scene) -> None:
    name = "z" * 249
    with the_scene.unharmed(), the_scene.client() as client:
        client.create_topic(name, partitions=2)
        assert client.append(name, batch_of(b"x"), partition=1) == 0
        assert client.fetch_one(Want(name, 0, partition=1)).records


@pytest.mark.parametrize("version", [3, 8, 11])
def test_produce_to_very_many_partitions(the_scene: Scene, version: int) -> None:
    """9,997 of them are not there; the three that are come last."""
    batch = batch_of(b"x")
    indexes = [*range(MANY - 1, -1, -1)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        response = client.ask(
            apis.PRODUCE,
            version,
            acks=1,
            timeout=seconds(5),
            topic_data=[{"name": TOPIC, "partition_data": [{"index": index, "records": batch} for index in indexes]}],
        )
        [topic] = response.responses
        assert [partition.index for partition in topic.partition_responses] == indexes
        codes = [partition.error_code for partition in topic.partition_responses]
        assert codes == [ErrorCode.unknown_topic_or_partition] * (MANY - 3) + [ErrorCode.none] * 3


def test_fetch_of_very_many_partitions(the_scene: Scene) -> None:
    wanted = [Want(TOPIC, 0, partition=index) for index in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        for version in (4, 12):
            response = client.fetch(*wanted, version=version, max_wait_s=5)
            codes = [partition.error_code for topic in response.responses for partition in topic.partitions]
            assert codes == [ErrorCode.none] * 3 + [ErrorCode.unknown_topic_or_partition] * (MANY - 3)


def test_a_fetch_session_of_very_many_partitions(the_scene: Scene) -> None:
    wanted = [Want(TOPIC, 0, partition=index) for index in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        response = client.fetch(*wanted, session_epoch=0)
        assert response.error_code is ErrorCode.none
        assert sum(len(topic.partitions) for topic in response.responses) == MANY


def test_offsets_of_very_many_partitions(the_scene: Scene) -> None:
    partitions = [{"partition_index": index, "timestamp": -1} for index in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        [topic] = client.ask(apis.LIST_OFFSETS, 7, topics=[{"name": TOPIC, "partitions": partitions}]).topics
        codes = [partition.error_code for partition in topic.partitions]
        assert codes == [ErrorCode.none] * 3 + [ErrorCode.unknown_topic_or_partition] * (MANY - 3)


def test_offsets_of_very_many_partitions_each_named_twice(the_scene: Scene) -> None:
    """Finding out what is named twice must not take a look at all for each."""
    partitions = [{"partition_index": index, "timestamp": -1} for index in range(MANY)] * 2
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        [topic] = client.ask(apis.LIST_OFFSETS, 7, topics=[{"name": TOPIC, "partitions": partitions}]).topics
        assert {partition.error_code for partition in topic.partitions} == {ErrorCode.invalid_request}
        the_scene.witness.check(slowest_cpu_s=2)


def test_metadata_of_very_many_topics_that_are_not_there(the_scene: Scene) -> None:
    topics = [{"name": f"missing-{number}"} for number in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        response = client.ask(apis.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.unknown_topic_or_partition}
        assert len(response.topics) == MANY


def test_metadata_that_makes_hundreds_of_topics_lets_others_in_between(the_scene: Scene) -> None:
    topics = [{"name": f"made-{number}"} for number in range(300)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        rounds = the_scene.witness.rounds
        for made in (100, 200, 300):  # skep.max.auto.created.topics more with each request
            response = client.ask(apis.METADATA, 12, topics=topics, allow_auto_topic_creation=True)
            codes = [topic.error_code for topic in response.topics]
            assert codes == [ErrorCode.none] * made + [ErrorCode.leader_not_available] * (300 - made)
        assert the_scene.witness.rounds > rounds + 3


@pytest.mark.parametrize("count", [100_000, 2**31 - 1])
def test_more_partitions_than_a_broker_holds_are_refused(the_scene: Scene, count: int) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        topic = {"name": "too-large", "num_partitions": count, "replication_factor": 1}
        [created] = client.ask(apis.CREATE_TOPICS, 7, topics=[topic], timeout=seconds(5)).topics
        assert created.error_code is ErrorCode.policy_violation
        assert "skep.max.partitions" in created.error_message
        [grown] = client.ask(
            apis.CREATE_PARTITIONS, 3, topics=[{"name": TOPIC, "count": count, "assignments": None}], timeout=seconds(5)
        ).results
        assert grown.error_code is ErrorCode.policy_violation


def test_thousands_of_topics_that_cannot_be_made_are_refused_one_by_one(the_scene: Scene) -> None:
    topics = [{"name": f"bad/{number}", "num_partitions": 1, "replication_factor": 1} for number in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        response = client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout=seconds(5))
        assert len(response.topics) == MANY
        assert {topic.error_code for topic in response.topics} == {ErrorCode.invalid_topic_exception}


def test_configs_of_very_many_resources(the_scene: Scene) -> None:
    """Each response has some kilobytes; what is named again is not answered again."""
    there = [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}] * 1_000
    missing = [{"resource_type": 2, "resource_name": "nowhere", "configuration_keys": None}] * MANY
    with the_scene.unharmed(max_growth_bytes=128 * MEBIBYTE), the_scene.client() as client:
        response = client.ask(apis.DESCRIBE_CONFIGS, 4, resources=there + missing)
        codes = {(one.resource_name, one.error_code) for one in response.results}
        assert codes == {(TOPIC, ErrorCode.none), ("nowhere", ErrorCode.unknown_topic_or_partition)}


def test_deleting_records_of_very_many_partitions(the_scene: Scene) -> None:
    partitions = [{"partition_index": index, "offset": 0} for index in range(MANY)]
    with the_scene.unharmed(max_growth_bytes=64 * MEBIBYTE), the_scene.client() as client:
        [topic] = client.ask(
            apis.DELETE_RECORDS, 2, topics=[{"name": TOPIC, "partitions": partitions}], timeout=seconds(5)
        ).topics
        codes = [partition.error_code for partition in topic.partitions]
        assert codes.count(ErrorCode.none) == 3
        assert codes.count(ErrorCode.unknown_topic_or_partition) == MANY - 3


@pytest.mark.parametrize("offset", [-1, 10**15, 2**63 - 1])
def test_an_offset_that_there_is_not_is_out_of_range(the_scene: Scene, offset: int) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        assert client.fetch_one(Want(TOPIC, offset)).error_code is ErrorCode.offset_out_of_range


@pytest.mark.parametrize("limit", [-(2**31), -1, 0])
def test_limits_below_zero_give_no_more_than_one_batch(the_scene: Scene, limit: int) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        first = client.append(TOPIC, batch_of(b"x"))
        client.append(TOPIC, batch_of(b"y"))
        fetched = client.fetch_one(Want(TOPIC, first, max_bytes=limit), min_bytes=limit, max_bytes=limit)
        assert fetched.error_code is ErrorCode.none
        assert len(fetched.records or b"") <= len(batch_of(b"x"))


def test_a_negative_or_absurd_wait_is_answered(the_scene: Scene) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        end = client.list_offset(TOPIC, -1).offset
        assert client.fetch_one(Want(TOPIC, end), max_wait_s=-1000).error_code is ErrorCode.none


def test_a_topic_of_very_many_partitions_does_not_make_others_wait() -> None:
    """In a broker of its own: such a topic takes half of what a broker holds."""
    with scene() as found, found.client() as client:
        client.create_topic("huge", partitions=MANY)
        with found.unharmed(max_growth_bytes=128 * MEBIBYTE):
            [described] = client.ask(apis.METADATA, 12, topics=[{"name": "huge"}]).topics
            assert len(described.partitions) == MANY
            [directory] = client.ask(apis.DESCRIBE_LOG_DIRS, 4, topics=None).results
            assert sum(len(topic.partitions) for topic in directory.topics) == MANY + 1
            client.delete_topic("huge")
            found.witness.check(slowest_cpu_s=2.5)
