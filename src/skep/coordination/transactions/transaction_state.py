"""The states of a transaction, and what each request does in each of them, as tables.

::

          AddPartitionsToTxn              EndTxn                 all markers written
  Empty ---------------------> Ongoing ----------> PrepareCommit --------------------> CompleteCommit
                                  |  \\
                                  |   EndTxn, InitProducerId, timeout --> PrepareAbort --> CompleteAbort

In transactions v2 (KIP-890, ``version`` of a ``Transaction``) each EndTxn gives the producer its next epoch, so that an
epoch belongs to one transaction: a request of the last transaction that arrives late is fenced, wherever it arrives.
There the first Produce or TxnOffsetCommit begins a transaction. A producer does not know whether that happened when it
failed, so it may also abort a transaction that was not begun: from Empty or Complete to PrepareAbort.

The write of a Prepare state is the decision: from then on the outcome is fixed, even if brokers stop or die. In either
Complete state the next transaction may begin, or InitProducerId returns to Empty.

Two of Kafka's states are never written. In PrepareEpochFence Kafka holds a new epoch that is not written yet; here the
new epoch and PrepareAbort are one record. Dead is a tombstone in the log.
"""

import enum
from collections.abc import Mapping

from skep.base.errors import ErrorCode


class State(enum.IntEnum):
    """Kafka's numbers, as they are written to the log; ``label`` is Kafka's name."""

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
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset(),
}
"""The states that may follow each state."""

COMPLETION: Mapping[State, State] = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}
"""The state that follows when the last marker is committed."""

ENDED = frozenset({*COMPLETION, *COMPLETION.values()})
"""The states from the decision on, until the next transaction begins."""

EXPIRING = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""The states in which an unused transactional id expires."""

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
"""EndTxn: the next state, or the error code of the response. A repeated EndTxn gets the same response as the first."""

ENDING_V2: Mapping[tuple[State, bool], State | ErrorCode] = {
    (State.EMPTY, COMMIT): _NO,
    (State.EMPTY, ABORT): State.PREPARE_ABORT,
    (State.ONGOING, COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, ABORT): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, COMMIT): _WAIT,
    (State.PREPARE_COMMIT, ABORT): _WAIT,
    (State.PREPARE_ABORT, COMMIT): _WAIT,
    (State.PREPARE_ABORT, ABORT): _WAIT,
    (State.COMPLETE_COMMIT, COMMIT): _NO,
    (State.COMPLETE_COMMIT, ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_ABORT, COMMIT): _NO,
    (State.COMPLETE_ABORT, ABORT): State.PREPARE_ABORT,
}
"""EndTxn of transactions v2, from the producer with the current epoch: it means the transaction after the last one."""

REPEATED_ENDING_V2: Mapping[tuple[State, bool], ErrorCode] = {
    (State.PREPARE_COMMIT, COMMIT): _WAIT,
    (State.PREPARE_COMMIT, ABORT): _NO,
    (State.PREPARE_ABORT, COMMIT): _NO,
    (State.PREPARE_ABORT, ABORT): _WAIT,
    (State.COMPLETE_COMMIT, COMMIT): _NOTHING_TO_DO,
    (State.COMPLETE_COMMIT, ABORT): _NO,
    (State.COMPLETE_ABORT, COMMIT): _NO,
    (State.COMPLETE_ABORT, ABORT): _NOTHING_TO_DO,
}
"""The same from a producer with the epoch before: it repeats the EndTxn of the last transaction, or was timed out."""
