"""What a queue consumer has done so far, counted by its threads."""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of deliveries since the start.

    ``accepted``, ``retried`` and ``rejected`` are confirmed by the broker. ``refused`` are acknowledgements that the
    broker did not take: the lock had expired, or the connection was lost before the response. ``late`` are handlers
    that returned after the lock had expired. The records of both are delivered again. ``returned`` are records that no
    handler had begun when the consumer stopped, or when their lock was about to expire. ``stuck`` are handlers that run
    although their time is over.
    """

    taken: int = 0
    accepted: int = 0
    retried: int = 0
    rejected: int = 0
    refused: int = 0
    late: int = 0
    returned: int = 0
    stuck: int = 0
    running: int = 0
    most_running: int = 0


class Counters:
    """The current statistics. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Statistics()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._now = replace(self._now, **{name: getattr(self._now, name) + count})

    def begin(self) -> None:
        """Counts a handler that is called."""
        with self._lock:
            running = self._now.running + 1
            self._now = replace(self._now, running=running, most_running=max(running, self._now.most_running))

    def end(self) -> None:
        self.add("running", -1)

    @property
    def now(self) -> Statistics:
        with self._lock:
            return self._now
