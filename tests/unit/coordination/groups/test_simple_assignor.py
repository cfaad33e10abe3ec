"""The assignor of share groups: every partition has a member, loads are even, and what need not move stays."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from skep.base.loop.slicer import run_at_once
from skep.coordination.groups.assignors import simple
from skep.coordination.groups.assignors.spec import Subscriber

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]
MEMBERS = [f"m{number}" for number in range(9)]

some_partitions = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1))


def assigned(subscribers, assignable):
    return run_at_once(simple.assign(subscribers, assignable))


@st.composite
def groups(draw, *, is_homogeneous=False):
    """Members with subscriptions and whatever they had before, sensible or not."""
    assignable = draw(some_partitions)
    subscription = st.frozensets(st.sampled_from(TOPICS))
    shared = draw(subscription)
    subscribers = {
        member: Subscriber(None, shared if is_homogeneous else draw(subscription), draw(some_partitions))
        for member in draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    }
    return subscribers, assignable


def after(subscribers, assignment):
    return {member: subscriber._replace(partitions=assignment[member]) for member, subscriber in subscribers.items()}


def sizes(assignment):
    return [sum(map(len, partitions.values())) for partitions in assignment.values()]


def members_of(assignment):
    """How many members each partition has."""
    counts = {}
    for partitions in assignment.values():
        for topic, numbers in partitions.items():
            for number in numbers:
                counts[topic, number] = counts.get((topic, number), 0) + 1
    return counts


@given(groups())
def test_every_partition_has_a_member_that_subscribes_to_it(group):
    subscribers, assignable = group
    assignment = assigned(subscribers, assignable)
    assert assignment.keys() == subscribers.keys()
    for member, partitions in assignment.items():
        assert partitions.keys() <= subscribers[member].topic_ids
        assert all(partitions.values())
    wanted = frozenset().union(*(subscriber.topic_ids for subscriber in subscribers.values()))
    everything = {(topic, number) for topic in wanted & assignable.keys() for number in assignable[topic]}
    assert members_of(assignment).keys() == everything


@given(groups(is_homogeneous=True))
def test_loads_differ_by_at_most_one_and_no_partition_has_more_members_than_needed(group):
    subscribers, assignable = group
    assignment = assigned(subscribers, assignable)
    assert max(sizes(assignment)) - min(sizes(assignment)) <= 1
    if counts := members_of(assignment):
        assert max(counts.values()) <= -(-len(subscribers) // len(counts))
        assert min(sizes(assignment)) >= 1 or len(subscribers) < len(counts)


@given(groups())
def test_each_topic_is_divided_evenly_among_its_subscribers(group):
    subscribers, assignable = group
    assignment = assigned(subscribers, assignable)
    if len({subscriber.topic_ids for subscriber in subscribers.values()}) == 1:
        return  # then all topics together are
    for topic in TOPICS:
        loads = [
            len(assignment[member].get(topic, ()))
            for member, subscriber in subscribers.items()
            if topic in subscriber.topic_ids
        ]
        assert not loads or max(loads) - min(loads) <= 1


@given(groups())
def test_an_assignment_that_is_in_force_does_not_change(group):
    subscribers, assignable = group
    assignment = assigned(subscribers, assignable)
    assert assigned(after(subscribers, assignment), assignable) == assignment


@given(groups(), st.randoms())
def test_the_order_of_the_members_does_not_matter(group, random):
    subscribers, assignable = group
    shuffled = list(subscribers.items())
    random.shuffle(shuffled)
    assert assigned(dict(shuffled), assignable) == assigned(subscribers, assignable)


@given(groups(is_homogeneous=True))
def test_when_a_member_leaves_the_others_keep_what_fits(group):
    subscribers, assignable = group
    if len(subscribers) == 1:
        return
    before = after(subscribers, assigned(subscribers, assignable))
    gone, *_ = before
    stayed = {member: subscriber for member, subscriber in before.items() if member != gone}
    assignment = assigned(stayed, assignable)
    if len(before) <= sum(map(len, assignable.values())) and len(members_of(assignment)) >= len(before):
        # Each partition had one member, so the places of a member only grow.
        for member, subscriber in stayed.items():
            for topic, numbers in subscriber.partitions.items():
                assert numbers <= assignment[member][topic]


def test_partitions_that_cannot_be_assigned_yet_are_left_out():
    topic = TOPICS[0]
    subscribers = {"a": Subscriber(None, frozenset({topic}), {}), "b": Subscriber(None, frozenset({topic}), {})}
    assert assigned(subscribers, {topic: frozenset({1, 3})}) == {
        "a": {topic: frozenset({1})},
        "b": {topic: frozenset({3})},
    }


def test_more_members_than_partitions_share_them():
    topic = TOPICS[0]
    subscribers = {member: Subscriber(None, frozenset({topic}), {}) for member in MEMBERS[:3]}
    assignment = assigned(subscribers, {topic: frozenset({0, 1})})
    assert sorted(sizes(assignment)) == [1, 1, 2]
    assert members_of(assignment) == {(topic, 0): 2, (topic, 1): 2}
