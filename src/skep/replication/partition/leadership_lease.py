"""Until when a leader may take its own word for it that it leads.

A leader that was succeeded is told by the metadata store. One that is cut off from the store, or was frozen, is not
told in time, and would go on answering from an old log. What it knows for sure is when it last heard of others:

- *The store* said at some moment that our registration is there. Whoever asked it then has a session that lives for at
  least ``bound_s`` longer, and nobody succeeds a broker whose session lives without its watch being told.
- *A follower* fetched at some moment, in our epoch. A successor is elected from the ISR, and no longer fetches from us
  from the moment on at which it leads. So while every member of the ISR fetches, none of them leads.

When neither holds, the lease is over: another broker may lead by now. What must not be stale is then refused; see
``Partition.check_leads``. A leader that hears its followers is not stopped by a store that is away, nor one that hears
the store by a follower that is slow. Where nobody else can be elected (one replica, or an ISR of one) it never ends.

``bound_s`` is half of the session timeout. It bounds for how long an old leader is believed; it proves nothing, for
clocks may differ in speed, a virtual machine may be frozen together with its clock, and a fetch may have been under way
for long. What has to be certain is written and waits for its acknowledgement, which only the leader of now gives.

After a freeze the sockets are full of fetches from before it. They do not count: a broker that finds that its clock has
jumped by more than ``bound_s`` between two ticks asks the store first.
"""

import math
from collections.abc import Awaitable, Callable

from skep.base.clock import Clock
from skep.base.errors import StoreUnavailable

RENEWALS_PER_BOUND = 4


class LeadershipLease:
    """One for all partitions of a broker. ``tick`` and ``renew`` are to be called every ``interval_s``."""

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
        """Notices that the process stood still."""
        now = self._clock.monotonic()
        if now - self._ticked_at > self.bound_s:
            self._followers_count_from = math.inf
        self._ticked_at = now

    async def renew(self, is_registered: Callable[[], Awaitable[bool]]) -> None:
        """Asks the store whether our registration is there. The lease counts from the question, not the answer."""
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

    def is_over(self, followers_heard_at: Callable[[], float]) -> bool:
        """``followers_heard_at`` gives the moment since which every member of the ISR has fetched; infinity: there is
        none. It is asked only when the store was not heard of."""
        now = self._clock.monotonic()
        if now < self._until:
            return False
        heard_at = followers_heard_at()
        if heard_at == math.inf:
            return False
        return now - self._ticked_at > self.bound_s or heard_at < max(now - self.bound_s, self._followers_count_from)
