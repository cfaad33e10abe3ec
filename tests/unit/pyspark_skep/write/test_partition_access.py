"""What the driver does while a topic that was just made is not known to every broker."""

from types import SimpleNamespace
from uuid import uuid4

import pytest

from pyspark_skep.write import partition_access
from pyspark_skep.write.partition_access import PartitionAccess
from skep.base.errors import ErrorCode, KafkaError


class Cluster:
    """As much of a ``ClusterClient`` as is asked for; the leader answers with these codes, one after the other."""

    timeout_s = 5.0

    def __init__(self, *codes):
        self.codes = list(codes)

    def ask_node(self, node, api, body):
        row = SimpleNamespace(error_code=self.codes.pop(0), offset=7)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[row])])

    def look_elsewhere(self):
        pass


@pytest.fixture
def is_there(monkeypatch):
    """Whether Metadata names the topic."""
    state = SimpleNamespace(value=True)

    def place_of(cluster, topic, partition):
        if not state.value:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"no topic '{topic}'")
        return uuid4(), 1

    monkeypatch.setattr(partition_access, "place_of", place_of)
    monkeypatch.setattr(
        partition_access, "Patience", lambda cluster, timeout_s, what: SimpleNamespace(wait=lambda why: None)
    )
    return state


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_a_leader_that_has_not_heard_of_its_topic_yet_is_asked_again(is_there, code):
    assert PartitionAccess(Cluster(code, code, ErrorCode.none)).log_start_offset("t", 0) == 7


def test_a_topic_that_is_gone_is_an_error(is_there):
    cluster = Cluster(ErrorCode.unknown_topic_or_partition)
    ask_node = cluster.ask_node

    def ask_and_delete(*asked):
        is_there.value = False
        return ask_node(*asked)

    cluster.ask_node = ask_and_delete
    with pytest.raises(KafkaError) as gone:
        PartitionAccess(cluster).log_start_offset("t", 0)
    assert gone.value.code is ErrorCode.unknown_topic_or_partition
