"""Where CreateTopics and CreatePartitions put replicas when there are several brokers."""

from collections import Counter

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS
from tests.unit.broker.clusters import kill, partitions_of, register


@pytest.fixture
def three(broker):
    register(broker, 2, 3)
    return broker


def create(broker, name, partitions=1, replicas=1):
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": replicas}
    (result,) = broker.ask(CREATE_TOPICS, topics=[wanted]).topics
    return result.error_code


def leaders(broker, name):
    return [partition.leader for partition in partitions_of(broker, name)]


def test_topics_of_one_partition_are_spread(three):
    for number in range(6):
        assert create(three, f"t{number}") == ErrorCode.none
    assert Counter(leaders(three, f"t{number}")[0] for number in range(6)) == {1: 2, 2: 2, 3: 2}


def test_copies_are_on_different_brokers_and_leaders_are_even(three):
    create(three, "a", partitions=6, replicas=2)
    assert Counter(leaders(three, "a")) == {1: 2, 2: 2, 3: 2}
    assert all(len(set(partition.replicas)) == 2 == len(partition.isr) for partition in partitions_of(three, "a"))


def test_a_topic_that_grows_goes_on_behind_its_last_leader(three):
    create(three, "a")
    create(three, "between", partitions=2)
    (first,) = leaders(three, "a")
    three.ask(CREATE_PARTITIONS, topics=[{"name": "a", "count": 3, "assignments": None}])
    assert sorted(leaders(three, "a")) == [1, 2, 3]
    assert leaders(three, "a")[0] == first


def test_brokers_that_stop_or_are_away_get_nothing(three):
    register(three, 4, stopping=True)
    kill(three, 3)
    create(three, "a", partitions=10)
    assert set(leaders(three, "a")) == {1, 2}
    assert create(three, "b", replicas=3) == ErrorCode.invalid_replication_factor
