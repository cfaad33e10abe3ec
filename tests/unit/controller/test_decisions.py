"""Decisions over a whole image: which topics change, when leaders go back, what is told about it."""

import asyncio

import pytest

from skep.base.loop.slicer import Slicer, run_at_once
from skep.controller import decisions
from skep.controller.decisions import PARTITIONS_PER_STEP, is_unclean, left_to_hand_over
from skep.metadata.model import NO_LEADER
from tests.manual_clock import TickingClock
from tests.slices import counting_turns
from tests.unit.controller.clusters import broker, image, partition, topic


def clean(_):
    return False


def changed_topics(*args):
    return run_at_once(decisions.changed_topics(*args))


def preferred_elections(*args, **options):
    return run_at_once(decisions.preferred_elections(*args, **options))


def describe(*args):
    return run_at_once(decisions.describe(*args))


def test_only_topics_in_which_something_changes_are_written():
    cluster = image([2, 3], topic("a", partition([1, 2])), topic("b", partition([2, 3])), topic("c", partition([3, 2])))
    (changed,) = changed_topics(cluster, cluster.topics.values(), clean)
    assert (changed.name, changed.partitions) == (
        "a",
        (partition([1, 2], isr=[2], leader=2, epoch=6, last_isr=[1, 2]),),
    )
    assert (changed.topic_id, changed.version) == (cluster.topics["a"].topic_id, 1)


def test_only_the_topics_given_are_looked_at():
    cluster = image([2], topic("a", partition([1, 2])), topic("b", partition([1, 2])))
    assert [one.name for one in changed_topics(cluster, [cluster.topics["b"]], clean)] == ["b"]


def test_each_topic_decides_for_itself_whether_records_may_be_lost():
    unclean = {"unclean.leader.election.enable": "true"}
    careful = {"unclean.leader.election.enable": "false"}
    topics = [topic("a", partition([1, 2], isr=[1]), **unclean), topic("b", partition([1, 2], isr=[1]))]
    topics.append(topic("c", partition([1, 2], isr=[1]), **careful))
    cluster = image([2], *topics)
    for default, leaders in ((False, [2, NO_LEADER, NO_LEADER]), (True, [2, 2, NO_LEADER])):
        changed = changed_topics(
            cluster, cluster.topics.values(), lambda one, default=default: is_unclean(one, default)
        )
        assert [one.partitions[0].leader for one in changed] == leaders


def test_a_reassignment_whose_last_copy_is_in_sync_is_finished_in_the_same_pass():
    moving = partition([3, 1, 2], isr=[1, 2, 3], leader=1, adding=[3], removing=[1, 2])
    cluster = image([1, 2, 3], topic("a", moving))
    (changed,) = changed_topics(cluster, cluster.topics.values(), clean)
    assert changed.partitions == (partition([3], epoch=6),)


def test_leaders_go_back_to_the_first_replica():
    cluster = image([1, 2], topic("a", partition([1, 2], leader=2), partition([2, 1])), topic("b", partition([2, 1])))
    (changed,) = preferred_elections(cluster)
    assert changed.name == "a"
    assert [one.leader for one in changed.partitions] == [1, 2]
    assert changed.partitions[1] is cluster.topics["a"].partitions[1]


def test_leaders_go_back_only_in_the_topics_named():
    cluster = image([1, 2], topic("a", partition([1, 2], leader=2)), topic("b", partition([1, 2], leader=2)))
    assert [one.name for one in preferred_elections(cluster, only={"b"})] == ["b"]


@pytest.mark.parametrize(("elsewhere", "moves"), [(1, 0), (2, 2), (10, 10)])
def test_a_broker_that_lacks_little_of_what_it_should_lead_is_left_alone(elsewhere, moves):
    away = [topic(f"away-{n}", partition([1, 2], leader=2)) for n in range(elsewhere)]
    home = [topic(f"home-{n}", partition([1, 2])) for n in range(10 - elsewhere)]
    assert len(preferred_elections(image([1, 2], *away, *home), above_percentage=10)) == moves


def test_what_a_stopping_broker_still_has_to_hand_over_is_what_others_could_take():
    topics = [
        topic("taken", partition([1, 2])),
        topic("nobody in sync", partition([1, 2], isr=[1])),
        topic("the other is dead", partition([1, 9])),
        topic("the other stops too", partition([1, 3])),
        topic("led by another", partition([2, 1])),
    ]
    cluster = image([broker(1, stopping=True), 2, broker(3, stopping=True)], *topics)
    assert left_to_hand_over(cluster, 1) == 1
    changed = changed_topics(cluster, cluster.topics.values(), clean)
    assert left_to_hand_over(cluster.with_topics(changed), 1) == 0


def test_the_log_line_counts_what_was_done_and_names_who_may_lack_records():
    before = [
        topic("a", partition([1, 2, 3]), partition([2, 3])),
        topic("b", partition([1])),
        topic("c", partition([1, 2], isr=[1])),
        topic("d", partition([3, 2], isr=[3, 2], leader=2, removing=[2])),
    ]
    cluster = image([2, 3], *before)
    after = changed_topics(cluster, before, lambda one: one.name == "c")
    assert describe(before, after) == (
        "4 partitions changed, 3 new leaders, 3 left an ISR, 1 reassigned, 1 without a leader; "
        "leaders that may lack committed records: c-0"
    )


@pytest.mark.parametrize("per_topic", [1, 100])
def test_ten_thousand_partitions_are_decided_at_once(per_topic):
    """A broker that led a third of them dies; how long that takes is a row of the bench."""
    replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    topics = [
        topic(f"t{n}", *(partition(replicas[(n + index) % 3]) for index in range(per_topic)))
        for n in range(10_000 // per_topic)
    ]
    cluster = image([2, 3], *topics)
    changed = changed_topics(cluster, topics, clean)
    assert sum(len(one.partitions) for one in changed) == 10_000


@pytest.mark.parametrize("per_topic", [1, 100 * PARTITIONS_PER_STEP])
@pytest.mark.parametrize("what", ["changed topics", "preferred elections", "waited for", "described"])
def test_decisions_over_many_partitions_leave_turns_to_others(what, per_topic):
    count = 100 * PARTITIONS_PER_STEP if per_topic > 1 else 100
    topics = [topic(f"t{n}", *[partition([1, 2], leader=2)] * per_topic) for n in range(count // per_topic)]
    cluster = image([1, 2], *topics)
    work = {
        "changed topics": decisions.changed_topics(cluster, topics, clean),
        "preferred elections": decisions.preferred_elections(cluster),
        "waited for": decisions.awaited_brokers(cluster),
        "described": decisions.describe(topics, topics),
    }[what]

    async def scenario():
        _, turns = await counting_turns(Slicer(TickingClock()).finish(work))
        assert turns > 10

    asyncio.run(scenario())
