"""One broker for a test suite. ``kill`` is ``kill -9`` and ``restart`` brings it back on the same port with the same
data, so a test can see what its application does when the broker dies.
"""

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from skep.base.reserved_port import ReservedPort
from skep.broker_process import command, first_line, ready_address

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
HOST = "127.0.0.1"


class EmbeddedBroker:
    """A broker process with its data directory.

    Owns the process, its port and, when none was given, the directory; all are gone after ``stop``. ``options`` are the
    broker's, under Kafka's names: ``EmbeddedBroker(options={"num.partitions": "4"})``.
    """

    def __init__(self, *, data_dir: str | Path | None = None, options: Mapping[str, str] | None = None) -> None:
        self._own_directory = tempfile.mkdtemp(prefix="skep-") if data_dir is None else None
        self.data_dir = Path(data_dir if data_dir is not None else os.path.join(str(self._own_directory), "data"))
        self.options = {name: str(text) for name, text in (options or {}).items()}
        self._reserved = ReservedPort(HOST)
        self._address = (HOST, self._reserved.number)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the broker

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``, the same over ``restart``."""
        host, port = self._address
        return f"{host}:{port}"

    @property
    def pid(self) -> int:
        """The process id; RuntimeError when the broker does not run."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended, be it by itself; one that is paused runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the broker has logged so far."""
        # Not seek and read: the broker's standard error shares the file's position, and would write where we seek to.
        descriptor = self._log_file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def start(self) -> "EmbeddedBroker":
        """Starts the broker and returns when it is ready. RuntimeError with the broker's own words when it cannot."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """The first half of ``start``, that does not wait: several brokers start faster at the same time."""
        if self._process is not None:
            raise RuntimeError("the broker is running already")
        listen = f"{HOST}:{self._reserved.number}"
        options = {"listeners": listen, **self.options, "log.dirs": str(self.data_dir)}
        self._process = subprocess.Popen(
            command(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is for the test run, which then stops us
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(first_line(options))
        except BrokenPipeError:
            pass  # it has died already; waiting for it says of what

    def wait_until_ready(self) -> None:
        """The second half of ``start``."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        try:
            self._address = self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> tuple[str, int]:
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = process.stdout.readline().decode()
            if not line:
                process.wait()
                raise RuntimeError(f"the broker did not start: {self._last_words()}")
            if (address := ready_address(line)) is not None:
                return address
        raise RuntimeError(f"the broker was not ready after {START_TIMEOUT_S:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        """The one line that says why; all of the log when there is none, for then it is a bug of ours."""
        log = self.log.strip()
        return next((line for line in reversed(log.splitlines()) if line.startswith("skep: ")), log)

    def kill(self) -> None:
        """As ``kill -9``: at once, with no chance to write anything. The data stays for ``restart``."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """A clean stop. The data stays for ``restart``."""
        self._end(signal.SIGTERM)

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
            self._reserved.release()
            if self._own_directory is not None:
                shutil.rmtree(self._own_directory, ignore_errors=True)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        process.send_signal(signal.SIGCONT)
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
