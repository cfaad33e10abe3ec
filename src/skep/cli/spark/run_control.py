"""What ends a pipeline run early: Ctrl-C and SIGTERM, and a broker that is away for too long.

The first signal during a run asks for a stop between two batches, which the run itself looks for
(``RunControl.check``); a second one, and one while Spark starts, interrupts at once. Either is safe: the next run
repeats an unfinished batch, and topics get its rows once.

Spark notices a broker that has stopped only when its own requests time out, minutes later, and tries each flow several
times. So a thread asks the broker every two seconds (``BrokerWatch``).
"""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from confluent_kafka import KafkaException

from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_display import duration
from skep.cli.spark.pipeline_progress import ACTIVE, RunProgress
from skep.cli.spark.spark_driver import RunAbandoned

DEFAULT_PATIENCE_S = 60.0
PAUSE_S = 2.0
SLOWEST_ATTEMPT_S = 60.0
"""Spark's attempt at a flow takes at least this long while no broker responds (kafka.default.api.timeout.ms)."""
_MISSING_TOPIC = re.compile("there is no topic '([^']+)'")
"""A failure that no further attempt repairs."""


class Stopped(RunAbandoned):
    """The run was stopped between two batches. The message is a sentence for the user."""


class PatienceOver(RunAbandoned, CommandError):
    """The run is given up: a broker is away, or a flow fails, for longer than the patience, or waiting is of no use."""


class StopRequest:
    """Receives SIGINT and SIGTERM while it is used as a context. ``number`` is the first signal that came."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.waits_for_a_batch = False
        """While True, the first signal only sets ``number``."""

    @contextmanager
    def received(self) -> Iterator["StopRequest"]:
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first, self.number = self.number is None, self.number or number
        if not (first and self.waits_for_a_batch):
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """128 and the signal, as shells report it."""
        return 128 + (self.number or signal.SIGINT)


class Reachable(Protocol):
    """A cluster that can be asked for its metadata. Raises CommandError if no broker answers."""

    def metadata(self) -> Any: ...


class BrokerWatch:
    """Asks a cluster again and again, in a thread. ``lost`` is the reason and since when, None while it answers."""

    def __init__(
        self, cluster: Reachable, *, pause_s: float = PAUSE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lost: tuple[str, float] | None = None
        self._cluster = cluster
        self._clock = clock
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="broker watch", daemon=True)

    def __enter__(self) -> "BrokerWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # The thread may be in a request of some seconds. It is a daemon, and nobody waits for it.
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._pause_s):
            self.ask()

    def ask(self) -> None:
        asked_s = self._clock()
        try:
            self._cluster.metadata()
        except CommandError as error:
            if self.lost is None:
                self.lost = (str(error), asked_s)
            return
        except KafkaException:
            pass  # a broker that refuses the request is there
        self.lost = None


class RunControl:
    """Decides whether a run goes on. ``check`` is called several times a second, in the main thread."""

    def __init__(
        self,
        stop: StopRequest,
        watch: BrokerWatch | None,
        patience_s: float = DEFAULT_PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop, self._watch, self._patience_s, self._clock = stop, watch, patience_s, clock
        self._lost_since_s: float | None = None
        self._stop_when: tuple[int, int] | None = None

    def check(self, progress: RunProgress) -> None:
        """Raises Stopped if the user asked for it, and PatienceOver if the patience is over."""
        if self._stop.number is not None:
            self._look_for_the_end_of_a_batch(progress)
        self._look_for_the_broker(progress)
        for flow in list(progress.flows.values()):
            # Not while an attempt runs, which may succeed; nor after the last one, while other flows run.
            if flow.state == "retrying" and (missing := _MISSING_TOPIC.match(flow.reason or "")):
                raise PatienceOver(f"{flow.failure}; create it with: skep topics create {missing[1]}")
            if flow.state == "retrying" and self._is_over(flow.failed_s):
                raise PatienceOver(
                    f"{flow.failure} (attempts: {flow.attempts}, within the patience of {duration(self._patience_s)})"
                )

    def _look_for_the_end_of_a_batch(self, progress: RunProgress) -> None:
        flows = list(progress.flows.values())
        active = [flow.name for flow in flows if flow.state in ACTIVE]
        # A flow may also end without another batch.
        done = (sum(flow.batches for flow in flows), sum(flow.state not in (*ACTIVE, "queued") for flow in flows))
        if self._stop_when is None:
            self._stop_when = done
            if active:
                progress.note(f"Stopping when the current batch of {', '.join(active)} is done; again: at once.")
        if not active or done != self._stop_when or self._lost_since_s is not None:
            where = "between two batches" if done != self._stop_when else "where no batch was running"
            raise Stopped(f"Stopped {where}. The next run continues there.")

    def _look_for_the_broker(self, progress: RunProgress) -> None:
        lost = self._watch.lost if self._watch is not None else None
        if lost is None:
            if self._lost_since_s is not None:
                progress.note(f"The broker answers again, after {duration(self._clock() - self._lost_since_s)}.")
                self._lost_since_s = None
            return
        reason, since_s = lost
        if self._lost_since_s is None:
            self._lost_since_s = since_s
            progress.note(f"{reason}; waiting for it for {duration(self._patience_s)} (--patience).")
        if self._is_over(since_s):
            reason = reason.partition(" (")[0]
            raise PatienceOver(
                f"{reason} for {duration(self._patience_s)} (--patience); the next run continues where this one stopped"
            )

    def _is_over(self, since_s: float | None) -> bool:
        return since_s is not None and self._clock() - since_s >= self._patience_s


def retries_within(patience_s: float) -> int:
    """Returns how often Spark may retry a flow so that it is still trying when the patience is over."""
    return 0 if patience_s <= 0 else max(2, math.ceil(patience_s / SLOWEST_ATTEMPT_S))
