"""CreatePartitions: topics grow, never shrink, and every refusal is answered under the topic's name."""

import pytest

from skep.base.errors import ErrorCode
from skep.wire.apis import CREATE_PARTITIONS

EVERY_VERSION = range(CREATE_PARTITIONS.oldest, CREATE_PARTITIONS.newest + 1)


def grow(name="a", count=3, assignments=None):
    lists = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
    return {"name": name, "count": count, "assignments": lists}


def sizes(broker):
    return {name: len(topic.partitions) for name, topic in broker.image.topics.items()}


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_topic_grows_to_the_number_given(broker, version):
    broker.create("a", 2)
    (result,) = broker.ask(CREATE_PARTITIONS, version, topics=[grow(count=5)]).results
    assert (result.name, result.error_code, result.error_message) == ("a", ErrorCode.none, None)
    assert sizes(broker) == {"a": 5}


def test_replicas_can_be_chosen_for_the_new_partitions(broker):
    broker.create("a", 1)
    (result,) = broker.ask(CREATE_PARTITIONS, topics=[grow(count=3, assignments=[[1], [1]])]).results
    assert result.error_code == ErrorCode.none
    assert sizes(broker) == {"a": 3}


def test_validate_only_answers_the_same_and_changes_nothing(broker):
    broker.create("a", 2)
    results = broker.ask(CREATE_PARTITIONS, topics=[grow(count=3), grow("b")], validate_only=True).results
    assert [(r.name, r.error_code) for r in results] == [("a", 0), ("b", ErrorCode.unknown_topic_or_partition)]
    assert sizes(broker) == {"a": 2}


@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (grow("b"), ErrorCode.unknown_topic_or_partition, "'b' does not exist"),
        (grow(count=2), ErrorCode.invalid_partitions, "Topic already has 2 partition(s)."),
        (grow(count=1), ErrorCode.invalid_partitions, "currently has 2 partition(s); 1 would not be an increase."),
        (grow(count=-1), ErrorCode.invalid_partitions, "would not be an increase"),
        (grow(count=2**31 - 1), ErrorCode.policy_violation, "skep.max.partitions"),
        (grow(count=4, assignments=[[1]]), ErrorCode.invalid_replica_assignment, "add 2 additional"),
        (grow(count=3, assignments=[]), ErrorCode.invalid_replica_assignment, "only 0 assignment(s)"),
        (grow(count=3, assignments=[[9]]), ErrorCode.invalid_replica_assignment, "broker 9"),
        (grow(count=3, assignments=[[1, 1]]), ErrorCode.invalid_replica_assignment, "more than once"),
        (grow(count=3, assignments=[[]]), ErrorCode.invalid_replica_assignment, "empty"),
    ],
)
def test_what_cannot_be_is_refused_and_the_message_says_why(broker, wanted, code, says):
    broker.create("a", 2)
    (result,) = broker.ask(CREATE_PARTITIONS, topics=[wanted]).results
    assert (result.name, result.error_code) == (wanted["name"], code)
    assert says in result.error_message
    assert sizes(broker) == {"a": 2}


def test_the_same_name_twice_is_refused_and_the_others_grow(broker):
    broker.create("a", 1)
    broker.create("b", 1)
    results = broker.ask(CREATE_PARTITIONS, topics=[grow("a", 2), grow("b", 2), grow("a", 3)]).results
    assert {r.name: r.error_code for r in results} == {"a": ErrorCode.invalid_request, "b": ErrorCode.none}
    assert sizes(broker) == {"a": 1, "b": 2}


def test_the_limit_counts_what_is_there(start_broker):
    broker = start_broker({"skep.max.partitions": "5"})
    broker.create("a", 2)
    broker.create("b", 2)
    first, second = broker.ask(CREATE_PARTITIONS, topics=[grow("a", 3), grow("b", 3)]).results
    assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.policy_violation)
