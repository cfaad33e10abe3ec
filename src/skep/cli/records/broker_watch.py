"""Tells the user of ``--follow`` that no broker answers, and that one answers again.

librdkafka reconnects for ever without a word, which is right for a reader that waits for new records. But a user cannot
tell a dead broker from a topic without new records. Its error callback does not report every unreachable broker, so the
watch sends a request when the reader has been quiet for a while.
"""

import time
from collections.abc import Callable

from skep.cli import output
from skep.cli.connection import Cluster

QUIET_S = 5.0
"""A reader that gets records has a broker; one that has been quiet for this long asks."""
RETRY_S = 1.0
"""How often it asks while no broker answers, and how long one request may take: Ctrl-C waits for it."""


class BrokerWatch:
    """Is called in every turn of a reader. Says each change once, on stderr."""

    def __init__(self, cluster: Cluster, now: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._now = now
        self._is_lost = False
        self._next = now() + QUIET_S

    def turn(self, *, got_records: bool) -> None:
        now = self._now()
        if got_records:
            self._answered(now)
        elif now >= self._next or (not self._is_lost and self._cluster.has_new_errors()):
            if self._cluster.answers(RETRY_S):
                self._answered(now)
            else:
                self._lost()

    def _answered(self, now: float) -> None:
        if self._is_lost:
            output.note(f"A broker answers at {self._cluster.bootstrap} again.")
        self._is_lost = False
        self._next = now + QUIET_S

    def _lost(self) -> None:
        if not self._is_lost:
            output.note(f"No broker answers at {self._cluster.bootstrap}; waiting for one. Ctrl-C ends.")
        self._is_lost = True
        self._next = self._now() + RETRY_S
