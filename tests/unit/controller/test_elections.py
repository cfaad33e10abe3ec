"""Elections: one partition, brokers dead, stopping or back; tables of cases, then what holds in all of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.controller.decisions import decided
from skep.controller.elections import missing, preferred, settled
from skep.metadata.model import NO_LEADER, BrokerRecord, LogReport
from tests.unit.controller.clusters import liveness, livenesses, partition, partitions

NOBODY = NO_LEADER

CASES = {
    # name: (before, live, stopping, after without unclean elections: (leader, isr, epochs passed))
    "nothing happened": (partition([1, 2, 3]), [1, 2, 3], [], (1, [1, 2, 3], 0)),
    "a follower out of sync dies": (partition([1, 2, 3], isr=[1, 2]), [1, 2], [], (1, [1, 2], 0)),
    "a follower in sync dies": (partition([1, 2, 3]), [1, 3], [], (1, [1, 3], 0)),
    "all followers die": (partition([1, 2, 3]), [1], [], (1, [1], 0)),
    "the leader dies": (partition([1, 2, 3]), [2, 3], [], (2, [2, 3], 1)),
    "the leader dies, the next one is not in sync": (partition([1, 2, 3], isr=[1, 3]), [2, 3], [], (3, [3], 1)),
    "the leader dies, replicas come before the order of the ISR": (
        partition([3, 1, 2], isr=[2, 1, 3]),
        [1, 2],
        [],
        (1, [2, 1], 1),
    ),
    "the leader and a follower die": (partition([1, 2, 3]), [3], [], (3, [3], 1)),
    "a leader that is not the first one dies": (partition([1, 2, 3], leader=3), [1, 2], [], (1, [1, 2], 1)),
    "the first replica comes back: no election for that": (
        partition([1, 2, 3], isr=[2, 3], leader=2),
        [1, 2, 3],
        [],
        (2, [2, 3], 0),
    ),
    "all die: nobody leads, everybody stays in sync": (partition([1, 2, 3]), [], [], (NOBODY, [1, 2, 3], 1)),
    "all in sync die, one that is not lives": (partition([1, 2, 3], isr=[1, 2]), [3], [], (NOBODY, [1, 2], 1)),
    "nobody leads, still": (partition([1, 2], leader=NOBODY), [], [], (NOBODY, [1, 2], 0)),
    "nobody leads, one not in sync comes": (partition([1, 2], isr=[1], leader=NOBODY), [2], [], (NOBODY, [1], 0)),
    "one in sync comes back": (partition([1, 2, 3], isr=[1, 2], leader=NOBODY), [2, 3], [], (2, [2], 1)),
    "all in sync come back": (partition([1, 2, 3], isr=[2, 1], leader=NOBODY), [1, 2], [], (1, [2, 1], 1)),
    "the leader stops": (partition([1, 2, 3]), [2, 3], [1], (2, [2, 3], 1)),
    "a follower stops": (partition([1, 2, 3]), [1, 3], [2], (1, [1, 3], 0)),
    "a follower stops that is not in sync": (partition([1, 2, 3], isr=[1, 3]), [1, 3], [2], (1, [1, 3], 0)),
    "the leader stops, nobody else is in sync": (partition([1, 2], isr=[1]), [2], [1], (1, [1], 0)),
    "the leader stops and the last other one in sync is dead": (partition([1, 2]), [], [1], (1, [1], 0)),
    "all in sync stop": (partition([1, 2]), [], [1, 2], (1, [1, 2], 0)),
    "all stop, a follower has stopped": (partition([1, 2, 3]), [], [1, 2], (1, [1, 2], 0)),
    "the leader is dead, the only one in sync stops": (partition([1, 2]), [], [2], (NOBODY, [1, 2], 1)),
    "the leader is dead, one stops, one stays": (partition([1, 2, 3]), [3], [2], (3, [3], 1)),
    "nobody leads and who is in sync stops": (partition([1, 2], isr=[2], leader=NOBODY), [1], [2], (NOBODY, [2], 0)),
    "the only replica dies": (partition([1]), [2, 3], [], (NOBODY, [1], 1)),
    "the only replica is back": (partition([1], leader=NOBODY), [1, 2], [], (1, [1], 1)),
    "a leader that is not in the ISR does not lead on": (partition([1, 2], isr=[2], leader=1), [1, 2], [], (2, [2], 1)),
    "moving: one that stays is taken before one that goes": (
        partition([4, 5, 1, 2], isr=[1, 2, 5], leader=1, adding=[4, 5], removing=[1, 2]),
        [2, 4, 5],
        [],
        (5, [2, 5], 1),
    ),
    "moving: one that goes is better than nobody": (
        partition([4, 5, 1, 2], isr=[1, 2], leader=1, adding=[4, 5], removing=[1, 2]),
        [2, 4, 5],
        [],
        (2, [2], 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_leads_and_who_is_in_sync(case):
    before, live, stopping, (leader, isr, epochs) = CASES[case]
    after = settled(before, liveness(*live, stopping=stopping))
    assert (after.leader, list(after.isr), after.leader_epoch) == (leader, isr, before.leader_epoch + epochs)
    assert (after.replicas, after.adding, after.removing) == (before.replicas, before.adding, before.removing)


UNCLEAN_CASES = {
    "the first live replica takes over": (partition([1, 2, 3], isr=[1]), [2, 3], [], (2, [2], 1)),
    "replicas come in their order": (partition([3, 2, 1], isr=[3]), [1, 2], [], (2, [2], 1)),
    "one that was without a leader gets one": (partition([1, 2], isr=[1], leader=NOBODY), [2], [], (2, [2], 1)),
    "one in sync goes before": (partition([1, 2, 3], isr=[1, 3]), [2, 3], [], (3, [3], 1)),
    "one that stops is not chosen": (partition([1, 2, 3], isr=[1]), [3], [2], (3, [3], 1)),
    "nobody is there": (partition([1, 2]), [3], [], (NOBODY, [1, 2], 1)),
    "a stopping leader that is in sync leads on": (partition([1, 2], isr=[1]), [2], [1], (1, [1], 0)),
    "one that is only being added may have nothing, and comes last": (
        partition([4, 2, 1], isr=[1], leader=1, adding=[4], removing=[1]),
        [2, 4],
        [],
        (2, [2], 1),
    ),
    "but it comes": (partition([4, 2, 1], isr=[1], leader=1, adding=[4], removing=[1]), [4], [], (4, [4], 1)),
}


@pytest.mark.parametrize("case", UNCLEAN_CASES)
def test_who_leads_where_losing_records_is_allowed(case):
    before, live, stopping, (leader, isr, epochs) = UNCLEAN_CASES[case]
    after = settled(before, liveness(*live, stopping=stopping), unclean=True)
    assert (after.leader, list(after.isr), after.leader_epoch) == (leader, isr, before.leader_epoch + epochs)


@pytest.mark.parametrize("case", CASES)
def test_allowing_to_lose_records_changes_nothing_where_somebody_in_sync_can_lead(case):
    before, live, stopping, (leader, _, _) = CASES[case]
    if leader != NOBODY:
        brokers = liveness(*live, stopping=stopping)
        assert settled(before, brokers, unclean=True) == settled(before, brokers)


@pytest.mark.parametrize(
    ("before", "live", "stopping", "leader"),
    [
        (partition([1, 2], leader=2), [1, 2], [], 1),
        (partition([1, 2], leader=NOBODY), [1, 2], [], 1),
        (partition([1, 2], leader=1), [1, 2], [], None),
        (partition([1, 2], leader=2), [2], [], None),
        (partition([1, 2], leader=2), [2], [1], None),
        (partition([1, 2], leader=2, isr=[2]), [1, 2], [], None),
        (partition([4, 1, 2], leader=1, adding=[4], removing=[2]), [1, 2, 4], [], 4),
        (partition([4, 1, 2], leader=1, isr=[1, 2], adding=[4], removing=[2]), [1, 2, 4], [], None),
    ],
)
def test_the_first_replica_leads_again_when_it_can(before, live, stopping, leader):
    after = preferred(before, liveness(*live, stopping=stopping))
    if leader is None:
        assert after is before
    else:
        assert after == before._replace(leader=leader, leader_epoch=before.leader_epoch + 1)


def test_a_registration_that_says_stopping_is_live_but_not_active():
    records = {number: BrokerRecord(number, "h", 1, epoch=10 * number, stopping=number == 2) for number in (1, 2)}
    assert type(liveness(1)).of(records) == liveness(1, stopping=[2])


def report(broker, last_epoch, end, broker_epoch=None):
    return LogReport(broker, 10 * broker if broker_epoch is None else broker_epoch, last_epoch, end)


def undecided(replicas, reports, last_isr=None, **more):
    last_isr = replicas if last_isr is None else last_isr
    return partition(replicas, isr=(), leader=NOBODY, last_isr=last_isr, reports=reports, **more)


ALL_BACK = [1, 2, 3]
UNDECIDED = {
    # name: (before, live, stopping, leader, who is still missing)
    "the longest log leads": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10), report(3, 4, 5)]),
        ALL_BACK,
        [],
        2,
        [],
    ),
    "a later epoch makes a log longer than any number of records": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 3, 90), report(3, 4, 5)]),
        ALL_BACK,
        [],
        1,
        [],
    ),
    "of equal logs the first replica's": (undecided([3, 1], [report(1, 4, 9), report(3, 4, 9)]), [1, 3], [], 3, []),
    "of equal logs that of one that stays": (undecided([3, 1], [report(1, 4, 9), report(3, 4, 9)]), [1], [3], 1, []),
    "one that stops has the longest log": (undecided([3, 1], [report(1, 4, 9), report(3, 4, 10)]), [1], [3], 3, []),
    "one of the last ISR is not back": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10)]),
        [1, 2],
        [],
        NOBODY,
        [3],
    ),
    "one of the last ISR has said it and is away again": (
        undecided([1, 2], [report(1, 4, 9), report(2, 4, 10)]),
        [1],
        [],
        NOBODY,
        [2],
    ),
    "one was registered anew since it said it": (
        undecided([1, 2], [report(1, 4, 9), report(2, 4, 10, broker_epoch=19)]),
        [1, 2],
        [],
        NOBODY,
        [2],
    ),
    "one that was not in sync is not waited for": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10)], last_isr=[1, 2]),
        [1, 2],
        [],
        2,
        [],
    ),
    "but when it is there": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10)], last_isr=[1, 2]),
        ALL_BACK,
        [],
        NOBODY,
        [3],
    ),
    "and it leads if it has more": (
        undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10), report(3, 4, 11)], last_isr=[1, 2]),
        ALL_BACK,
        [],
        3,
        [],
    ),
    "but not with a batch of a later epoch, which nobody may have committed": (
        undecided([1, 2, 3], [report(1, 1, 9), report(2, 1, 10), report(3, 2, 5)], last_isr=[1, 2]),
        ALL_BACK,
        [],
        2,
        [],
    ),
    "unless those that were in sync have nothing": (
        undecided([1, 2, 3], [report(1, -1, 0), report(2, -2, 0), report(3, 2, 5)], last_isr=[1, 2]),
        ALL_BACK,
        [],
        3,
        [],
    ),
    "a log that expired completely is as long as its end says": (
        undecided([1, 2, 3], [report(1, 4, 200), report(2, 4, 200), report(3, 0, 100)], last_isr=[1, 2]),
        ALL_BACK,
        [],
        1,
        [],
    ),
    "who never had anything leads without those that were not in sync": (
        undecided([1, 2, 3], [report(1, -1, 0), report(2, -1, 0)], last_isr=[1, 2]),
        [1, 2],
        [],
        1,
        [],
    ),
    "who has a new disk leads only when all have said that they have nothing": (
        undecided([1, 2, 3, 4], [report(1, -2, 0)], last_isr=[1], adding=[4]),
        [1],
        [],
        NOBODY,
        [2, 3],
    ),
    "nobody has anything": (undecided([1, 2], [report(1, -1, 0), report(2, -1, 0)], last_isr=[1]), [1, 2], [], 1, []),
    "a new disk comes last": (undecided([1, 2], [report(1, -2, 0), report(2, -1, 0)], last_isr=[1]), [1, 2], [], 2, []),
    "a new disk beside a log": (undecided([1, 2, 3], [report(1, -2, 0), report(2, 3, 5)], [1, 2]), [1, 2], [], 2, []),
    "nobody is there to say anything": (undecided([1, 2], [], last_isr=[]), [], [], NOBODY, []),
    "nobody has said anything": (undecided([1, 2], [], last_isr=[1]), [1, 2], [], NOBODY, [1, 2]),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_who_leads_when_all_in_sync_may_have_lost_records(case):
    before, live, stopping, leader, awaited_brokers = UNDECIDED[case]
    brokers = liveness(*live, stopping=stopping)
    after = settled(before, brokers)
    assert sorted(missing(before, brokers)) == awaited_brokers
    if leader == NOBODY:
        assert after is before
    else:
        assert (after.leader, after.isr, after.leader_epoch, after.reports) == (leader, (leader,), 6, ())
        # Until it has shown that it leads: it may have died meanwhile.
        assert set(after.awaited) == {*before.last_isr, leader}


def test_an_unclean_election_takes_the_longest_log_of_those_that_are_there_and_gives_up_the_others():
    before = undecided([1, 2, 3], [report(1, 4, 9), report(2, 4, 10)])
    after = settled(before, liveness(1, 2), unclean=True)
    assert (after.leader, after.isr, after.last_isr) == (2, (2,), ())


def test_who_left_the_isr_is_remembered_until_it_is_back_in_it():
    before = partition([1, 2, 3])
    alone = settled(settled(before, liveness(2, 3)), liveness(3))
    assert (alone.leader, alone.isr, alone.last_isr) == (3, (3,), (1, 2, 3))
    assert alone.with_isr([3, 1]).last_isr == (1, 2, 3)
    assert alone.with_isr([3, 1, 2]).last_isr == ()


STEPS = [
    lambda record, brokers, unclean: settled(record, brokers, unclean=unclean),
    lambda record, brokers, unclean: decided(record, brokers, unclean=unclean),
    lambda record, brokers, unclean: preferred(record, brokers),
]


@given(partitions(), livenesses(), st.booleans(), st.sampled_from(STEPS))
def test_no_decision_ever_breaks_what_records_promise(before, brokers, unclean, decide):
    after = decide(before, brokers, unclean)
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert after.isr
    assert set(after.isr) <= set(after.replicas) <= set(before.replicas)
    assert after.target == before.target
    # One for a new leader, one for a replica that goes: both may come of one look.
    is_led_anew, loses_one = after.leader != before.leader, after.replicas != before.replicas
    assert is_led_anew <= after.leader_epoch - before.leader_epoch <= 1 + (is_led_anew and loses_one)
    if is_led_anew:
        assert after.leader == NO_LEADER or after.leader in brokers.active
    if not set(after.isr) <= set(before.isr):
        assert unclean
        assert after.isr == (after.leader,)
        assert brokers.active.isdisjoint(before.isr), "somebody in sync could have led"
    assert after is before or after != before


@given(partitions(), livenesses(), st.booleans())
@example(partition([4, 1], isr=[1, 4], leader=1, adding=[4], removing=[1]), liveness(1, stopping=[4]), False)
def test_deciding_again_changes_nothing(before, brokers, unclean):
    once = decided(before, brokers, unclean=unclean)
    assert decided(once, brokers, unclean=unclean) is once


@given(partitions(), livenesses(), st.booleans())
def test_who_can_be_led_is_led_and_nobody_dead_holds_up_a_leader(before, brokers, unclean):
    after = decided(before, brokers, unclean=unclean)
    if not brokers.active.isdisjoint(before.isr):
        assert after.leader in brokers.active
        assert brokers.active.issuperset(after.isr)
    if after.leader != NO_LEADER:
        assert after.leader in brokers.live
        assert brokers.live.issuperset(after.isr)
    if unclean and not brokers.active.isdisjoint(before.replicas):
        assert after.leader != NO_LEADER


@given(partitions(), st.lists(st.tuples(livenesses(), st.booleans()), max_size=8))
def test_without_unclean_elections_an_isr_only_shrinks_whoever_comes_and_goes(record, events):
    for brokers, is_preferred in events:
        before = record
        record = preferred(record, brokers) if is_preferred else decided(record, brokers, unclean=False)
        assert set(record.isr) <= set(before.isr)
        assert record.isr
