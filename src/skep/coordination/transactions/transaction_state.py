"""The states of a transaction, and what each request may do in each of them, as tables.

::

            AddPartitionsToTxn              EndTxn                 all markers written
    Empty ---------------------> Ongoing ----------> PrepareCommit --------------------> CompleteCommit
                                    |  \\
                                    |   EndTxn, InitProducerId, timeout --> PrepareAbort --> CompleteAbort

The write of a Prepare state decides: from then on the transaction can only go the one way, whoever stops or dies. From
either Complete state the next transaction begins, or InitProducerId leads back to Empty.

Two of Kafka's states are never written. PrepareEpochFence is a moment in which Kafka holds a new epoch that is not
written yet; here the new epoch and PrepareAbort are one record. Dead is, in the log, a deletion.
"""

import enum
from collections.abc import Mapping

from skep.base.errors import ErrorCode


class State(enum.IntEnum):
    """Kafka's numbers, as they are written, and with ``label`` its names."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        return self.name.title().replace("_", "")


BY_LABEL: Mapping[str, State] = {state.label: state for state in State}

NEXT: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset(),
}
"""What may follow."""

COMPLETION: Mapping[State, State] = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}
"""Of the states in which markers are being written: what comes when the last one is."""

EXPIRING = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""In which a transactional id that is not used any more is forgotten."""

COMMIT, ABORT = True, False

_NOTHING_TO_DO = ErrorCode.none
_WAIT = ErrorCode.concurrent_transactions
_NO = ErrorCode.invalid_txn_state

ENDING: Mapping[tuple[State, bool], State | ErrorCode] = {
    (State.EMPTY, COMMIT): _NO,
    (State.EMPTY, ABORT): _NO,
    (State.ONGOING, COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, ABORT): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, COMMIT): _WAIT,
    (State.PREPARE_COMMIT, ABORT): _NO,
    (State.PREPARE_ABORT, COMMIT): _NO,
    (State.PREPARE_ABORT, ABORT): _WAIT,
    (State.COMPLETE_COMMIT, COMMIT): _NOTHING_TO_DO,
    (State.COMPLETE_COMMIT, ABORT): _NO,
    (State.COMPLETE_ABORT, COMMIT): _NO,
    (State.COMPLETE_ABORT, ABORT): _NOTHING_TO_DO,
}
"""EndTxn: the state that it leads to, or the code that answers it. A repeated one is answered as the first was."""
