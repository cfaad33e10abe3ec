"""The process of the worker: gives messages from standard input to jobs, writes their replies to standard output."""

import contextlib
import fcntl
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

from skep.base.log_queue import configure_logging
from skep.worker.job import Job, Message, Settings

logger = logging.getLogger(__name__)

JobTable = Mapping[str, Callable[[Settings], Job]]
STOP = "stop"
_NICENESS = 1
_LOCK = ".lock"
_LOCK_PAUSE_S = 0.02


def run(job_table: JobTable) -> None:
    """Runs until the broker sends ``stop``, or until standard input ends."""
    # Ctrl-C is sent to all processes of the terminal; the broker decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    # Output of a library must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, messages), daemon=True).start()
    settings = Settings(**messages.get())
    log = configure_logging(settings.node_id, settings.log_format, settings.log_level)
    lock = _locked(settings.directory)
    host = WorkerHost(settings, job_table, replies)
    while (message := messages.get())["job"] != STOP:
        host.receive(message)
    host.close()
    log.close()
    lock.close()
    os._exit(0)  # without waiting for threads of libraries


def _listen(stream: BinaryIO, messages: "queue.SimpleQueue[Message]") -> None:
    for line in stream:
        messages.put(json.loads(line))
    os._exit(0)


def _locked(directory: str) -> BinaryIO:
    """Waits until this process alone uses the directory: the worker of a broker that was killed may still be ending."""
    os.makedirs(directory, exist_ok=True)
    lock = open(os.path.join(directory, _LOCK), "wb")  # noqa: SIM115, open as long as the process lives
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(_LOCK_PAUSE_S)


class WorkerHost:
    """Owns the jobs. A message for a job that this version lacks is answered with an error."""

    def __init__(self, settings: Settings, job_table: JobTable, replies: BinaryIO) -> None:
        self._settings = settings
        self._job_table = job_table
        self._replies = replies
        self._writing = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def receive(self, message: Message) -> None:
        name, request_id = message["job"], message.get("id")

        def reply(fields: Message) -> None:
            if request_id is not None:
                self._write({"id": request_id, "error": None} | fields)

        job = self._jobs.get(name)
        if job is None:
            if name not in self._job_table:
                reply({"error": f"the worker has no job {name!r}"})
                return
            job = self._jobs[name] = self._job_table[name](self._settings)
        job.receive(message, reply)

    def _write(self, reply: Message) -> None:
        line = json.dumps(reply).encode() + b"\n"
        with self._writing:
            while line:  # a pipe may take a part
                line = line[self._replies.write(line) :]

    def close(self) -> None:
        for job in self._jobs.values():
            job.close()
