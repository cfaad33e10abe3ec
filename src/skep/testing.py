"""A broker for test suites: real, in a process of its own, gone when the test is over.

    from skep.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

No Docker and no JVM. ``kill`` is ``kill -9`` and ``restart`` brings the broker back on the same port with the same
data, so a test can see what its application does when the broker dies. With pytest the fixtures of
``skep.pytest_plugin`` do the same.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_READY = " ready on "


class EmbeddedBroker:
    """A broker process with its data directory.

    Owns the process and, when none was given, the directory; both are gone after ``stop``. ``options`` are the
    broker's, under Kafka's names: ``EmbeddedBroker(options={"num.partitions": "4"})``.
    """

    def __init__(self, *, data_dir: str | Path | None = None, options: Mapping[str, str] | None = None) -> None:
        self._own_directory = tempfile.mkdtemp(prefix="skep-") if data_dir is None else None
        self.data_dir = Path(data_dir if data_dir is not None else os.path.join(str(self._own_directory), "data"))
        self.options = dict(options or {})
        self._port = 0
        self._host = "127.0.0.1"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the broker

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, the same over ``restart``."""
        return f"{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id; RuntimeError when the broker does not run."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """All that the broker has logged so far."""
        # Not seek and read: the broker's standard error shares the file's position, and would write where we seek to.
        descriptor = self._log_file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def start(self) -> "EmbeddedBroker":
        """Starts the broker and returns when it is ready. RuntimeError with the broker's own words when it cannot."""
        if self._process is not None:
            raise RuntimeError("the broker is running already")
        options = {"listeners": f"{self._host}:{self._port}", **self.options, "log.dirs": str(self.data_dir)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "skep.embedded", *(f"{name}={text}" for name, text in options.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            start_new_session=True,  # Ctrl-C in the terminal is for the test run, which then stops us
        )
        try:
            self._host, self._port = self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> tuple[str, int]:
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = process.stdout.readline().decode()
            if not line:
                process.wait()
                raise RuntimeError(f"the broker did not start: {self.log.strip()}")
            if _READY in line:
                host, _, port = line.split(_READY)[1].split(",")[0].rpartition(":")
                return host, int(port)
        raise RuntimeError(f"the broker was not ready after {START_TIMEOUT_S:.0f} s: {self.log.strip()}")

    def kill(self) -> None:
        """As ``kill -9``: at once, with no chance to write anything. The data stays for ``restart``."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """The broker again, on the same port and data: after ``kill``, or after a clean stop if it runs."""
        self._end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """Freezes the process (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """A clean stop, then the temporary directory goes. A second call does nothing."""
        try:
            self._end(signal.SIGTERM)
        finally:
            self._log_file.close()
            if self._own_directory is not None:
                shutil.rmtree(self._own_directory, ignore_errors=True)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal_number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s and was killed") from None
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> "EmbeddedBroker":
        try:
            return self.start()
        except BaseException:
            self.stop()  # nobody calls __exit__ after this
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
