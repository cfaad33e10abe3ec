"""UnregisterBroker: forgets who is gone for good, and nobody else."""

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import UNREGISTER_BROKER
from tests.unit.broker.clusters import kill, partition, partitions_of, register, topic_with


def unregister(broker, number):
    response = broker.ask(UNREGISTER_BROKER, broker_id=number)
    return response.error_code, response.error_message


@pytest.mark.parametrize("number", [1, 2])
def test_a_running_broker_is_not_forgotten(broker, number):
    register(broker, 2)
    code, message = unregister(broker, number)
    assert (code, message) == (ErrorCode.invalid_request, f"Broker {number} is running; stop it first.")


def test_one_that_nothing_is_known_of_is_told_as_that(broker):
    assert unregister(broker, 7)[0] == ErrorCode.broker_id_not_registered


def test_nobody_waits_any_more_for_it_to_remove_the_files_of_deleted_topics(broker):
    register(broker, 2, 3)
    topic_with(broker, "a", partition([2, 3]))
    topic_with(broker, "b", partition([2]))
    catalog = broker.services.catalog
    ids = {name: topic.topic_id for name, topic in broker.image.topics.items()}
    for name in ids:
        broker.run(catalog.delete_topic(name))
    kill(broker, 2)
    assert unregister(broker, 2) == (ErrorCode.none, None)
    assert catalog.deletions_waiting_for(2) == []
    assert catalog.deletions_waiting_for(3) == [ids["a"]]
    assert unregister(broker, 2)[0] == ErrorCode.broker_id_not_registered


def test_a_partition_keeps_it_as_a_replica(broker):
    register(broker, 2)
    topic_with(broker, "a", partition([2, 1]))
    kill(broker, 2)
    assert unregister(broker, 2) == (ErrorCode.none, None)
    assert partitions_of(broker, "a") == [partition([2, 1])]
