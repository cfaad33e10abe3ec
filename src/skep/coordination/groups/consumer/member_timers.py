"""The keys of the timers that watch a member of a consumer group.

===========  ======================================================================================================
session      the member has sent nothing for its session timeout
rebalance    the member has not revoked partitions in time
join, sync   a classic member has not sent JoinGroup again, or SyncGroup, in time
===========  ======================================================================================================

When one of them expires the member is fenced.
"""

from collections.abc import Hashable

from skep.coordination.timers import Timers

SESSION, REBALANCE, JOIN, SYNC = "session", "rebalance", "join", "sync"


def timer_key(kind: str, group_id: str, member_id: str) -> Hashable:
    return (kind, group_id, member_id)


def cancel_timers(timers: Timers, group_id: str, member_id: str) -> None:
    """Cancels all timers of a member that has left, or whose group changed its kind.

    A timer that were left could expire for a later member with the same id.
    """
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        timers.cancel(timer_key(kind, group_id, member_id))
