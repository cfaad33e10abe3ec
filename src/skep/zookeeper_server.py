"""A real ZooKeeper for development and tests, out of the jars that come with pyspark.

A server is a Java process of its own, small and quick to start, that listens on 127.0.0.1 only. Its ticks are of 200 ms
instead of 2 s, so that sessions of half a second and more can be had. It ends with the process that started it,
however that ends.

Not for production: there ZooKeeper runs on machines of its own, by its own scripts.
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
from skep.base.reserved_port import ReservedPort

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
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
            "ZooKeeper needs Java, and there is none "
            + (f"in JAVA_HOME, {home}" if home else "on the PATH; install a Java 17 runtime or set JAVA_HOME")
        )
    return found


def find_jars() -> list[str]:
    # Not imported: pyspark takes a second to, and only its directory is wanted.
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise StartupError("ZooKeeper's jars come with pyspark: pip install 'skep[spark]'")
    directory = Path(pyspark.origin).parent / "jars"
    if not list(directory.glob(_JARS[0])):
        raise StartupError(f"this pyspark has no ZooKeeper among its jars in {directory}")
    return [str(jar) for pattern in _JARS for jar in sorted(directory.glob(pattern))]


class ZooKeeperServer:
    """One server; a context manager. Its data outlives it, unless it was given no directory to keep it in."""

    def __init__(self, data_dir: Path | None = None, port: int = 0, *, settings: Sequence[str] = ()) -> None:
        """``settings`` are lines of ``zoo.cfg``, behind our own."""
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
        """Be the server ``number`` of an ensemble, whose members are given as lines of its settings."""
        self._members = members
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "myid").write_text(f"{number}\n")

    def start(self) -> None:
        """Begin to start; ``wait_until_serving`` says when it has."""
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
                    start_new_session=True,  # Ctrl-C is for us to pass on
                )
        except OSError as error:
            raise StartupError(f"ZooKeeper cannot be started in {self.data_dir}: {error.strerror}") from None
        # It waits on a pipe that breaks when we die. The kernel's own signal for that (PR_SET_PDEATHSIG) comes already
        # when the thread ends that started the process.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -9 "$0" 2>/dev/null', str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _check_port(self) -> None:
        # Java's own way to say it is an exception in the log, and another server there would be taken for ours.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.port))
            except OSError:
                raise StartupError(f"port {self.port} of {HOST} is taken") from None

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
                raise StartupError(f"ZooKeeper on port {self.port} ended while starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise StartupError(f"ZooKeeper on port {self.port} does not serve after {timeout_s:.0f} s")
            time.sleep(_PAUSE_S)

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while it does not serve."""
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            while chunk := connection.recv(4096):
                answer += chunk
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _last_words(self) -> str:
        lines = (self.data_dir / _LOG_FILE).read_text(errors="replace").splitlines()
        told = [line for line in lines if "Exception" in line or "ERROR" in line] or lines
        return told[-1] if told else "it said nothing"

    def wait(self) -> int:
        """Until the process ends; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """As ``kill -9``: nothing is closed, clients notice by the connection."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """End it in order; the data stays when it has a directory of its own."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._reap()
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._reserved is not None:
            self._reserved.release()

    def pause(self) -> None:
        """Stop it as by SIGSTOP: it is there and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again on the same port and data, killing it first if it runs."""
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
            # Before its pipe is closed: the number it would kill may by then be another process's.
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
    """Several servers that agree with each other; a context manager. With three, any one may be away."""

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
        """The index of the server that leads, if one does."""
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
