"""How a member moves from what it has to what it is to have: the table of states, case by case."""

import uuid

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, MemberState, held_since
from skep.coordination.groups.consumer.reconciliation import ReconcileInputs, reconcile

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
    MemberState.UNKNOWN,
)


def sets(**topics):
    return {{"t": T, "u": U}[name]: frozenset(numbers) for name, numbers in topics.items()}


def member(epoch, state, assigned, pending=None):
    return ConsumerMember(
        "m",
        member_epoch=epoch,
        previous_member_epoch=epoch - 1,
        state=state,
        assigned=held_since(assigned, epoch),
        pending_revocation=held_since(pending or {}, epoch),
    )


def around(epoch, target, owned=None, *, subscribed=(T, U), changed=False, taken=()):
    return ReconcileInputs(epoch, target, set(subscribed), changed, owned, lambda topic, number: number not in taken)


# before; what is around it; epoch, state, assigned and pending after
CASES = {
    "nothing to do": (
        member(5, STABLE, sets(t=[0])),
        around(5, sets(t=[0])),
        (5, STABLE, sets(t=[0]), {}),
    ),
    "a new epoch with the same partitions": (
        member(5, STABLE, sets(t=[0])),
        around(6, sets(t=[0])),
        (6, STABLE, sets(t=[0]), {}),
    ),
    "more partitions, all free": (
        member(5, STABLE, sets(t=[0])),
        around(6, sets(t=[0, 1], u=[4])),
        (6, STABLE, sets(t=[0, 1], u=[4]), {}),
    ),
    "more partitions, one taken": (
        member(5, STABLE, sets(t=[0])),
        around(6, sets(t=[0, 1, 2]), taken=[2]),
        (6, UNRELEASED, sets(t=[0, 1]), {}),
    ),
    "fewer partitions": (
        member(5, STABLE, sets(t=[0, 1])),
        around(6, sets(t=[0])),
        (5, UNREVOKED, sets(t=[0]), sets(t=[1])),
    ),
    "fewer and more: first those that go": (
        member(5, STABLE, sets(t=[0, 1])),
        around(6, sets(t=[0, 2])),
        (5, UNREVOKED, sets(t=[0]), sets(t=[1])),
    ),
    "fewer partitions that it does not have any more": (
        member(5, STABLE, sets(t=[0, 1])),
        around(6, sets(t=[0]), owned=sets(t=[0])),
        (6, STABLE, sets(t=[0]), {}),
    ),
    "not revoked yet, by its own word": (
        member(5, UNREVOKED, sets(t=[0]), sets(t=[1])),
        around(6, sets(t=[0]), owned=sets(t=[0, 1])),
        (5, UNREVOKED, sets(t=[0]), sets(t=[1])),
    ),
    "it does not say whether it has revoked": (
        member(5, UNREVOKED, sets(t=[0]), sets(t=[1])),
        around(6, sets(t=[0])),
        (5, UNREVOKED, sets(t=[0]), sets(t=[1])),
    ),
    "revoked": (
        member(5, UNREVOKED, sets(t=[0]), sets(t=[1])),
        around(6, sets(t=[0, 2]), owned=sets(t=[0])),
        (6, STABLE, sets(t=[0, 2]), {}),
    ),
    "revoked, and by now more is to go": (
        member(5, UNREVOKED, sets(t=[0, 3]), sets(t=[1])),
        around(7, sets(t=[0]), owned=sets(t=[0, 3])),
        (5, UNREVOKED, sets(t=[0]), sets(t=[3])),
    ),
    "revoked, and by now it is to have it again": (
        member(5, UNREVOKED, sets(t=[0]), sets(t=[1])),
        around(7, sets(t=[0, 1]), owned=sets(t=[0])),
        (7, STABLE, sets(t=[0, 1]), {}),
    ),
    "revoked, and the rest is taken": (
        member(5, UNREVOKED, sets(t=[0]), sets(t=[1])),
        around(6, sets(t=[0, 2]), owned=sets(t=[0]), taken=[2]),
        (6, UNRELEASED, sets(t=[0]), {}),
    ),
    "still waiting": (
        member(6, UNRELEASED, sets(t=[0])),
        around(6, sets(t=[0, 2]), taken=[2]),
        (6, UNRELEASED, sets(t=[0]), {}),
    ),
    "no longer waiting": (
        member(6, UNRELEASED, sets(t=[0])),
        around(6, sets(t=[0, 2])),
        (6, STABLE, sets(t=[0, 2]), {}),
    ),
    "waiting, and by now something is to go": (
        member(6, UNRELEASED, sets(t=[0])),
        around(7, sets(t=[2]), taken=[2]),
        (6, UNREVOKED, {}, sets(t=[0])),
    ),
    "a topic that it does not want any more is not given to it": (
        member(5, STABLE, sets(t=[0])),
        around(6, sets(t=[0], u=[0]), subscribed=[T]),
        (6, STABLE, sets(t=[0]), {}),
    ),
    "it does not want what it has, and the target is as it was": (
        member(5, STABLE, sets(t=[0], u=[1])),
        around(5, sets(t=[0], u=[1]), subscribed=[T], changed=True),
        (5, UNREVOKED, sets(t=[0]), sets(u=[1])),
    ),
    "it does not want what it has, and has let go of it": (
        member(5, STABLE, sets(t=[0], u=[1])),
        around(5, sets(t=[0], u=[1]), owned=sets(t=[0]), subscribed=[T], changed=True),
        (5, STABLE, sets(t=[0]), {}),
    ),
    "while it revokes it wants even less": (
        member(5, UNREVOKED, sets(t=[0], u=[1]), sets(t=[1])),
        around(6, sets(t=[0], u=[1]), subscribed=[T], changed=True),
        (5, UNREVOKED, sets(t=[0]), sets(t=[1], u=[1])),
    ),
    "a state of another version, without partitions": (
        member(5, UNKNOWN, sets(t=[0])),
        around(6, sets(t=[0]), owned={}),
        (6, STABLE, sets(t=[0]), {}),
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_a_member_takes_the_step_that_is_due(case):
    before, surroundings, (epoch, state, assigned, pending) = CASES[case]
    after = reconcile(before, surroundings)
    assert (after.member_epoch, after.state) == (epoch, state)
    assert {topic: frozenset(held) for topic, held in after.assigned.items()} == assigned
    assert {topic: frozenset(held) for topic, held in after.pending_revocation.items()} == pending
    unchanged = before.previous_member_epoch
    assert after.previous_member_epoch == (before.member_epoch if epoch != before.member_epoch else unchanged)


def test_partitions_are_held_since_the_epoch_that_gave_them():
    after = reconcile(member(5, STABLE, sets(t=[0])), around(8, sets(t=[0, 1])))
    assert after.assigned == {T: {0: 5, 1: 8}}


@pytest.mark.parametrize("owned", [None, sets(t=[0])])
def test_a_state_of_another_version_is_fenced_until_it_has_nothing(owned):
    with pytest.raises(KafkaError) as caught:
        reconcile(member(5, UNKNOWN, sets(t=[0])), around(6, sets(t=[0]), owned=owned))
    assert caught.value.code is ErrorCode.fenced_member_epoch


def test_a_state_that_the_log_has_and_we_do_not_is_unknown():
    assert MemberState.of_number(99) is UNKNOWN
