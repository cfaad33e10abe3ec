"""The broker's side of the worker process: starts it when there is work, starts it again when it dies, ends it.

The messages are described in ``skep/worker/job.py``, which is not imported here: the worker's package needs
confluent_kafka, and the broker does without.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from skep.base.clock import Clock

logger = logging.getLogger(__name__)

WORKER_DIRECTORY = "worker"
"""In the data directory; created by the worker."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
LONG_LIFE_S = 10.0
"""A worker that has lived this long is started again after the first pause."""
IDLE_S = 60.0
"""A worker without work is ended after this time."""
STOP_S = 3.0
"""How long a worker may take to finish what is under way."""
MAX_REPLY_BYTES = 1 << 20
_COMMAND = ("-P", "-m", "skep.worker")


class WorkerFailed(Exception):
    """The worker ended before it replied, or replied with an error, which is the text."""


class WorkerProcess:
    """Owns the process. ``_states`` has the last state of each job, ``_requests`` those without a reply.

    Between calls a process is running, or starting, if there is work: a state or a request.
    """

    def __init__(
        self,
        clock: Clock,
        settings: Callable[[], dict[str, Any]],
        command: tuple[str, ...] = _COMMAND,
    ) -> None:
        """``settings`` returns the fields of ``Settings`` in ``worker/job.py``."""
        self._clock = clock
        self._settings = settings
        self._command = command
        self._states: dict[str, dict[str, Any]] = {}
        self._requests: dict[int, tuple[bytes, asyncio.Future[dict[str, Any]]]] = {}
        self._sent: set[int] = set()
        self._ids = count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return self._process.pid if self._process is not None else None

    def tell(self, job: str, state: dict[str, Any] | None) -> None:
        """Sets the state of a job. None: the job has nothing to do."""
        if state is None:
            if self._states.pop(job, None) is None:
                return
            state_now: dict[str, Any] = {}
        else:
            state_now = self._states[job] = state
        self._send(_line({"job": job} | state_now))
        self._keep_running()

    async def ask(self, job: str, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the reply. Raises WorkerFailed. Then the request may have been carried out, in part, or not at all.

        A request is sent once. While the worker is started again it waits.
        """
        request_id = next(self._ids)
        line = _line({"job": job, "id": request_id} | request)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = line, future
        self._send_request(request_id)
        self._keep_running()
        try:
            reply = await future
        finally:
            self._requests.pop(request_id, None)
            self._sent.discard(request_id)
        if reply["error"] is not None:
            raise WorkerFailed(reply["error"])
        return reply

    async def stop(self) -> None:
        """Ends the process. Returns when it is gone; requests without a reply fail."""
        self._is_stopping = True
        if self._process is not None:
            await self._end(self._process)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._fail(self._requests)

    # The life of the process.

    @property
    def _has_work(self) -> bool:
        return bool(self._states or self._requests)

    def _keep_running(self) -> None:
        if not self._is_stopping and self._has_work and (self._keeper is None or self._keeper.done()):
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="worker")

    async def _keep(self) -> None:
        """Starts the process until there is no more work."""
        pause_s = FIRST_PAUSE_S
        while self._has_work and not self._is_stopping:
            begun = self._clock.monotonic()
            try:
                process = self._process = await self._started()
                await self._replies(process)
                why = f"ended with exit code {await process.wait()}"
            except OSError as error:
                why = f"cannot be started: {error}"
            finally:
                self._process = None
                self._fail(self._sent)
            if self._is_stopping or not self._has_work:
                return
            if self._clock.monotonic() - begun > LONG_LIFE_S:
                pause_s = FIRST_PAUSE_S
            logger.warning("the worker process %s; starting it again in %.1f s", why, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _started(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_REPLY_BYTES,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._process = process
        self._send(_line(self._settings()))
        for job, state in self._states.items():
            self._send(_line({"job": job} | state))
        for request_id in tuple(self._requests):
            self._send_request(request_id)
        return process

    async def _replies(self, process: asyncio.subprocess.Process) -> None:
        """Passes replies on until the process ends, or has had no work for a while."""
        assert process.stdout is not None
        while True:
            try:
                # Not wait_for: that of Python 3.11 forgets a cancellation that comes together with a line.
                async with asyncio.timeout(IDLE_S):
                    line = await process.stdout.readline()
            except TimeoutError:
                if self._has_work:
                    continue
                await self._end(process)
                return
            except ValueError:  # a line that is longer than MAX_REPLY_BYTES
                process.kill()
                return
            if not line:
                return
            reply = json.loads(line)
            _, future = self._requests.get(reply["id"], (b"", None))
            if future is not None and not future.done():
                future.set_result(reply)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._send(_line({"job": "stop"}))
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    # Messages.

    def _send(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    def _send_request(self, request_id: int) -> None:
        if self._process is not None:
            self._send(self._requests[request_id][0])
            self._sent.add(request_id)

    def _fail(self, request_ids: Any) -> None:
        for request_id in tuple(request_ids):
            _, future = self._requests.get(request_id, (b"", None))
            if future is not None and not future.done():
                future.set_result({"error": "the worker process has ended"})


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
