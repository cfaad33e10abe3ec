"""The coordinators' topics get the replicas that they should have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.controller.internal_topic_growth import grown_topics
from tests.unit.controller.clusters import broker, image, partition, partitions, topic

OFFSETS = "__consumer_offsets"
WANTED = {OFFSETS: 3, "__transaction_state": 3}


def grown(brokers, *rows, changed=()):
    """The partitions of the offsets topic afterwards, or None when nothing is to be written."""
    cluster = image(brokers, topic(OFFSETS, *rows), topic("eggs", partition([1])))
    after = {one.name: one for one in grown_topics(cluster, WANTED, changed)}
    assert "eggs" not in after, "what clients made is as they made it"
    return after[OFFSETS].partitions if OFFSETS in after else None


@pytest.mark.parametrize(
    ("before", "brokers", "replicas", "adding"),
    [
        pytest.param(partition([1]), [1, 2], (1, 2), (2,), id="two of three, when the second comes"),
        pytest.param(partition([1]), [1, 2, 3], (1, 2, 3), (2, 3), id="three at once"),
        pytest.param(
            partition([1, 2], isr=[1], adding=[2]), [1, 2, 3], (1, 2, 3), (2, 3), id="the third comes meanwhile"
        ),
        pytest.param(partition([9], leader=-1), [1, 2, 3], (9, 1, 2), (1, 2), id="also while the first is away"),
    ],
)
def test_it_grows(before, brokers, replicas, adding):
    [after] = grown(brokers, before)
    assert (after.replicas, after.adding, after.removing) == (replicas, adding, ())
    assert (after.isr, after.leader) == (before.isr, before.leader), "they have to copy first"


@pytest.mark.parametrize(
    ("before", "brokers"),
    [
        pytest.param(partition([1, 2, 3]), [1, 2, 3, 4], id="it has all"),
        pytest.param(partition([1, 2, 3, 4]), [1, 2, 3, 4, 5], id="it has more"),
        pytest.param(partition([1]), [1], id="there is nobody else"),
        pytest.param(partition([1]), [1, broker(2, stopping=True)], id="who is there is about to go"),
        pytest.param(partition([1, 2], isr=[2], adding=[1], removing=[2]), [1, 2, 3], id="somebody moves it"),
    ],
)
def test_it_stays(before, brokers):
    assert grown(brokers, before) is None


def test_copies_go_to_other_places_first_and_not_all_to_the_same_brokers():
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b"), broker(5, "c"), broker(6, "c")]
    after = grown(brokers, *(partition([1]) for _ in range(12)))
    places = {one.id: one.rack for one in brokers}
    assert all({places[replica] for replica in one.replicas} == {"a", "b", "c"} for one in after)
    assert {replica for one in after for replica in one.replicas} == {1, 3, 4, 5, 6}


def test_what_was_decided_otherwise_is_kept():
    deposed = topic(OFFSETS, partition([1, 2], isr=[2], leader=2, epoch=6))
    [after] = grown([2, 3], partition([1, 2]), changed=[deposed])
    assert (after.leader, after.leader_epoch, after.isr) == (2, 6, (2,))
    assert after.adding == (3,)


@given(partitions(), st.sets(st.integers(1, 6)))
def test_nothing_is_ever_taken_away(before, brokers):
    [after] = grown(sorted(brokers), before) or [before]
    assert set(before.replicas) <= set(after.replicas)
    assert set(before.isr) <= set(after.isr)
    assert len(set(after.replicas)) == len(after.replicas)
    assert after.leader == before.leader
