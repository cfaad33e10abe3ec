"""What the driver does while a topic that was just created is not known to every broker."""

from types import SimpleNamespace

import pytest

from pyspark_skep.write.partition_access import PartitionAccess
from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.wire.apis import METADATA
from tests.manual_clock import ManualClock


class Cluster(ClusterClient):
    """A cluster of one topic, whose leader responds with these codes, one after the other."""

    def __init__(self, *codes):
        clock = ManualClock()
        super().__init__("b1", timeout_s=5, clock=clock, sleep=lambda s: clock.advance_ms(round(s * 1000)))
        self.codes = list(codes)
        self.has_topic = True
        self.behind = 0
        """How many Metadata responses of the first broker asked still lack the topic."""

    def metadata(self, topics=None):
        self.behind -= 1
        return self._metadata(self.has_topic and self.behind < 0)

    def _metadata(self, has_topic):
        code = ErrorCode.none if has_topic else ErrorCode.unknown_topic_or_partition
        partitions = [SimpleNamespace(partition_index=0, leader_id=1)]
        topic = SimpleNamespace(name="t", topic_id=None, error_code=code, partitions=partitions)
        return SimpleNamespace(brokers=[Node(1, "b1", 9092)], topics=[topic])

    def ask_node(self, node, api, body):
        if api is METADATA:
            return self._metadata(self.has_topic)
        row = SimpleNamespace(partition_index=0, error_code=self.codes.pop(0), offset=7, base_offset=7)
        return SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])],
            responses=[SimpleNamespace(partition_responses=[row])],
        )


def log_start_offset(cluster):
    return PartitionAccess(cluster).log_start_offset("t", 0)


def produce(cluster):
    return PartitionAccess(cluster).produce("t", 0, b"batch", "tx")


REQUESTS = [log_start_offset, produce]


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_a_leader_that_does_not_know_its_topic_yet_is_asked_again(request_of, code):
    assert request_of(Cluster(code, code, ErrorCode.none)) == 7


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_topic_that_is_gone_is_an_error(request_of):
    cluster = Cluster(ErrorCode.unknown_topic_or_partition)
    ask_node = cluster.ask_node

    def ask_and_delete(*asked):
        cluster.has_topic = False
        return ask_node(*asked)

    cluster.ask_node = ask_and_delete
    with pytest.raises(KafkaError) as gone:
        request_of(cluster)
    assert gone.value.code is ErrorCode.unknown_topic_or_partition


def test_a_broker_that_has_not_received_a_new_topic_is_asked_again():
    cluster = Cluster(ErrorCode.none)
    cluster.behind = 2
    assert log_start_offset(cluster) == 7
