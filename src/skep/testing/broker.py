"""A single broker for tests.

``kill`` sends SIGKILL, and ``restart`` starts the broker on the same port with the same data, so that a test can check
how an application behaves when its broker crashes.
"""

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from skep.base.reserved_port import ReservedPort
from skep.broker_process import command, first_line, ready_address
from skep.testing.embedded_security import EmbeddedSecurity

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
HOST = "127.0.0.1"
TEST_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
started: "weakref.WeakSet[EmbeddedBroker]" = weakref.WeakSet()
"""The brokers between ``launch`` and ``stop``, for the report of a test that fails (``pytest_plugin.py``)."""


class EmbeddedBroker:
    """A broker process with its data directory.

    Owns the process, its port and, unless ``data_dir`` is given, a temporary directory; ``stop`` releases all of them.
    ``options`` are broker options with Kafka's names: ``EmbeddedBroker(options={"num.partitions": "4"})``. One default
    differs from that of a broker: a new group does not wait for more members (``group.initial.rebalance.delay.ms=0``),
    because a test has one consumer most of the time.

    ``security`` is ``"sasl_ssl"``, ``"ssl"`` or ``"sasl_plaintext"``: the broker has certificates and a user, and
    ``client_config`` has the settings of clients. Brokers of a cluster share an ``EmbeddedSecurity``.
    """

    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        options: Mapping[str, str] | None = None,
        security: str | EmbeddedSecurity | None = None,
    ) -> None:
        self._own_security = EmbeddedSecurity(security) if isinstance(security, str) else None
        self.security = self._own_security if isinstance(security, str) else security
        self._own_directory = tempfile.mkdtemp(prefix="skep-") if data_dir is None else None
        self.data_dir = Path(data_dir if data_dir is not None else os.path.join(str(self._own_directory), "data"))
        self.options = {name: str(text) for name, text in (options or {}).items()}
        if self.security is not None:
            self.options = self.security.options(self.options)
        self._reserved = ReservedPort(HOST)
        self._address = (HOST, self._reserved.number)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = tempfile.TemporaryFile()  # noqa: SIM115, closed by stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port``; it does not change over restarts."""
        host, port = self._address
        return f"{host}:{port}"

    @property
    def client_config(self) -> dict[str, str]:
        """The settings of a client, for confluent-kafka: the address and, with ``security``, TLS and SASL."""
        if self.security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        return self.security.client_config(self.bootstrap_servers)

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the broker is not running."""
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended. A paused broker is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The broker's log so far, over its restarts."""
        # pread, not seek and read: the broker's stderr shares the file position, and would write where we seek to.
        descriptor = self._log_file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def start(self) -> "EmbeddedBroker":
        """Starts the broker and returns when it is ready. Raises RuntimeError, with the broker's error, if it fails."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Starts the process without waiting for it, so that several brokers can start at the same time."""
        if self._process is not None:
            raise RuntimeError("the broker is already running")
        started.add(self)
        protocol = "" if self.security is None else f"{self.security.protocol}://"
        listen = f"{protocol}{HOST}:{self._reserved.number}"
        options = {"listeners": listen, **TEST_DEFAULTS, **self.options, "log.dirs": str(self.data_dir)}
        self._process = subprocess.Popen(
            command(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C reaches only the test run, which then stops the broker
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(first_line(options))
        except BrokenPipeError:
            pass  # it has ended already; wait_until_ready reports why

    def wait_until_ready(self) -> None:
        """Waits until the launched broker is ready. Kills it and raises RuntimeError if it fails to start."""
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
                raise RuntimeError(f"the broker did not start: {self._startup_error()}")
            if (address := ready_address(line)) is not None:
                return address
        raise RuntimeError(f"the broker was not ready after {START_TIMEOUT_S:.0f} s: {self._startup_error()}")

    def _startup_error(self) -> str:
        """Returns the line with the reason; the whole log if there is none, because that is a bug in the broker."""
        log = self.log.strip()
        return next((line for line in reversed(log.splitlines()) if line.startswith("skep: ")), log)

    def kill(self) -> None:
        """Sends SIGKILL: the broker ends at once and writes nothing more. Keeps the data for ``restart``."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Stops the broker cleanly (SIGTERM). Keeps the data for ``restart``."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Starts the broker again on the same port and data; stops it cleanly first if it is running."""
        self._end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """Pauses the process (SIGSTOP): connections stay open, and the broker does not respond."""
        os.kill(self.pid, signal.SIGSTOP)
        # A thread inside a system call stops when the call ends. WNOWAIT leaves an exit code to Popen.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stops the broker cleanly and removes its temporary directory. A second call does nothing."""
        try:
            self._end(signal.SIGTERM)
        finally:
            started.discard(self)
            self._log_file.close()
            self._reserved.release()
            if self._own_security is not None:
                self._own_security.close()
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
            self.stop()  # __exit__ is not called if __enter__ raises
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
