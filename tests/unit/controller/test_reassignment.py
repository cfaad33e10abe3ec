"""Reassignment: grow first, shrink later, cancelled or replaced on the way."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.controller.reassignment import begun, cancelled, finished
from skep.metadata.model import NO_LEADER
from tests.unit.controller.clusters import BROKERS, liveness, livenesses, partition, partitions

ALL = liveness(*BROKERS)
HALF_WAY = partition([1, 4, 5, 2, 3], isr=[1, 2, 3], leader=1, adding=[4, 5], removing=[2, 3])

BEGINNINGS = {
    "the example of the module": (partition([1, 2, 3]), [1, 4, 5], HALF_WAY),
    "one more": (partition([1, 2]), [1, 2, 3], partition([1, 2, 3], isr=[1, 2], adding=[3])),
    "one less, at once": (partition([1, 2, 3]), [1, 2], partition([1, 2], epoch=6)),
    "one less: the leader goes": (partition([1, 2, 3]), [2, 3], partition([2, 3], leader=2, epoch=6)),
    "one less: one that stays is not in sync yet": (
        partition([1, 2, 3], isr=[1, 3]),
        [1, 2],
        partition([1, 2, 3], isr=[1, 3], removing=[3]),
    ),
    "another order": (partition([1, 2, 3]), [3, 2, 1], partition([3, 2, 1], isr=[1, 2, 3], leader=1)),
    "another order of a partition without a leader": (
        partition([1, 2], leader=NO_LEADER),
        [2, 1],
        partition([2, 1], isr=[1, 2], leader=NO_LEADER),
    ),
    "what is there already": (partition([1, 2, 3], isr=[1]), [1, 2, 3], partition([1, 2, 3], isr=[1])),
    "the same again while it is under way": (HALF_WAY, [1, 4, 5], HALF_WAY),
    "elsewhere while it is under way": (
        HALF_WAY,
        [1, 4, 6],
        partition([1, 4, 6, 2, 3], isr=[1, 2, 3], leader=1, epoch=6, adding=[4, 6], removing=[2, 3]),
    ),
    "elsewhere, and one that was in sync already is not wanted any more": (
        HALF_WAY._replace(isr=(1, 2, 3, 5)),
        [1, 4, 6],
        partition([1, 4, 6, 2, 3], isr=[1, 2, 3], leader=1, epoch=6, adding=[4, 6], removing=[2, 3]),
    ),
    "elsewhere, and one that leads already is not wanted any more": (
        HALF_WAY._replace(isr=(1, 2, 3, 5), leader=5),
        [1, 4, 6],
        partition([1, 4, 6, 2, 3], isr=[1, 2, 3], leader=1, epoch=6, adding=[4, 6], removing=[2, 3]),
    ),
    "back again": (HALF_WAY, [1, 2, 3], partition([1, 2, 3], epoch=6)),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_beginning_a_reassignment(case):
    before, target, after = BEGINNINGS[case]
    assert begun(before, target, ALL) == after


@pytest.mark.parametrize(
    ("before", "brokers", "after"),
    [
        (HALF_WAY, ALL, None),
        (HALF_WAY._replace(isr=(1, 2, 3, 4)), ALL, None),
        (HALF_WAY._replace(isr=(1, 2, 3, 4, 5)), ALL, partition([1, 4, 5], epoch=6)),
        (HALF_WAY._replace(isr=(5, 4, 1)), ALL, partition([1, 4, 5], isr=[5, 4, 1], epoch=6)),
        (HALF_WAY._replace(isr=(4, 5, 2)), ALL, None),
        (HALF_WAY._replace(isr=(1, 2, 4, 5), leader=2), ALL, partition([1, 4, 5], epoch=6)),
        (
            HALF_WAY._replace(isr=(1, 2, 4, 5), leader=2),
            liveness(2, 4, 5, stopping=[1]),
            partition([1, 4, 5], leader=4, epoch=6),
        ),
        (HALF_WAY._replace(isr=(1, 2, 4, 5), leader=2), liveness(2, 3), None),
        (HALF_WAY._replace(isr=(1, 4, 5), leader=NO_LEADER), liveness(2, 3), None),
        (partition([1, 2, 3], isr=[1]), ALL, None),
    ],
)
def test_it_is_finished_when_all_that_stay_are_in_sync_and_one_of_them_leads(before, brokers, after):
    result = finished(before, brokers)
    assert result is before if after is None else result == after


@pytest.mark.parametrize(
    ("before", "brokers", "after"),
    [
        (HALF_WAY, ALL, partition([1, 2, 3], epoch=6)),
        (HALF_WAY._replace(isr=(1, 5, 3)), ALL, partition([1, 2, 3], isr=[1, 3], epoch=6)),
        (HALF_WAY._replace(isr=(4, 3, 1), leader=4), ALL, partition([1, 2, 3], isr=[3, 1], leader=1, epoch=6)),
        (
            HALF_WAY._replace(isr=(4, 3, 1), leader=4),
            liveness(3, 4),
            partition([1, 2, 3], isr=[3, 1], leader=3, epoch=6),
        ),
        (
            HALF_WAY._replace(isr=(4, 3, 1), leader=4),
            liveness(2, 4),
            partition([1, 2, 3], isr=[3, 1], leader=NO_LEADER, epoch=6),
        ),
        (HALF_WAY._replace(leader=NO_LEADER), ALL, partition([1, 2, 3], leader=NO_LEADER, epoch=6)),
        (partition([1, 2, 3], isr=[1, 3], removing=[3]), ALL, partition([1, 2, 3], isr=[1, 3])),
    ],
)
def test_cancelling_brings_back_who_was_there(before, brokers, after):
    assert cancelled(before, brokers) == after


def test_what_is_not_under_way_cannot_be_cancelled():
    with pytest.raises(KafkaError) as refused:
        cancelled(partition([1, 2]), ALL)
    assert refused.value.code is ErrorCode.no_reassignment_in_progress


@pytest.mark.parametrize("step", [cancelled, lambda record, *a, **k: begun(record, [1, 6], *a, **k)])
def test_dropping_the_last_one_in_sync_is_refused_unless_losing_records_is_allowed(step):
    only_new_in_sync = HALF_WAY._replace(isr=(4, 5), leader=4)
    with pytest.raises(KafkaError, match="unclean leader election") as refused:
        step(only_new_in_sync, ALL)
    assert refused.value.code is ErrorCode.invalid_replica_assignment
    after = step(only_new_in_sync, liveness(2, 3, 4, 5), unclean=True)
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 6)
    after = step(only_new_in_sync, liveness(4, 5), unclean=True)
    assert (after.leader, after.isr, after.leader_epoch) == (NO_LEADER, (1,), 6)


def targets():
    return st.lists(st.sampled_from(BROKERS), min_size=1, max_size=5, unique=True)


@given(partitions(), targets(), livenesses(), st.booleans())
def test_whatever_is_begun_or_cancelled_records_keep_their_promises(before, target, brokers, is_begun):
    try:
        after = begun(before, target, brokers) if is_begun else cancelled(before, brokers)
    except KafkaError:
        assume(False)
    assert set(after.isr) <= set(after.replicas)
    assert set(after.isr) <= set(before.isr)
    assert after.isr
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert after.leader_epoch - before.leader_epoch in (0, 1, 2)
    assert after.leader == before.leader or after.leader_epoch > before.leader_epoch
    assert set(before.replicas) <= set(after.replicas) or after.leader_epoch > before.leader_epoch
    assert len(set(after.replicas)) == len(after.replicas)
    assert set(after.adding) | set(after.removing) <= set(after.replicas)
    assert not set(after.adding) & set(after.removing)
    if is_begun:
        assert after.target == tuple(target)
        assert not (set(after.adding) & set(before.replicas) - set(before.adding)), "these have a copy already"
    else:
        assert not after.is_reassigning


@given(partitions(), targets(), livenesses())
def test_beginning_the_same_twice_is_beginning_it_once(before, target, brokers):
    try:
        once = begun(before, target, brokers)
    except KafkaError:
        assume(False)
    assert begun(once, target, brokers) == once


@given(partitions(may_be_reassigning=False), targets(), livenesses())
def test_beginning_takes_no_copy_away_before_the_new_ones_are_in_sync_and_cancelling_undoes_it(before, target, brokers):
    after = begun(before, target, brokers)
    if after.is_reassigning:
        assert set(before.replicas) <= set(after.replicas)
        assert after.isr == before.isr
        back = cancelled(after, brokers)
        assert set(back.replicas) == set(before.replicas)
        assert (back.isr, back.leader) == (before.isr, before.leader)
        assert back.leader_epoch == before.leader_epoch + bool(after.adding)
    else:
        assert set(target) <= set(before.isr) or set(target) == set(before.replicas)


@given(partitions(may_be_reassigning=False), targets())
def test_a_reassignment_ends_at_its_target_once_everybody_has_caught_up(before, target):
    under_way = begun(before, target, ALL)
    caught_up = under_way._replace(isr=under_way.replicas)
    done = finished(caught_up if caught_up.leader != NO_LEADER else caught_up.elected(target[0], caught_up.isr), ALL)
    assert done.replicas == tuple(target)
    assert done.leader in target
    assert not done.is_reassigning
    # Whoever is given the partition back later is not taken for the copy that it removed.
    assert set(before.replicas) <= set(target) or done.leader_epoch > before.leader_epoch
