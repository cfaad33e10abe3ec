"""Apache ZooKeeper for development and tests, from the jars that come with pyspark.

A server is a small Java process that listens on 127.0.0.1 only. Its tick time is 200 ms instead of 2 s, to allow
session timeouts from half a second on. It ends with the process that started it, however that ends.

Not for production, where ZooKeeper runs on its own machines with its own scripts.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from skep.base.errors import StartupError
from skep.base.extras import how_to_install
from skep.base.reserved_port import ReservedPort

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
_ASK_TIMEOUT_S = 10.0
_LOG_FILE = "zookeeper.log"

_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "netty-*.jar",
    "slf4j-api-*.jar",
    "log4j-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
    "commons-cli-*.jar",
    "audience-annotations-*.jar",
    "jackson-*.jar",
)
_JAVA_FLAGS = (
    "-Xmx128m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
)
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SETTINGS = """\
tickTime=200
initLimit=50
syncLimit=10
minSessionTimeout=500
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if found is None:
        raise StartupError(
            f"ZooKeeper needs Java, and JAVA_HOME={home} has no bin/java"
            if home
            else "ZooKeeper needs Java, and there is no java on the PATH; install a Java 17 runtime or set JAVA_HOME"
        )
    return found


def find_jars() -> list[str]:
    # Importing pyspark takes a second, and only its directory is needed.
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise StartupError(f"ZooKeeper's jars come with pyspark, which is not installed: {how_to_install('spark')}")
    directory = Path(pyspark.origin).parent / "jars"
    if not list(directory.glob(_JARS[0])):
        raise StartupError(f"pyspark has no ZooKeeper jars in {directory}; install pyspark from PyPI")
    return [str(jar) for pattern in _JARS for jar in sorted(directory.glob(pattern))]


