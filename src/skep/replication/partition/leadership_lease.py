"""The lease: how long a leader may assume that it still leads.

The metadata store tells a leader that it was succeeded. A leader that is cut off from the store, or was frozen, does
not learn it in time, and would keep serving reads from an old log. What it does know is when it last heard from others:

- *The store* said at some moment that our registration exists. The session then lives for at least ``bound_s`` more.
  While it lives, no other broker is elected in our place without a notification of our watch.
- *A follower* fetched at some moment, in our epoch. A successor is elected from the ISR, and stops fetching from us
  when it begins to lead. So while every member of the ISR fetches, none of them leads.

When neither holds, the lease has expired: another broker may lead by now. Responses that must not be stale are then
refused; see ``Partition.check_leads``. A leader that hears its followers is not stopped by an unavailable store, nor
one that hears the store by a slow follower. Where no other broker can be elected (one replica, or an ISR of one) the
lease never expires.

``bound_s`` is half of the session timeout. It limits for how long an old leader serves reads. It proves nothing:
clocks may run at different speeds, a virtual machine may be frozen together with its clock, and a fetch may have been
in flight for long. What has to be certain is written and waits for its acknowledgement, which only the current leader
gets.

After a freeze the sockets are full of fetches from before it. They do not count: a broker whose clock has jumped by
more than ``bound_s`` between two ticks asks the store first.
"""

import math
from collections.abc import Awaitable, Callable

from skep.base.clock import Clock
from skep.base.errors import StoreUnavailable

RENEWALS_PER_BOUND = 4


class LeadershipLease:
    """The lease of all partitions of a broker. ``tick`` and ``renew`` must be called every ``interval_s``."""

    def __init__(self, clock: Clock, session_timeout_s: float) -> None:
        self._clock = clock
        self.bound_s = session_timeout_s / 2
        self._until = -math.inf
        self._ticked_at = clock.monotonic()
        self._followers_count_from = -math.inf

    @property
    def interval_s(self) -> float:
        return self.bound_s / RENEWALS_PER_BOUND

    def tick(self) -> None:
        """Notices that the process was frozen."""
        now = self._clock.monotonic()
        if now - self._ticked_at > self.bound_s:
            self._followers_count_from = math.inf
        self._ticked_at = now

    async def renew(self, is_registered: Callable[[], Awaitable[bool]]) -> None:
        """Asks the store whether our registration exists. The lease counts from the request, not from the response."""
        asked_at = self._clock.monotonic()
        try:
            if not await is_registered():
                return
        except StoreUnavailable:
            return
        now, until = self._clock.monotonic(), asked_at + self.bound_s
        if now < until:
            self._until = until
            if self._followers_count_from == math.inf:
                self._followers_count_from = now

    def is_expired(self, followers_heard_at: Callable[[], float]) -> bool:
        """``followers_heard_at`` returns the moment since which every member of the ISR has fetched; infinity without
        members. It is called only when the store was not heard from."""
        now = self._clock.monotonic()
        if now < self._until:
            return False
        heard_at = followers_heard_at()
        if heard_at == math.inf:
            return False
        return now - self._ticked_at > self.bound_s or heard_at < max(now - self.bound_s, self._followers_count_from)
