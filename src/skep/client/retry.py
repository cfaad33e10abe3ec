"""Trying again: how long to pause, and when it is enough."""

from skep.client.cluster_client import ClusterClient
from skep.client.errors import TimedOut

SHORTEST_PAUSE_S = 0.001
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Patience:
    """Ends ``timeout_s`` after the last progress. The first failure costs no pause: most often a leader has moved, or a
    connection that was kept for later is from before a restart, and the next attempt succeeds."""

    def __init__(self, cluster: ClusterClient, timeout_s: float, what: str) -> None:
        self._clock = cluster.clock
        self._sleep = cluster.sleep
        self._timeout_s = timeout_s
        self._what = what
        self._pause_s = 0.0
        self._since = self._clock.monotonic()

    def progress(self) -> None:
        self._pause_s = 0.0
        self._since = self._clock.monotonic()

    def wait(self, reason: str, pause_s: float | None = None) -> None:
        """Returns when it is time to try again; TimedOut, with ``reason``, when it is time no more.

        ``pause_s`` is for who has waited already, at the broker: then the pauses need not grow.
        """
        left_s = self._since + self._timeout_s - self._clock.monotonic()
        if left_s <= 0:
            raise TimedOut(f"{self._what}: no progress for {self._timeout_s:g} s: {reason}")
        wanted_s = self._pause_s if pause_s is None else pause_s
        if wanted_s:
            self._sleep(max(SHORTEST_PAUSE_S, min(wanted_s, left_s)))
        if pause_s is None:
            self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
