"""The tables of states: complete, and each of Kafka's rules in them."""

import pytest

from skep.coordination.transactions.transaction_state import (
    BY_LABEL,
    COMPLETION,
    ENDING,
    ENDING_V2,
    EXPIRING,
    NEXT,
    State,
)

WRITTEN = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]


def test_states_have_kafkas_numbers_and_names():
    assert [(int(state), state.label) for state in State] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]
    assert BY_LABEL["PrepareCommit"] is State.PREPARE_COMMIT


def test_what_is_decided_leads_only_to_its_own_end():
    assert NEXT[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert NEXT[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}
    assert {state: {end} for state, end in COMPLETION.items()} == {state: NEXT[state] for state in COMPLETION}


def test_nothing_is_committed_but_an_open_transaction():
    assert {state for state in State if State.PREPARE_COMMIT in NEXT[state]} == {State.ONGOING}


def test_only_a_producer_of_v2_may_abort_what_it_has_not_begun():
    aborting = {state for state in State if State.PREPARE_ABORT in NEXT[state]}
    assert aborting == {State.ONGOING, *EXPIRING}
    assert {state for state in EXPIRING if isinstance(ENDING[state, False], State)} == set()
    assert {state for state in EXPIRING if ENDING_V2[state, False] is State.PREPARE_ABORT} == EXPIRING


def test_only_ids_without_a_transaction_expire():
    assert {state for state in State if State.DEAD in NEXT[state]} == EXPIRING


@pytest.mark.parametrize("state", WRITTEN, ids=lambda state: state.label)
def test_every_state_says_what_commit_and_abort_do(state: State):
    for commit in (True, False):
        result = ENDING[state, commit]
        if isinstance(result, State):
            assert result in NEXT[state]
