"""Who is in sync and what is committed, as a leader sees it."""

import pytest

from skep.base.ids import BrokerId, LeaderEpoch, Offset
from skep.metadata.model import PartitionRecord
from skep.replication.partition.in_sync_replicas import InSyncReplicas

LEADER, SECOND, THIRD, STRANGER = (BrokerId(number) for number in (1, 2, 3, 4))
MAX_LAG_S = 10.0


def record(*isr):
    return PartitionRecord((LEADER, SECOND, THIRD), isr, LEADER, LeaderEpoch(5))


def in_sync_of(*isr, epoch_start=0, now=100.0):
    return InSyncReplicas(LEADER, record(*isr), Offset(epoch_start), now)


def test_nothing_is_committed_before_every_member_has_shown_itself():
    replicas = in_sync_of(LEADER, SECOND, THIRD)
    replicas.fetched(SECOND, Offset(8), Offset(10), 100)
    assert replicas.committed_end(Offset(10)) < 0
    replicas.fetched(THIRD, Offset(7), Offset(10), 100)
    assert replicas.committed_end(Offset(10)) == 7


def test_a_leader_alone_in_the_isr_commits_all_it_has():
    replicas = in_sync_of(LEADER)
    replicas.fetched(SECOND, Offset(3), Offset(10), 100)
    assert replicas.committed_end(Offset(10)) == 10


def test_the_leaders_own_end_counts_too():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.fetched(SECOND, Offset(9), Offset(10), 100)
    assert replicas.committed_end(Offset(4)) == 4


def test_who_is_proposed_counts_before_the_store_has_answered():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    replicas.fetched(THIRD, Offset(6), Offset(10), 100)
    replicas.propose({LEADER, SECOND, THIRD})
    assert replicas.committed_end(Offset(10)) == 6


def test_who_is_to_go_counts_until_the_store_has_answered():
    replicas = in_sync_of(LEADER, SECOND, THIRD)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    replicas.fetched(THIRD, Offset(6), Offset(10), 100)
    replicas.propose({LEADER, SECOND})
    assert replicas.committed_end(Offset(10)) == 6
    replicas.follow(record(LEADER, SECOND), 101)
    replicas.settle()
    assert replicas.committed_end(Offset(10)) == 10
    assert not replicas.is_proposing


def test_a_record_that_comes_settles_no_proposal():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    replicas.fetched(THIRD, Offset(6), Offset(10), 100)
    replicas.propose({LEADER, SECOND, THIRD})
    replicas.follow(record(LEADER, SECOND), 101)
    assert replicas.is_proposing
    assert replicas.committed_end(Offset(10)) == 6
    replicas.settle()
    assert not replicas.is_proposing
    assert replicas.committed_end(Offset(10)) == 10


def test_whether_a_follower_may_be_added_is_asked_of_what_is_committed_by_now():
    replicas = in_sync_of(LEADER)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    assert replicas.can_join(SECOND, Offset(10))
    assert replicas.may_be_added(SECOND, Offset(10))
    assert not replicas.may_be_added(SECOND, Offset(11))
    assert not replicas.may_be_added(STRANGER, Offset(0))
    # Once proposed it is waited for: nothing is committed without it, whatever it was when it was asked for.
    replicas.propose({LEADER, SECOND})
    assert replicas.may_be_added(SECOND, Offset(11))


def test_of_several_proposals_all_count():
    replicas = in_sync_of(LEADER)
    replicas.fetched(SECOND, Offset(4), Offset(10), 100)
    replicas.propose({LEADER, SECOND})
    replicas.propose({LEADER})
    assert replicas.committed_end(Offset(10)) == 4


@pytest.mark.parametrize(
    ("offset", "high_watermark", "epoch_start", "can_join"),
    [
        (10, 10, 0, True),
        (12, 10, 0, True),
        (9, 10, 0, False),
        (10, 5, 11, False),  # it may still have what the leader before us had and we do not
        (11, 5, 11, True),
    ],
)
def test_a_follower_joins_when_it_has_what_is_committed_and_our_epoch(offset, high_watermark, epoch_start, can_join):
    replicas = in_sync_of(LEADER, epoch_start=epoch_start)
    replicas.fetched(SECOND, Offset(offset), Offset(20), 100)
    assert replicas.can_join(SECOND, Offset(high_watermark)) == can_join


def test_nobody_joins_twice_nor_during_a_proposal_nor_without_being_a_replica():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    replicas.fetched(THIRD, Offset(10), Offset(10), 100)
    assert not replicas.can_join(SECOND, Offset(10))
    assert not replicas.fetched(STRANGER, Offset(10), Offset(10), 100)
    assert not replicas.can_join(STRANGER, Offset(10))
    assert replicas.can_join(THIRD, Offset(10))
    replicas.propose({LEADER, SECOND, THIRD})
    assert not replicas.can_join(THIRD, Offset(10))


def test_a_silent_member_lags_after_the_time_it_is_given():
    replicas = in_sync_of(LEADER, SECOND, THIRD)
    replicas.fetched(THIRD, Offset(10), Offset(10), 108)
    assert replicas.lagging(Offset(10), 110, MAX_LAG_S) == frozenset()
    assert replicas.lagging(Offset(10), 110.5, MAX_LAG_S) == {SECOND}


def test_one_that_has_everything_does_not_lag_however_long_it_is_silent():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.fetched(SECOND, Offset(10), Offset(10), 100)
    assert replicas.lagging(Offset(10), 1000, MAX_LAG_S) == frozenset()
    assert replicas.lagging(Offset(11), 1000, MAX_LAG_S) == {SECOND}


def test_a_follower_of_a_busy_leader_is_in_sync_when_it_has_what_there_was_at_its_last_fetch():
    replicas = in_sync_of(LEADER, SECOND)
    end, position = 10, 0
    for now in range(101, 140):
        replicas.fetched(SECOND, Offset(position), Offset(end), now)
        assert replicas.lagging(Offset(end), now, MAX_LAG_S) == frozenset()
        position, end = end, end + 10


def test_one_that_never_gets_further_lags_although_it_fetches():
    replicas = in_sync_of(LEADER, SECOND)
    for now in range(101, 112):
        replicas.fetched(SECOND, Offset(5), Offset(10), now)
    assert replicas.lagging(Offset(10), 112, MAX_LAG_S) == {SECOND}


def test_a_new_replica_is_known_when_the_record_names_it_and_forgotten_when_not():
    replicas = in_sync_of(LEADER, SECOND)
    replicas.follow(PartitionRecord((LEADER, STRANGER), (LEADER,), LEADER, LeaderEpoch(5)), 101)
    assert replicas.fetched(STRANGER, Offset(1), Offset(1), 101)
    assert not replicas.fetched(SECOND, Offset(1), Offset(1), 101)
