"""The states of a classic group, and the transitions between them.

::

              first join                  all have joined, or timeout             the leader's assignment
    EMPTY ----------------> PREPARING ------------------------------> COMPLETING ------------------------> STABLE
      ^                     ^     ^                                       |                                  |
      |                     |     +------- a member joins, leaves, changes, or its session expires ----------+
      +--- the last member has left (from PREPARING, COMPLETING or STABLE)

Only EMPTY and STABLE are in the log. A restart forgets what happens between them: the group is loaded as the last
record has it, and its members join again. Kafka passes through PREPARING on the way to EMPTY, which no client can see.
"""

import enum


class ClassicState(enum.Enum):
    """The values are the names in responses."""

    EMPTY = "Empty"
    """No members: offsets are kept until they expire."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members have to join again; JoinGroup waits until all have, or until the rebalance timeout."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has started; SyncGroup waits for the leader's assignment."""
    STABLE = "Stable"
    """Every member has an assignment of this generation, or can fetch it."""
    DEAD = "Dead"
    """Deleted; nothing follows."""


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
