"""The timers that watch a member of a consumer group, by their keys.

===========  ======================================================================================================
session      it has been silent for too long
rebalance    it has not given up in time what it was told to
join, sync   of a member of the classic protocol: it has not joined again, or not asked for its assignment, in time
===========  ======================================================================================================

When one of them goes off the member is fenced.
"""

from collections.abc import Hashable

from skep.coordination.timers import Timers

SESSION, REBALANCE, JOIN, SYNC = "session", "rebalance", "join", "sync"


def timer_key(kind: str, group_id: str, member_id: str) -> Hashable:
    return (kind, group_id, member_id)


def forget_timers(timers: Timers, group_id: str, member_id: str) -> None:
    """The member is gone, or the group of another kind by now. One that went off then could hit a later member."""
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        timers.cancel(timer_key(kind, group_id, member_id))
