"""DescribeTopicPartitions: pages of partitions, topic by topic in the order of their names."""

from uuid import UUID

import pytest

from skep.base.errors import ErrorCode
from skep.broker import authorized_operations
from skep.wire.apis import DESCRIBE_TOPIC_PARTITIONS


def describe(broker, *names, limit=2000, cursor=None):
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return broker.ask(
        DESCRIBE_TOPIC_PARTITIONS,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=at,
    )


def told(response):
    return [(topic.name, [p.partition_index for p in topic.partitions]) for topic in response.topics]


def next_of(response):
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture
def topics(broker):
    for name, partitions in (("c", 1), ("a", 3), ("b", 2)):
        broker.create(name, partitions)
    return broker


def test_all_topics_come_sorted_when_none_is_named(topics):
    response = describe(topics)
    assert told(response) == [("a", [0, 1, 2]), ("b", [0, 1]), ("c", [0])]
    assert next_of(response) is None


def test_a_topic_is_told_with_its_id_and_replicas(topics):
    (topic,) = describe(topics, "b").topics
    assert (topic.error_code, topic.topic_id) == (ErrorCode.none, topics.image.topics["b"].topic_id)
    assert topic.topic_authorized_operations == authorized_operations.ON_TOPIC
    assert not topic.is_internal
    partition = topic.partitions[1]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (ErrorCode.none, 1, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1,), (1,), ())
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_pages_joined_are_the_whole_whatever_their_size(topics, limit):
    partitions, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        response = describe(topics, limit=limit, cursor=cursor)
        page = [(name, index) for name, indexes in told(response) for index in indexes]
        assert 1 <= len(page) <= limit
        partitions += page
        cursor = next_of(response)
        pages += 1
    assert partitions == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    assert pages == -(-6 // limit)


def test_the_brokers_own_limit_holds_whatever_is_asked(start_broker):
    broker = start_broker({"max.request.partition.size.limit": "2"})
    broker.create("a", 3)
    response = describe(broker, limit=2**31 - 1)
    assert (told(response), next_of(response)) == ([("a", [0, 1])], ("a", 2))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_one(topics, limit):
    assert told(describe(topics, limit=limit)) == [("a", [0])]


def test_unknown_topics_are_told_in_their_place(topics):
    response = describe(topics, "c", "bb", "a", "a", "x/y")
    assert [(topic.name, topic.error_code, topic.topic_id is None) for topic in response.topics] == [
        ("a", ErrorCode.none, False),
        ("bb", ErrorCode.unknown_topic_or_partition, True),
        ("c", ErrorCode.none, False),
        ("x/y", ErrorCode.invalid_topic_exception, True),
    ]
    assert isinstance(response.topics[0].topic_id, UUID)


def test_a_cursor_at_a_topic_that_went_away_goes_on_with_the_next(topics):
    assert told(describe(topics, cursor=("aa", 5))) == [("b", [0, 1]), ("c", [0])]


def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic(topics):
    assert told(describe(topics, cursor=("b", 9))) == [("b", []), ("c", [0])]


def test_a_cursor_that_makes_no_sense_is_refused(topics):
    for response in (describe(topics, "a", cursor=("b", 0)), describe(topics, "a", cursor=("a", -1))):
        assert [(topic.name, topic.error_code) for topic in response.topics] == [("a", ErrorCode.invalid_request)]
