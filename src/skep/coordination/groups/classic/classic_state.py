"""The states of a classic group, and which may follow which.

::

              first join                  all have joined, or time is up          the leader's assignment
    EMPTY ----------------> PREPARING ------------------------------> COMPLETING ------------------------> STABLE
      ^                     ^     ^                                       |                                  |
      |                     |     +------- a member comes, leaves, changes, or is silent for too long -------+
      +--- the last member is gone (from PREPARING, COMPLETING or STABLE)

Only EMPTY and STABLE are in the log; what happens between two of them is forgotten by a restart, and the members, whom
the log knows as they were before, join again. Kafka passes through PREPARING on the way to EMPTY; nobody could see it.
"""

import enum


class ClassicState(enum.Enum):
    """The value is the name that clients are told."""

    EMPTY = "Empty"
    """No members: offsets are kept until they expire."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are to join again; JoinGroup waits until all have, or the rebalance timeout is over."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; SyncGroup waits for the leader's assignment."""
    STABLE = "Stable"
    """Everybody has, or can fetch, an assignment of this generation."""
    DEAD = "Dead"
    """Forgotten; nothing follows."""


EMPTY = ClassicState.EMPTY
PREPARING_REBALANCE = ClassicState.PREPARING_REBALANCE
COMPLETING_REBALANCE = ClassicState.COMPLETING_REBALANCE
STABLE = ClassicState.STABLE
DEAD = ClassicState.DEAD

NEXT_STATES: dict[ClassicState, frozenset[ClassicState]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({COMPLETING_REBALANCE, EMPTY, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, EMPTY, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, EMPTY, DEAD}),
    DEAD: frozenset(),
}

CAN_REBALANCE = frozenset(state for state, following in NEXT_STATES.items() if PREPARING_REBALANCE in following)
