"""Expressions that are matched with very many topics, or at great cost: a little at a time, while the group goes on."""

import pytest

from skep.base.errors import ErrorCode
from skep.coordination.groups.topic_patterns import topic_matches
from skep.coordination.groups.topic_patterns import topic_pattern as topic_matching
from skep.coordination.groups.topic_patterns.topic_pattern import TopicPattern, topic_pattern
from tests.unit.coordination.groups.consumer_clients import World, refusal, settle

TOPICS = 40


@pytest.fixture(autouse=True)
def little_at_a_time(monkeypatch):
    """Two names of nine characters in an operation."""
    monkeypatch.setattr(topic_matches, "STEPS_AT_ONCE", 1)
    monkeypatch.setattr(topic_matching, "CHARACTERS_AT_ONCE", 17)


def many_topics() -> World:
    return World(**{f"orders-{number:02}": 1 for number in range(TOPICS)})


def operations_until_matched(world: World) -> int:
    operations = 0
    while world.group().matches is not None:
        [operation] = world.driver.timers.take_due()
        world.driver.submit(operation)
        operations += 1
    return operations


def test_a_member_gets_its_topics_when_all_have_been_looked_at():
    world = many_topics()
    client = world.client("a", regex="orders-.*").join()
    assert client.epoch == 1
    assert not client.owned
    world.driver.clock.advance_ms(1)
    for _ in range(3):
        client.beat()
    assert client.epoch == 1
    assert not client.owned
    assert operations_until_matched(world) == TOPICS // 2 + 1
    client.beat()
    assert client.epoch == 2
    assert len(client.owned) == TOPICS


def test_topics_that_come_meanwhile_are_found_by_the_next_heartbeat():
    world = many_topics()
    client = world.client("a", regex="orders-.*").join()
    world.create("orders-new", 1)
    world.delete("orders-00")
    world.driver.pass_ms(0)
    assert world.group().regexes["orders-.*"] >= {"orders-00", "orders-01"}
    settle(client, rounds=3)
    world.driver.pass_ms(0)
    settle(client, rounds=3)
    assert world.group().regexes["orders-.*"] == set(world.image.topics)
    assert len(client.owned) == TOPICS


def test_an_expression_that_comes_meanwhile_is_matched_with_the_others():
    world = many_topics()
    first = world.client("a", regex="orders-0.*").join()
    second = world.client("b", regex="orders-1.*").join()
    world.driver.pass_ms(0)
    settle(first, second)
    assert [len(client.owned) for client in (first, second)] == [10, 10]


def test_matching_ends_with_the_last_member_or_goes_on_with_the_others():
    world = many_topics()
    first = world.client("a", regex="orders-0.*").join()
    second = world.client("b", regex="orders-1.*").join()
    first.leave()
    world.driver.pass_ms(0)
    assert set(world.group().regexes) == {"orders-1.*"}
    second.leave()
    third = world.client("c", regex="orders-2.*").join()
    third.leave()
    world.driver.pass_ms(0)
    assert world.group().matches is None
    assert not world.group().regexes


def test_what_cannot_be_written_is_written_later():
    world = many_topics()
    client = world.client("a", regex="orders-.*").join()
    world.driver.refuse_writes = topic_matches.KafkaError(ErrorCode.coordinator_not_available)
    world.driver.pass_ms(100)
    assert world.group().matches is not None
    world.driver.refuse_writes = None
    world.driver.pass_ms(1_000)
    client.beat()
    assert len(client.owned) == TOPICS


def test_an_expression_that_takes_too_many_steps_is_refused_and_the_others_are_served(monkeypatch):
    monkeypatch.setattr(topic_matching, "MAX_STEPS", 300)
    topic_pattern.cache_clear()
    hostile = "(.?[o-s]?.{0,9}){1,9}x"
    world = many_topics()
    costly, other = world.client("a", regex=hostile).join(), world.client("b", regex="orders-.*").join()
    world.driver.pass_ms(0)
    assert refusal(world, "a", costly.epoch) is ErrorCode.invalid_regular_expression
    assert refusal(world, "c", 0, topic_regex=hostile, rebalance_timeout_ms=1, owned={}) is (
        ErrorCode.invalid_regular_expression
    )
    for _ in range(2):
        world.driver.pass_ms(30_000)
        settle(other)
    assert set(world.group().members) == {"b"}
    assert len(other.owned) == TOPICS
    topic_pattern.cache_clear()


def test_a_costly_match_can_be_interrupted_inside_a_name(monkeypatch):
    monkeypatch.undo()
    pattern = TopicPattern("(.?[a-d]?.{0,90}){1,20}x")
    work = pattern.match_all(["abcdefgh" * 30])
    pauses = 0
    with pytest.raises(topic_matches.KafkaError, match="more than 200000 steps"):
        while True:
            next(work)
            pauses += 1
    assert pauses > 20
    assert pattern.is_too_costly


def matched(topics, topic_filter=None):
    matches = topic_matches.TopicMatches(dict.fromkeys(topics), dict.fromkeys(["orders-a"]), topic_filter)
    matches.add("orders-.*", frozenset())
    while not matches.is_done:
        matches.go_on()
    return matches.found["orders-.*"]


def test_topics_that_a_member_may_not_know_do_not_match():
    topics = ["orders-a", "orders-b", "orders-secret"]
    visible = topic_matches.TopicFilter(1, lambda name: "secret" not in name)
    # Without a filter only what is new is matched; what was hidden before may be visible with another filter.
    assert matched(topics) == {"orders-b", "orders-secret"}
    assert matched(topics, visible) == {"orders-a", "orders-b"}
