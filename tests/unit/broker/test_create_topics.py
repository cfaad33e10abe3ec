"""CreateTopics: what is made, what is answered, and every refusal."""

import asyncio

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, StoreUnavailable
from skep.broker.config.config_entries import TOPIC_OPTIONS, Source
from skep.wire.apis import CREATE_TOPICS

EVERY_VERSION = range(CREATE_TOPICS.oldest, CREATE_TOPICS.newest + 1)


def topic(name="a", partitions=1, replicas=1, assignments=(), configs=()):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments],
        "configs": [{"name": option, "value": text} for option, text in configs],
    }


def by_hand(*assignments):
    return topic(partitions=-1, replicas=-1, assignments=assignments)


def refusal(broker, wanted, version=None):
    (result,) = broker.ask(CREATE_TOPICS, version, topics=[wanted]).topics
    assert wanted["name"] not in broker.image.topics
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_topic_is_there_when_the_response_is(broker, version):
    (result,) = broker.ask(CREATE_TOPICS, version, topics=[topic(partitions=3)]).topics
    assert (result.name, result.error_code, result.error_message) == ("a", ErrorCode.none, None)
    made = broker.image.topics["a"]
    assert [(p.replicas, p.isr, p.leader, p.leader_epoch) for p in made.partitions] == [((1,), (1,), 1, 0)] * 3
    if version >= 7:
        assert result.topic_id == made.topic_id


def test_the_response_has_every_option_in_force_and_where_it_comes_from(start_broker):
    broker = start_broker({"log.retention.hours": "1"})
    (result,) = broker.ask(CREATE_TOPICS, topics=[topic(partitions=2, configs=[("segment.bytes", " 1048576 ")])]).topics
    assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (2, 1, 0)
    configs = {config.name: (config.value, config.config_source) for config in result.configs}
    assert set(configs) == set(TOPIC_OPTIONS)
    assert configs["segment.bytes"] == ("1048576", Source.TOPIC)
    assert configs["retention.ms"] == ("3600000", Source.STATIC_BROKER)
    assert configs["max.message.bytes"] == (str(TopicConfig().max_message_bytes), Source.DEFAULT)
    assert dict(broker.image.topics["a"].config) == {"segment.bytes": "1048576"}


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_minus_one_stands_for_the_defaults(start_broker, version):
    broker = start_broker({"num.partitions": "5"})
    broker.ask(CREATE_TOPICS, version, topics=[topic(partitions=-1, replicas=-1)])
    assert len(broker.image.topics["a"].partitions) == 5


def test_validate_only_checks_and_makes_nothing(broker):
    good, bad = broker.ask(CREATE_TOPICS, topics=[topic("a", 3), topic("b", 0)], validate_only=True).topics
    assert (good.error_code, good.topic_id, good.num_partitions) == (ErrorCode.none, None, 3)
    assert bad.error_code == ErrorCode.invalid_partitions
    assert not broker.image.topics


def test_one_that_is_refused_does_not_keep_the_others_from_being_made(broker):
    results = broker.ask(CREATE_TOPICS, topics=[topic("a"), topic("b", -7), topic("c")]).topics
    assert [result.error_code for result in results] == [ErrorCode.none, ErrorCode.invalid_partitions, ErrorCode.none]
    assert set(broker.image.topics) == {"a", "c"}


def test_a_refusal_has_no_null_configs(broker):
    (result,) = broker.ask(CREATE_TOPICS, topics=[topic(partitions=0)]).topics
    assert (result.configs, result.num_partitions, result.replication_factor) == ((), -1, -1)


def test_the_same_name_twice_is_refused_once_and_the_others_are_made(broker):
    results = broker.ask(CREATE_TOPICS, topics=[topic("a"), topic("b"), topic("a", 2)]).topics
    assert {r.name: r.error_code for r in results} == {"a": ErrorCode.invalid_request, "b": ErrorCode.none}
    assert len(results) == 2
    assert set(broker.image.topics) == {"b"}


