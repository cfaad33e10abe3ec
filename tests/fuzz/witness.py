"""A client that minds its own business while others misbehave: it must never notice them."""

import threading
import time
import traceback
from types import TracebackType
from typing import Protocol

from skep.base.errors import ErrorCode
from tests.cpu_time import cpu_s
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of

TOPIC = "witness"
PAUSE_S = 0.002
SLOWEST_ROUND_S = 50.0
"""A round is a produce and a fetch. It takes milliseconds; on a machine with other work it may take seconds."""
SLOWEST_ROUND_CPU_S = 5.0
"""What the broker may compute while a round waits. Other work on the machine does not count here."""


class RunningBroker(Protocol):
    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def pid(self) -> int: ...


class Witness:
    """Produces a record and reads it back, all the time, on one connection, in a thread of its own.

    Owns that thread and the connection. ``check`` says whether all went well so far; leaving the context does too.
    """

    def __init__(self, broker: RunningBroker) -> None:
        bootstrap_servers, self._pid = broker.bootstrap_servers, broker.pid
        self._client = RawClient(bootstrap_servers, client_id="witness")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        self._failure: str | None = None
        self.rounds = 0
        self.slowest_s = self.slowest_cpu_s = 0.0

    def __enter__(self) -> "Witness":
        self._client.create_topic(TOPIC)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()
        if kind is None:
            self.check()

    def check(self, slowest_cpu_s: float = SLOWEST_ROUND_CPU_S) -> None:
        assert self._failure is None, f"the witness was disturbed after {self.rounds} rounds:\n{self._failure}"
        assert self.slowest_s < SLOWEST_ROUND_S, f"the witness waited {self.slowest_s:.1f} s for one round"
        assert self.slowest_cpu_s < slowest_cpu_s, f"the broker computed for {self.slowest_cpu_s:.1f} s in one round"

    def go_on(self, rounds: int = 3) -> None:
        """Returns when so many more rounds have been done."""
        enough = self.rounds + rounds
        while self.rounds < enough and self._failure is None:
            time.sleep(PAUSE_S)
        self.check()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                self._round()
        except Exception:
            self._failure = traceback.format_exc()

    def _round(self) -> None:
        started, computed_s = time.monotonic(), cpu_s(self._pid)
        batch = batch_of(b"round %d" % self.rounds)
        offset = self._client.append(TOPIC, batch)
        assert offset == self.rounds, f"round {self.rounds} was given offset {offset}"
        fetched = self._client.fetch_one(Want(TOPIC, offset))
        assert fetched.error_code is ErrorCode.none
        assert fetched.records is not None
        # What the broker may change lies before the CRC.
        assert fetched.records[17:] == batch[17:], "what was read is not what was written"
        self.rounds += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - started)
        self.slowest_cpu_s = max(self.slowest_cpu_s, cpu_s(self._pid) - computed_s)
