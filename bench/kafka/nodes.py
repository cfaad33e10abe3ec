"""Apache Kafka as a peer: Maven downloads it once, its nodes run in KRaft mode on loopback with ports of the system.

Every node is broker and controller at once. The options are Kafka's defaults and those of its own start script, except
what several nodes on one machine need.
"""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.kafka.maven_jars import maven_jars
from skep.base.reserved_port import ReservedPort
from skep.zookeeper_server import find_java

VERSION = "4.3.1"
START_TIMEOUT_S = 90.0

_JAVA_FLAGS = (
    # As bin/kafka-server-start.sh and bin/kafka-run-class.sh have them.
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def jars() -> Path:
    """The directory with Kafka's jars."""
    kafka = [f"org.apache.kafka:{name}:{VERSION}" for name in ("kafka_2.13", "kafka-tools")]
    return maven_jars(f"{VERSION}-with-tools", kafka)


class KafkaNodes:
    """Nodes 1 to N of one cluster; a context manager that owns their processes and their data."""

    def __init__(self, count: int = 1) -> None:
        self._class_path = f"{jars()}/*"
        self._java = find_java()
        self._directory = Path(tempfile.mkdtemp(prefix="skep-bench-kafka-"))
        self._reserved = [ReservedPort("127.0.0.1") for _ in range(2 * count)]
        ports = [port.number for port in self._reserved]
        self._ports = dict(enumerate(ports[:count], 1))
        self._controllers = dict(enumerate(ports[count:], 1))
        self._cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> dict[int, str]:
        return {i: f"127.0.0.1:{port}" for i, port in self._ports.items()}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def pid(self, i: int) -> int:
        return self._processes[i].pid

    def start(self, i: int) -> None:
        process = self._run("kafka.Kafka", str(self._settings(i)), log=self._directory / f"{i}.log")
        self._processes[i] = process

    def kill(self, i: int) -> None:
        process = self._processes.pop(i)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_until_ready(self) -> None:
        """Returns when every node is known to the cluster."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if dead := [i for i, process in self._processes.items() if process.poll() is not None]:
                raise RuntimeError(f"Kafka ended: {(self._directory / f'{dead[0]}.log').read_text()[-2000:]}")
            with contextlib.suppress(Exception):
                if len(admin.list_topics(timeout=2).brokers) == len(self._ports):
                    return
            time.sleep(0.2)
        raise RuntimeError(f"Kafka was not ready within {START_TIMEOUT_S:.0f} s")

    def __enter__(self) -> "KafkaNodes":
        try:
            for i in self._ports:
                self._run("kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(self._settings(i)))
            for i in self._ports:
                self.start(i)
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        for i in list(self._processes):
            self.kill(i)
        for port in self._reserved:
            port.release()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, main: str, *arguments: str, log: Path | None = None) -> "subprocess.Popen[bytes]":
        """Starts one Java process; waits for its end when it has no log."""
        command = [self._java, *_JAVA_FLAGS, "-cp", self._class_path, main, *arguments]
        with open(log or self._directory / "tools.log", "ab") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if log is None and process.wait():
            raise RuntimeError(f"{main} failed: {(self._directory / 'tools.log').read_text()[-2000:]}")
        return process

    def _settings(self, i: int) -> Path:
        path = self._directory / f"{i}.properties"
        if not path.exists():
            replicas = str(min(3, len(self._ports)))
            voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in self._controllers.items())
            lines = {
                "process.roles": "broker,controller",
                "node.id": str(i),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[i]},CONTROLLER://127.0.0.1:{self._controllers[i]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._ports[i]}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(self._directory / f"data-{i}"),
                "offsets.topic.replication.factor": replicas,
                "transaction.state.log.replication.factor": replicas,
                "transaction.state.log.min.isr": str(min(2, len(self._ports))),
                "share.coordinator.state.topic.replication.factor": replicas,
                "share.coordinator.state.topic.min.isr": "1",
            }
            path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path


def versions() -> Iterator[str]:
    """What ran, for the table."""
    yield f"Apache Kafka {VERSION}"
    printed = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr
    yield printed.splitlines()[0]
