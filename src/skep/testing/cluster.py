"""A cluster for tests, whose brokers can be killed, paused, stopped and restarted one by one."""

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from skep.client.connection import Connection
from skep.client.errors import ClientError
from skep.client.security.client_security import PLAINTEXT
from skep.testing.broker import START_TIMEOUT_S, EmbeddedBroker
from skep.testing.embedded_security import EmbeddedSecurity
from skep.wire.apis import METADATA

if TYPE_CHECKING:
    from skep.zookeeper_server import ZooKeeperEnsemble

SESSION_TIMEOUT_MS = 2_000
READY_TIMEOUT_S = 60.0
REPLICAS = 3
_ASK_TIMEOUT_S = 2.0
_PAUSE_S = 0.02
_LONGEST_WRITE_S = 1.0


class EmbeddedCluster:
    """Brokers 1 to N, each a process with its own port and directory, and their metadata store.

    ``metadata`` is ``"sqlite"`` (a file, nothing to install), ``"zookeeper"`` (a real ensemble of
    ``zookeeper_servers``, started and stopped with the cluster) or a connect string, ``zk://host:port/chroot``.
    ``config`` holds options of all brokers, with Kafka's names; ``broker_config`` holds options of single brokers, by
    id: ``{2: {"broker.rack": "b"}}``. By default topics have three replicas (``default.replication.factor``) and a
    paused broker is fenced after two seconds (``zookeeper.session.timeout.ms``).

    ``security`` is that of ``EmbeddedBroker``, also between the brokers; ``client_config`` has the settings of clients.

    Owns the processes and, unless ``data_dir`` is given, a temporary directory. ``i`` is a broker's id everywhere.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        metadata: str = "sqlite",
        config: Mapping[str, str] | None = None,
        broker_config: Mapping[int, Mapping[str, str]] | None = None,
        data_dir: str | Path | None = None,
        zookeeper_servers: int = 1,
        security: str | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self.security = None if security is None else EmbeddedSecurity(security)
        self._own_directory = tempfile.mkdtemp(prefix="skep-") if data_dir is None else None
        self.data_dir = Path(self._own_directory or data_dir or "")
        self.zookeeper: ZooKeeperEnsemble | None = None
        self._metadata = metadata
        self._zookeeper_servers = zookeeper_servers
        self._config = {
            "default.replication.factor": str(min(REPLICAS, brokers)),
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            # ZooKeeper starts at the same time as the brokers, and on a busy machine it takes longer than they do.
            "zookeeper.connection.timeout.ms": str(round(START_TIMEOUT_S * 1000)),
            **(config or {}),
        }
        self._broker_config = dict(broker_config or {})
        self._paused: set[int] = set()
        self._brokers: dict[int, EmbeddedBroker] = {}
        self._count = brokers

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, including stopped ones; they do not change while the cluster exists."""
        return ",".join(self.brokers.values())

    @property
    def client_config(self) -> dict[str, str]:
        """The settings of a client, for confluent-kafka: the addresses and, with ``security``, TLS and SASL."""
        if self.security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        return self.security.client_config(self.bootstrap_servers)

    @property
    def brokers(self) -> dict[int, str]:
        """The ``host:port`` of each broker, by id."""
        return {i: broker.bootstrap_servers for i, broker in self._brokers.items()}

    @property
    def running(self) -> list[int]:
        """The brokers that are neither stopped nor paused."""
        return [i for i, broker in self._brokers.items() if broker.is_running and i not in self._paused]

    @property
    def controller(self) -> int:
        """The current controller, which elects leaders; -1 if there is none."""
        found: int = next(self._responses(())).controller_id
        return found

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Returns the current leader of the partition; -1 if it has none. Raises LookupError if it does not exist."""
        for response in self._responses([topic]):  # a new topic reaches one broker later than another
            [described] = response.topics
            for row in described.partitions:
                if row.partition_index == partition:
                    found: int = row.leader_id
                    return found
        raise LookupError(f"there is no topic '{topic}' with partition {partition}")

    def _responses(self, topics: "list[str] | tuple[str, ...]") -> Iterator[Any]:
        """Yields the metadata of every running broker. Raises RuntimeError if there is none.

        A broker that does not respond is asked again after the others: on a busy machine it may not run for seconds.
        """
        left, has_response, failure = self.running, False, "no broker is running"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while left and time.monotonic() < deadline:
            silent = []
            for i in left:
                try:
                    response = self._ask_metadata(i, topics)
                except ClientError as error:
                    failure = str(error)
                    silent.append(i)
                else:
                    has_response = True
                    yield response
            left = [i for i in silent if i in self.running]
            if left:
                time.sleep(_PAUSE_S)
        if left or not has_response:
            raise RuntimeError(failure)

    def broker(self, i: int) -> EmbeddedBroker:
        """Returns one broker, for its ``data_dir`` and ``pid``."""
        if i not in self._brokers:
            raise LookupError(f"there is no broker {i}; the brokers are {', '.join(map(str, self._brokers)) or 'none'}")
        return self._brokers[i]

    def log(self, i: int) -> str:
        """Returns the broker's log so far, over its restarts."""
        return self.broker(i).log

    def kill(self, i: int) -> None:
        """Sends SIGKILL: the broker ends at once and hands nothing over. Keeps the data for ``restart``."""
        self.broker(i).kill()
        self._paused.discard(i)

    def pause(self, i: int) -> None:
        """Pauses the process (SIGSTOP): connections stay open, and the broker does not respond.

        The broker is never paused while it writes to the SQLite store. It would keep the store locked, and the others
        could elect no leader until it is resumed.
        """
        broker = self.broker(i)
        broker.pause()
        while self._metadata == "sqlite" and _is_locked(self._sqlite_file):
            broker.resume()
            broker.pause()
        self._paused.add(i)

    def resume(self, i: int) -> None:
        self.broker(i).resume()
        self._paused.discard(i)

    def stop(self, i: int) -> None:
        """Stops the broker cleanly (SIGTERM): it hands over its partitions first. Keeps the data for ``restart``."""
        self.broker(i).shut_down()
        self._paused.discard(i)

    def restart(self, i: int) -> None:
        """Starts the broker again on the same port and data; stops it cleanly first if it is running."""
        self._paused.discard(i)
        self.broker(i).restart()

    def add(self) -> int:
        """Starts another broker, with the next id. Returns the id when the broker is ready."""
        i = self._new_broker()
        self._brokers[i].start()
        return i

    def _new_broker(self) -> int:
        i = max(self._brokers, default=0) + 1
        options = {**self._config, **self._broker_config.get(i, {}), "node.id": str(i), "skep.metadata": self._store()}
        folder = self.data_dir / f"broker-{i}"
        self._brokers[i] = EmbeddedBroker(data_dir=folder, options=options, security=self.security)
        return i

    @property
    def _sqlite_file(self) -> Path:
        return self.data_dir / "metadata.sqlite"

    def _store(self) -> str:
        if self._metadata == "sqlite":
            return f"sqlite:{self._sqlite_file}"
        return self._metadata if self.zookeeper is None else f"{self.zookeeper.connect}/skep"

    def start(self) -> "EmbeddedCluster":
        """Starts all brokers at the same time. Returns when each of them knows all others."""
        if self._metadata == "zookeeper" and self.zookeeper is None:
            from skep.zookeeper_server import ZooKeeperEnsemble

            self.zookeeper = ZooKeeperEnsemble(self._zookeeper_servers)
            self.zookeeper.start()
        while len(self._brokers) < self._count:
            self._new_broker()
        for broker in self._brokers.values():
            broker.launch()
        for broker in self._brokers.values():
            broker.wait_until_ready()
        self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every running broker knows exactly the running brokers, and one of them as the controller."""
        self._wait(self._why_not_ready, timeout_s)

    def wait_until_in_sync(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every partition has a leader and all its replicas are in sync."""
        self._wait(self._why_not_in_sync, timeout_s)

    def _wait(self, missing: Callable[[], str | None], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (what := missing()) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster was not ready after {timeout_s:.0f} s: {what}")
            time.sleep(_PAUSE_S)

    def _why_not_ready(self) -> str | None:
        running = set(self.running)
        for i in running:
            try:
                response = self._ask_metadata(i, ())
            except ClientError as error:
                return str(error)
            known = {broker.node_id for broker in response.brokers}
            if known != running:
                return f"broker {i} knows brokers {sorted(known)}, but the running ones are {sorted(running)}"
            if response.controller_id not in running:
                return f"broker {i} knows no controller"
        return None

    def _why_not_in_sync(self) -> str | None:
        """Checks the metadata of every running broker, because a new topic reaches one later than another."""
        known: set[str] | None = None
        for i in self.running:
            try:
                response = self._ask_metadata(i, None)
            except ClientError as error:
                return str(error)
            names = {topic.name for topic in response.topics}
            if known is not None and names != known:
                return f"broker {i} knows other topics than the others: {sorted(names ^ known)}"
            known = names
            if (behind := _not_in_sync(response)) is not None:
                return behind
        return None if known is not None else "no broker is running"

    def _ask_metadata(self, i: int, topics: "list[str] | tuple[str, ...] | None") -> Any:
        host, _, port = self._brokers[i].bootstrap_servers.rpartition(":")
        named = None if topics is None else [{"name": topic} for topic in topics]
        security = PLAINTEXT if self.security is None else self.security.of_client
        with Connection(
            host, int(port), client_id="skep-testing", timeout_s=_ASK_TIMEOUT_S, security=security
        ) as connection:
            return connection.ask(METADATA, {"topics": named, "allow_auto_topic_creation": False})

    def close(self) -> None:
        """Stops all brokers and removes the temporary directory. A second call does nothing."""
        with contextlib.ExitStack() as stops:
            if self.security is not None:
                stops.callback(self.security.close)
            if self._own_directory is not None:
                stops.callback(shutil.rmtree, self._own_directory, ignore_errors=True)
            if self.zookeeper is not None:
                stops.callback(self.zookeeper.stop)
            for broker in self._brokers.values():
                stops.callback(broker.stop)
                if self._own_directory is not None:
                    # The data is removed anyway, so a clean shutdown of each broker would waste time.
                    stops.callback(broker.kill)
            self._brokers, self.zookeeper = {}, None

    def __enter__(self) -> "EmbeddedCluster":
        try:
            return self.start()
        except BaseException:
            self.close()  # __exit__ is not called if __enter__ raises
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _not_in_sync(response: Any) -> str | None:
    for topic in response.topics:
        for row in topic.partitions:
            where = f"{topic.name}-{row.partition_index}"
            if row.leader_id < 0:
                return f"{where} has no leader"
            if behind := sorted(set(row.replica_nodes) - set(row.isr_nodes)):
                return f"{where} is not in sync on brokers {behind}"
    return None


def _is_locked(store: Path) -> bool:
    """Returns whether a process holds the write lock for longer than a running broker needs it."""
    connection = sqlite3.connect(store, timeout=_LONGEST_WRITE_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    finally:
        connection.close()
    return False
