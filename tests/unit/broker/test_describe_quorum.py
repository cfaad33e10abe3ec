"""DescribeQuorum: the controller as the leader, and a voter for each broker."""

import pytest

from skep.base.errors import ErrorCode
from skep.metadata.model import ControllerRecord
from skep.wire.apis import DESCRIBE_QUORUM
from tests.unit.broker.clusters import register

METADATA = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}


def controlled_by(broker, controller):
    current = broker.services.catalog._current
    current.set_image(current.image.with_controller(controller))


@pytest.mark.parametrize("version", range(DESCRIBE_QUORUM.oldest, DESCRIBE_QUORUM.newest + 1))
def test_the_controller_leads_and_every_broker_is_a_voter(broker, version):
    register(broker, 2, 3)
    controlled_by(broker, ControllerRecord(2, 7))
    response = broker.ask(DESCRIBE_QUORUM, version, topics=[METADATA])
    assert response.error_code is ErrorCode.none
    [topic] = response.topics
    [quorum] = topic.partitions
    assert (topic.topic_name, quorum.partition_index, quorum.error_code) == ("__cluster_metadata", 0, ErrorCode.none)
    assert (quorum.leader_id, quorum.leader_epoch) == (2, 7)
    assert sorted(voter.replica_id for voter in quorum.current_voters) == [1, 2, 3]
    assert quorum.observers == ()
    if version >= 2:
        assert [(node.node_id, node.listeners[0].port) for node in response.nodes if node.node_id == 1] == [(1, 9092)]


def test_a_single_broker_is_its_own_quorum(broker):
    [topic] = broker.ask(DESCRIBE_QUORUM, topics=[METADATA]).topics
    [quorum] = topic.partitions
    assert (quorum.leader_id, [voter.replica_id for voter in quorum.current_voters]) == (1, [1])


def test_without_a_controller_clients_are_told_to_retry(broker):
    register(broker, 2)
    controlled_by(broker, None)
    response = broker.ask(DESCRIBE_QUORUM, topics=[METADATA])
    assert response.error_code is ErrorCode.not_leader_or_follower
    assert "no controller" in response.error_message


def test_other_partitions_have_no_quorum(broker):
    asked = {"topic_name": "orders", "partitions": [{"partition_index": 3}]}
    [topic] = broker.ask(DESCRIBE_QUORUM, topics=[asked]).topics
    [partition] = topic.partitions
    assert (partition.partition_index, partition.error_code) == (3, ErrorCode.unknown_topic_or_partition)
    assert "__cluster_metadata" in partition.error_message