class ZooKeeperServer:
    """One server; a context manager. Without ``data_dir`` its data is in a temporary directory, removed by ``stop``."""

    def __init__(self, data_dir: Path | None = None, port: int = 0, *, settings: Sequence[str] = ()) -> None:
        """``settings`` are additional lines of ``zoo.cfg``."""
        self._settings = settings
        self._temporary = tempfile.TemporaryDirectory(prefix="skep-zookeeper-") if data_dir is None else None
        self.data_dir = Path(self._temporary.name) if self._temporary is not None else data_dir or Path()
        self._reserved = ReservedPort(HOST) if not port else None
        self.port = self._reserved.number if self._reserved is not None else port
        self._members: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def connect(self) -> str:
        """The address as a metadata store: ``--metadata zk://127.0.0.1:2181``."""
        return f"zk://{self.address}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def join(self, number: int, members: Sequence[str]) -> None:
        """Makes this server ``number`` of an ensemble. ``members`` are the ``server.N=`` lines of ``zoo.cfg``."""
        self._members = members
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "myid").write_text(f"{number}\n")

    def start(self) -> None:
        """Starts the process without waiting for it; see ``wait_until_serving``."""
        java, jars = find_java(), find_jars()
        self._check_port()
        try:
            settings = self._write_settings()
            with open(self.data_dir / _LOG_FILE, "ab") as log:
                self._process = subprocess.Popen(
                    [java, *_JAVA_FLAGS, "-cp", os.pathsep.join(jars), _MAIN_CLASS, str(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # so that Ctrl-C reaches only this process, which then stops the server
                )
        except OSError as error:
            raise StartupError(f"cannot start ZooKeeper in {self.data_dir}: {error.strerror}") from None
        # The watchdog reads from a pipe that closes when this process dies, and then kills the server. The kernel's
        # PR_SET_PDEATHSIG is sent when the starting thread ends, which is too early.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -9 "$0" 2>/dev/null', str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _check_port(self) -> None:
        # Java would only log an exception, and another server on this port would be taken for this one.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError:
                raise StartupError(f"port {self.port} on {HOST} is in use; choose another one") from None

    def _write_settings(self) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lines = [f"dataDir={self.data_dir.absolute()}", f"clientPortAddress={HOST}", f"clientPort={self.port}"]
        settings = self.data_dir / "zoo.cfg"
        settings.write_text(_SETTINGS + "\n".join([*lines, *self._settings, *self._members]) + "\n")
        return settings

    def wait_until_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while self.mode() is None:
            if not self.is_running:
                raise StartupError(f"ZooKeeper on port {self.port} did not start: {self._last_error()}")
            if time.monotonic() > deadline:
                raise StartupError(f"ZooKeeper on port {self.port} was not ready after {timeout_s:.0f} s")
            time.sleep(_PAUSE_S)

    def mode(self) -> str | None:
        """Returns ``standalone``, ``leader`` or ``follower``; None if it is not serving."""
        response, address = b"", (HOST, self.port)
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=_ASK_TIMEOUT_S) as connection:
            connection.sendall(b"srvr")
            while chunk := connection.recv(4096):
                response += chunk
        for line in response.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _last_error(self) -> str:
        lines = (self.data_dir / _LOG_FILE).read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Exception" in line or "ERROR" in line] or lines
        return errors[-1] if errors else "its log is empty"

    def wait(self) -> int:
        """Waits until the process ends and returns its exit code."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """Sends SIGKILL: sessions are not closed, and clients see their connections break."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Stops the server cleanly. Removes the data if it is in a temporary directory."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._reap()
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._reserved is not None:
            self._reserved.release()

    def pause(self) -> None:
        """Pauses the process (SIGSTOP): connections stay open, and the server does not respond."""
        self._signal(signal.SIGSTOP)
        if self._process is not None and self._process.returncode is None:
            # A thread that runs stops a moment later, and could still respond. WNOWAIT leaves an exit code to Popen.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Starts the server again on the same port and data; kills it first if it is running."""
        self.kill()
        self.start()
        self.wait_until_serving()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._watchdog is not None:
            # Killed before its pipe closes: the server's process id may be in use by another process by then.
            self._watchdog.kill()
            self._watchdog.communicate()
        self._process = self._watchdog = None

    def __enter__(self) -> "ZooKeeperServer":
        self.start()
        try:
            self.wait_until_serving()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class ZooKeeperEnsemble:
    """An ensemble of servers; a context manager. With three servers, it tolerates the loss of one."""

    def __init__(self, count: int = 3, data_dir: Path | None = None) -> None:
        numbers = range(1, count + 1)
        self._reserved = [ReservedPort(HOST) for _ in range(3 * count)]
        ports = [port.number for port in self._reserved]
        clients, quorum, election = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.servers = [
            ZooKeeperServer(None if data_dir is None else data_dir / str(number), port)
            for number, port in zip(numbers, clients, strict=True)
        ]
        members = [
            f"server.{number}={HOST}:{first}:{second}"
            for number, first, second in zip(numbers, quorum, election, strict=True)
        ]
        for number, server in zip(numbers, self.servers, strict=True):
            server.join(number, members)

    @property
    def connect(self) -> str:
        return "zk://" + ",".join(server.address for server in self.servers)

    def leader(self) -> int | None:
        """Returns the index of the leader, or None."""
        modes = [server.mode() for server in self.servers]
        return modes.index("leader") if "leader" in modes else None

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def wait_until_serving(self) -> None:
        for server in self.servers:
            server.wait_until_serving()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
        for port in self._reserved:
            port.release()

    def kill(self, index: int) -> None:
        self.servers[index].kill()

    def pause(self, index: int) -> None:
        self.servers[index].pause()

    def resume(self, index: int) -> None:
        self.servers[index].resume()

    def restart(self, index: int) -> None:
        self.servers[index].restart()

    def __enter__(self) -> "ZooKeeperEnsemble":
        try:
            self.start()
            self.wait_until_serving()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