def test_a_topic_that_exists_is_refused(broker):
    broker.create("a")
    for validate_only in (True, False):
        (result,) = broker.ask(CREATE_TOPICS, topics=[topic()], validate_only=validate_only).topics
        assert result.error_code == ErrorCode.topic_already_exists
        assert result.error_message == "Topic 'a' already exists."


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_a_bad_name_is_refused(broker, name):
    assert refusal(broker, topic(name))[0] == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (topic(partitions=0), ErrorCode.invalid_partitions, "partitions"),
        (topic(partitions=-2), ErrorCode.invalid_partitions, "partitions"),
        (topic(replicas=0), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic(replicas=-2), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic(replicas=3), ErrorCode.invalid_replication_factor, "only 1 broker(s) are registered"),
        (topic(partitions=2**31 - 1), ErrorCode.policy_violation, "skep.max.partitions=20000"),
        (topic(assignments=[(0, [1])]), ErrorCode.invalid_request, "replication factor was not set to -1"),
        (topic(replicas=-1, assignments=[(0, [1])]), ErrorCode.invalid_request, "numPartitions was not set to -1"),
        (by_hand((0, [1]), (0, [1])), ErrorCode.invalid_replica_assignment, "multiple manual"),
        (by_hand((0, [1]), (2, [1])), ErrorCode.invalid_replica_assignment, "consecutive"),
        (by_hand((1, [1])), ErrorCode.invalid_replica_assignment, "consecutive"),
        (by_hand((0, [7])), ErrorCode.invalid_replica_assignment, "broker 7"),
        (by_hand((0, [1, 1])), ErrorCode.invalid_replica_assignment, "more than once"),
        (by_hand((0, [])), ErrorCode.invalid_replica_assignment, "empty"),
        (topic(configs=[("no.such", "1")]), ErrorCode.invalid_config, "Unknown topic config name: no.such"),
        (topic(configs=[("retention.m", "1")]), ErrorCode.invalid_config, "did you mean retention.ms?"),
        (topic(configs=[("retention.ms", "soon")]), ErrorCode.invalid_config, "retention.ms=soon"),
        (topic(configs=[("retention.ms", "-2")]), ErrorCode.invalid_config, "retention.ms=-2"),
        (topic(configs=[("retention.ms", None)]), ErrorCode.invalid_config, "retention.ms"),
        (topic(configs=[("retention.ms", "1"), ("retention.ms", "2")]), ErrorCode.invalid_request, "retention.ms"),
    ],
)
def test_what_cannot_be_is_refused_and_the_message_says_why(broker, wanted, code, says):
    told, message = refusal(broker, wanted)
    assert told == code
    assert says in message


def test_replicas_chosen_by_hand_are_taken_in_the_order_of_the_partitions(broker):
    (result,) = broker.ask(CREATE_TOPICS, 2, topics=[by_hand((1, [1]), (0, [1]))]).topics
    assert result.error_code == ErrorCode.none
    assert [partition.replicas for partition in broker.image.topics["a"].partitions] == [(1,), (1,)]


def test_the_limit_holds_for_all_topics_together(start_broker):
    broker = start_broker({"skep.max.partitions": "10"})
    broker.create("a", 7)
    assert refusal(broker, topic("b", 4))[0] == ErrorCode.policy_violation
    broker.create("c", 3)


def test_the_limit_holds_for_requests_that_come_all_at_once(start_broker):
    broker = start_broker({"skep.max.partitions": "10"})

    async def at_once():
        asked = (broker.ask_async(CREATE_TOPICS, topics=[topic(f"t{i}", 4)]) for i in range(20))
        return [response.topics[0].error_code for response in await asyncio.gather(*asked)]

    assert sorted(broker.run(at_once())) == [ErrorCode.none] * 2 + [ErrorCode.policy_violation] * 18
    broker.create("u", 2)


def test_a_creation_that_failed_gives_its_room_back(start_broker, monkeypatch):
    broker = start_broker({"skep.max.partitions": "10"})

    async def unavailable(*args, **kwargs):
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(broker.services.catalog, "create_topic", unavailable)
        assert refusal(broker, topic("a", 10)) == (ErrorCode.coordinator_not_available, "disk full")
    broker.create("a", 10)


def test_a_message_that_quotes_a_huge_name_still_fits_an_old_string(broker):
    code, message = refusal(broker, topic(configs=[("n" * 32_000, "1"), ("m" * 32_000, "1")]), 2)
    assert code == ErrorCode.invalid_config
    assert len(message) < 2000


def test_compaction_lags_that_contradict_each_other_are_refused(broker):
    lags = [("min.compaction.lag.ms", "2000"), ("max.compaction.lag.ms", "1000")]
    code, message = refusal(broker, topic(configs=lags))
    assert code == ErrorCode.invalid_config
    assert "min.compaction.lag.ms=2000" in message
