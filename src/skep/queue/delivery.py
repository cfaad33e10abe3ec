"""One delivery of a record: from the poll that took it to its acknowledgement.

    WAITING --begin--> RUNNING --finish--> FINISHED
       |                  |
       +----withdraw------+----abandon---> GIVEN_UP      its lane waits for it no more; a result that comes is too late

A lane and a thread of the handlers may decide at the same moment, so each step happens under a lock.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from enum import Enum

from skep.queue.message import Message, Verdict
from skep.queue.statistics import Counters

log = logging.getLogger("skep.queue")


class _State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    GIVEN_UP = "given up"


class Delivery:
    """A record that a lane has taken, and the verdict once there is one."""

    def __init__(self, message: Message, counters: Counters, on_finish: Callable[["Delivery"], None]) -> None:
        self.message = message
        self.verdict: Verdict | None = None
        self.runs_since = math.inf
        """By the monotonic clock; infinity before the handler is called."""
        self._counters = counters
        self._on_finish = on_finish
        self._cancel: Callable[[], object] | None = None
        self._state = _State.WAITING
        self._lock = threading.Lock()

    def begin(self, cancel: Callable[[], object] | None = None) -> bool:
        """Returns whether the handler is to be called. ``cancel`` is called if the delivery is abandoned meanwhile."""
        with self._lock:
            if self._state is not _State.WAITING:
                return False
            self._state = _State.RUNNING
            self._cancel = cancel
            self.runs_since = time.monotonic()
        self._counters.begin()
        return True

    def finish(self, verdict: Verdict) -> None:
        """Called when the handler has ended."""
        self._counters.end()
        with self._lock:
            is_late = self._state is _State.GIVEN_UP
            if not is_late:
                self._state = _State.FINISHED
                self.verdict = verdict
        if is_late:
            self._counters.add("stuck", -1)
            self._counters.add("late")
            log.warning(
                "the handler of %s ended after its time: its result (%s) does not count",
                self,
                verdict.outcome.value,
            )
        else:
            self._on_finish(self)

    def withdraw(self) -> bool:
        """Gives the delivery up if its handler was not called yet; returns whether that is so."""
        with self._lock:
            if self._state is not _State.WAITING:
                return False
            self._state = _State.GIVEN_UP
            return True

    def abandon(self) -> bool:
        """Gives the delivery up although its handler runs; returns False if it has ended."""
        with self._lock:
            if self._state is _State.FINISHED:
                return False
            if self._state is _State.RUNNING:
                self._counters.add("stuck")
            self._state = _State.GIVEN_UP
            cancel = self._cancel
        if cancel is not None:
            cancel()
        return True

    def __str__(self) -> str:
        message = self.message
        return f"{message.topic}-{message.partition} offset {message.offset} (delivery {message.delivery_count})"
