"""ElectLeaders: preferred and unclean, by name and for all."""

import asyncio
from datetime import timedelta

import pytest

from skep.base.errors import ErrorCode
from skep.metadata.model import NO_LEADER, LogReport
from skep.wire.apis import ELECT_LEADERS
from tests.unit.broker.clusters import kill, partition, partitions_of, register, set_partitions, topic_with

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def two(broker):
    register(broker, 2)
    return broker


def elect(broker, wanted, kind=PREFERRED, version=2, timeout_s=0):
    topics = wanted and [{"topic": name, "partitions": indexes} for name, indexes in wanted.items()]
    fields = {"election_type": kind} if version > 0 else {}
    fields["timeout"] = timedelta(seconds=timeout_s)
    response = broker.ask(ELECT_LEADERS, version, topic_partitions=topics, **fields)
    if version > 0:
        assert response.error_code == ErrorCode.none
    return {
        (topic.topic, one.partition_id): one.error_code
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_first_replica_leads_again(two, version):
    topic_with(two, "a", partition([2, 1], leader=1), partition([1, 2], leader=2), partition([1, 2]))
    assert elect(two, {"a": [0, 2]}, version=version) == {
        ("a", 0): ErrorCode.none,
        ("a", 2): ErrorCode.election_not_needed,
    }
    assert [(one.leader, one.leader_epoch) for one in partitions_of(two, "a")] == [(2, 1), (2, 0), (1, 0)]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (partition([2, 1], isr=[1], leader=1), ErrorCode.preferred_leader_not_available),
        (partition([9, 1], leader=1), ErrorCode.preferred_leader_not_available),
        (partition([9, 1], leader=9), ErrorCode.preferred_leader_not_available),
        (partition([2, 1], leader=NO_LEADER), ErrorCode.none),
        (partition([3, 1], leader=1), ErrorCode.preferred_leader_not_available),
    ],
)
def test_a_first_replica_that_is_away_or_not_in_sync_or_stopping_does_not_lead(two, record, code):
    register(two, 3, stopping=True)
    topic_with(two, "a", record)
    assert elect(two, {"a": [0]}) == {("a", 0): code}
    assert (partitions_of(two, "a") == [record]) is (code != ErrorCode.none)


def test_what_does_not_exist_is_refused_and_the_rest_done(two):
    topic_with(two, "a", partition([2, 1], leader=1))
    assert elect(two, {"b": [0], "a": [0, 1, -1]}) == {
        ("b", 0): ErrorCode.unknown_topic_or_partition,
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.unknown_topic_or_partition,
        ("a", -1): ErrorCode.unknown_topic_or_partition,
    }


def test_null_means_all_and_leaves_out_what_needs_no_election(two):
    topic_with(two, "a", partition([2, 1], leader=1), partition([1, 2]))
    topic_with(two, "b", partition([1, 2]))
    topic_with(two, "c", partition([9, 1], leader=1))
    versions = {name: topic.version for name, topic in two.image.topics.items()}
    assert elect(two, None) == {
        ("a", 0): ErrorCode.none,
        ("c", 0): ErrorCode.preferred_leader_not_available,
    }
    changed = {name for name, topic in two.image.topics.items() if topic.version != versions[name]}
    assert changed == {"a"}


def test_an_unclean_election_takes_whoever_is_there_and_only_where_nobody_leads(two):
    topic_with(
        two,
        "a",
        partition([9, 2], isr=[9], leader=NO_LEADER),
        partition([9, 1], isr=[9], leader=9),
        partition([9, 1, 2], isr=[9, 2], leader=9),
        partition([1, 2]),
        partition([9], leader=NO_LEADER),
    )
    assert elect(two, {"a": [0, 1, 2, 3, 4]}, UNCLEAN) == {
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.none,
        ("a", 2): ErrorCode.none,
        ("a", 3): ErrorCode.election_not_needed,
        ("a", 4): ErrorCode.eligible_leaders_not_available,
    }
    assert partitions_of(two, "a") == [
        partition([9, 2], isr=[2], leader=2, epoch=1),
        partition([9, 1], isr=[1], leader=1, epoch=1),
        partition([9, 1, 2], isr=[2], leader=2, epoch=1, last_isr=[9, 2]),
        partition([1, 2]),
        partition([9], leader=NO_LEADER),
    ]


def test_an_unclean_election_waits_until_every_live_replica_has_said_how_long_its_log_is(two):
    short, long = LogReport(1, two.services.node.epoch, 4, 900), LogReport(2, two.image.brokers[2].epoch, 4, 1000)
    undecided = partition([9, 1, 2], isr=[9], leader=NO_LEADER, epoch=5, reports=[short])
    topic_with(two, "a", undecided)
    waiting = two.run(_started(two.ask_async(ELECT_LEADERS, **_unclean("a", timeout_s=60))))
    assert partitions_of(two, "a") == [undecided], "broker 2 is there and has said nothing"

    set_partitions(two, "a", undecided.with_report(long))
    two.run(asyncio.wait_for(waiting, 30))
    assert partitions_of(two, "a")[0].leader == 2


def test_an_unclean_election_passes_over_who_says_nothing_in_time(two):
    reported = LogReport(1, two.services.node.epoch, 4, 900)
    topic_with(two, "a", partition([9, 2, 1], isr=[9], leader=NO_LEADER, epoch=5, reports=[reported]))
    waiting = two.run(_started(two.ask_async(ELECT_LEADERS, **_unclean("a", timeout_s=60))))
    two.services.clock.advance_ms(30_000)
    two.run(asyncio.wait_for(waiting, 30))
    assert partitions_of(two, "a")[0].leader == 1


def _unclean(topic, timeout_s):
    wanted = [{"topic": topic, "partitions": [0]}]
    return {"election_type": UNCLEAN, "topic_partitions": wanted, "timeout": timedelta(seconds=timeout_s)}


async def _started(work):
    """The task of ``work``, which waits for something by now."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.2)
    assert not task.done()
    return task


def test_another_kind_of_election_is_refused_as_a_whole(two):
    topic_with(two, "a", partition([2, 1], leader=1))
    response = two.ask(ELECT_LEADERS, election_type=2, topic_partitions=[{"topic": "a", "partitions": [0]}])
    assert response.error_code == ErrorCode.invalid_request
    assert partitions_of(two, "a")[0].leader == 1


def test_a_broker_that_died_meanwhile_is_not_elected(two):
    topic_with(two, "a", partition([2, 1], leader=1))
    kill(two, 2)
    assert elect(two, {"a": [0]}) == {("a", 0): ErrorCode.preferred_leader_not_available}
