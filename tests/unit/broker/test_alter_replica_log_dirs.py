"""AlterReplicaLogDirs: a broker has one directory, and says so for each partition."""

from types import SimpleNamespace

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import ALTER_REPLICA_LOG_DIRS
from tests.unit.broker.clusters import partition, register, topic_with

DATA = "/var/lib/skep"


@pytest.fixture
def full(broker):
    broker.services.replicas = SimpleNamespace(data_dir=DATA)
    register(broker, 2)
    topic_with(broker, "a", partition([1, 2]), partition([2]))
    return broker


def moved(broker, version, *dirs):
    body = [
        {"path": path, "topics": [{"name": name, "partitions": list(indexes)} for name, indexes in topics.items()]}
        for path, topics in dirs
    ]
    results = broker.ask(ALTER_REPLICA_LOG_DIRS, version, dirs=body).results
    return {(one.topic_name, row.partition_index): row.error_code for one in results for row in one.partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_each_partition_is_told_what_is_wrong_with_its_move(full, version):
    assert moved(full, version, (DATA, {"a": [0, 1, 2], "none": [0]})) == {
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.replica_not_available,
        ("a", 2): ErrorCode.unknown_topic_or_partition,
        ("none", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert moved(full, version, ("/elsewhere", {"a": [0]})) == {("a", 0): ErrorCode.log_dir_not_found}


def test_a_partition_that_is_named_twice_has_the_result_of_the_last(full):
    assert moved(full, 2, ("/elsewhere", {"a": [0]}), (DATA, {"a": [0]})) == {("a", 0): ErrorCode.none}
