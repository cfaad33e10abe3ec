"""Elections and reassignments as clients ask for them: confluent-kafka and kafka-python against one broker.

With one broker there is nobody to elect and nowhere to go, so these are the answers that say so.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import InvalidReplicationAssignmentError, NoReassignmentInProgressError

from tests.compat.clients import PATIENCE_S


@pytest.fixture
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


@pytest.fixture
def kafka_python(servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers)
    yield client
    client.close()


@pytest.fixture
def two_partitions(admin: AdminClient, topic: str) -> str:
    for future in admin.create_topics([NewTopic(topic, 2)]).values():
        future.result(PATIENCE_S)
    return topic


@pytest.mark.parametrize("kind", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_an_election_that_is_not_needed_is_told_as_that(
    admin: AdminClient, two_partitions: str, kind: ElectionType
) -> None:
    asked = [TopicPartition(two_partitions, number) for number in range(3)]
    answers = admin.elect_leaders(kind, asked).result(PATIENCE_S)
    codes = {asked.partition: error and error.code() for asked, error in answers.items()}
    assert codes == {
        0: KafkaError.ELECTION_NOT_NEEDED,
        1: KafkaError.ELECTION_NOT_NEEDED,
        2: KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


def test_an_election_for_all_leaves_out_what_needs_none(admin: AdminClient, two_partitions: str) -> None:
    answers = admin.elect_leaders(ElectionType.PREFERRED, None).result(PATIENCE_S)
    assert two_partitions not in {asked.topic for asked in answers}


def test_reassignments_are_asked_for_and_listed_by_kafka_python(
    kafka_python: KafkaAdminClient, servers: str, two_partitions: str
) -> None:
    first, second = (KafkaPythonPartition(two_partitions, number) for number in (0, 1))
    (node,) = kafka_python.describe_cluster()["brokers"]
    here = node["broker_id"]
    assert kafka_python.alter_partition_reassignments({first: [here], second: [here + 1]}) == {
        first: None,
        second: InvalidReplicationAssignmentError,
    }
    assert kafka_python.alter_partition_reassignments({first: None}) == {first: NoReassignmentInProgressError}
    assert kafka_python.list_partition_reassignments() == {}
