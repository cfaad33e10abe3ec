"""The measure of one quota: a bucket that leaks at the rate of the quota.

What a client uses is poured into the bucket. While it holds more than ``burst``, the client is over its quota, and it
is back in the time that the rest takes to leak. So a client that waits as it is told uses, in any stretch of T seconds,
at most ``burst + rate * T`` and the one use that filled the bucket; and a client that always has more to use gets no
less than ``rate * T``. With a rate of 1000 and a burst of 500:

    at 0 s: uses 400, holds 400, no wait
    at 0 s: uses 600, holds 1000, waits 0.5 s
    at 0.5 s: holds 500 and may use more

Kafka sums up the last eleven samples of a second instead. A client that was idle may then use the quota of ten seconds
at once, and as much again ten seconds later; here a burst is short, which keeps clients to their rate within 10 % over
any ten seconds.
"""

LONGEST_WAIT_S = (2**31 - 1) / 1000
"""``throttle_time_ms`` is an int32."""


class LeakyBucket:
    """Owns what was used and has not leaked. ``rate`` is per second; both it and ``burst`` change with the quota.

    A bucket that is ``retired`` makes nobody wait, until it gets a rate again.
    """

    __slots__ = ("_level", "_updated", "burst", "is_retired", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.is_retired = False
        self._level = 0.0
        self._updated = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Sets the quota. What leaked until now leaked at the rate before.

        Nobody waits longer for what was used before a quota was lowered. Otherwise half a second's use of 100 MB/s
        would take 50,000 s to leak at 1 kB/s.
        """
        self._leak(now)
        if rate < self.rate:
            self._level = self._level * rate / self.rate
        self.rate = rate
        self.burst = burst
        self.is_retired = False

    def use(self, amount: float, now: float) -> float:
        """Pours ``amount`` in and returns for how many seconds the client is over its quota now."""
        self._leak(now)
        self._level += amount
        return self._wait_s()

    def wait_s(self, now: float, more: float = 0.0) -> float:
        """Returns for how many seconds the client is over its quota if it uses ``more``, which is not counted."""
        self._leak(now)
        return self._wait_s(more)

    def is_empty(self, now: float) -> bool:
        """Whether the bucket is like a new one."""
        self._leak(now)
        return self._level == 0.0

    def _leak(self, now: float) -> None:
        level = self._level - (now - self._updated) * self.rate
        self._level = level if level > 0.0 else 0.0
        self._updated = now

    def _wait_s(self, more: float = 0.0) -> float:
        over = self._level + more - self.burst
        return min(over / self.rate, LONGEST_WAIT_S) if over > 0.0 and not self.is_retired else 0.0
