"""A cluster whose links can be cut, whose clocks can jump, one of whose disks is small, and that can lose power."""

import contextlib
import os
import random
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from skep.base.reserved_port import ReservedPort
from skep.testing import EmbeddedBroker, EmbeddedCluster
from tests.cluster.links import Links
from tests.cluster.power import Tail, lose_unsynced
from tests.cluster.small_disk import SmallDisk

HOST = "127.0.0.1"
SESSION_TIMEOUT_S = 2.0
LAG_TIME_MAX_MS = 3_000
CONFIG = {
    "zookeeper.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "replica.lag.time.max.ms": str(LAG_TIME_MAX_MS),
    "replica.socket.timeout.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "min.insync.replicas": "2",
    "leader.imbalance.check.interval.seconds": "10",
    # A full disk is to refuse, not to make room by deleting what has not expired: that is a loss somebody asked for.
}
_IN_BROKER = Path(__file__).parent / "in_broker"


class FaultBroker(EmbeddedBroker):
    """A broker with a clock that a test moves, and a journal of what it syncs; on a small disk if it was given one."""

    def __init__(self, data_dir: Path, options: Mapping[str, str], disk: SmallDisk | None) -> None:
        super().__init__(data_dir=data_dir, options=options)
        self.clock_file = data_dir.parent / f"{data_dir.name}.clock"
        self.clock_file.write_bytes(struct.pack("<d", 0.0))
        self.sync_journal = data_dir.parent / f"{data_dir.name}.syncs"
        self._python = disk.interpreter(data_dir.parent) if disk is not None else sys.executable

    def launch(self) -> None:
        before = os.environ.get("PYTHONPATH", "")
        changed = {
            "SKEP_TEST_CLOCK": str(self.clock_file),
            "SKEP_TEST_SYNCS": str(self.sync_journal),
            "PYTHONPATH": f"{_IN_BROKER}{os.pathsep}{before}",
        }
        with _environment(changed), _interpreter(self._python):
            super().launch()

    def set_clock(self, offset_s: float) -> None:
        with open(self.clock_file, "r+b") as file:
            file.write(struct.pack("<d", offset_s))


class FaultCluster(EmbeddedCluster):
    """Brokers are reached, by clients and by each other, only over ``links``; so is ZooKeeper by them.

    ``small_disk`` is the id of the broker that has one, of ``small_disk_bytes``; 0: none has. What a power cut leaves
    of what was not synced is one of ``tails``, as ``seed`` has it.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        metadata: str = "sqlite",
        config: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        small_disk: int = 0,
        small_disk_bytes: int = 64 << 20,
        seed: int = 0,
    ) -> None:
        super().__init__(
            brokers, metadata=metadata, config={**CONFIG, **(config or {})}, data_dir=data_dir, zookeeper_servers=3
        )
        self.links = Links()
        self.tails: Sequence[Tail] = tuple(Tail)
        self._chance = random.Random(seed)
        self._ports: list[ReservedPort] = []
        self.small_disk = small_disk
        self.disk: SmallDisk | None = None
        if small_disk:
            self.disk = SmallDisk(self.data_dir / f"broker-{small_disk}", small_disk_bytes)

    def _new_broker(self) -> int:
        i = super()._new_broker()
        plain = self._brokers[i]
        port = ReservedPort(HOST)
        self._ports.append(port)
        options = {
            **plain.options,
            "listeners": f"{HOST}:{port.number}",
            "advertised.listeners": f"{HOST}:{self.links.listen(port.number, i)}",
        }
        if self.zookeeper is not None:
            told = [f"{HOST}:{self.links.listen(server.port, 'zk', i)}" for server in self.zookeeper.servers]
            options["skep.metadata"] = f"zk://{','.join(told)}/skep"
        plain.stop()
        disk = self.disk if i == self.small_disk else None
        self._brokers[i] = FaultBroker(self.data_dir / f"broker-{i}", options, disk)
        return i

    def set_clock(self, i: int, offset_s: float) -> None:
        """The broker's wall clock is so far off from now on, over restarts."""
        broker = self.broker(i)
        assert isinstance(broker, FaultBroker)
        broker.set_clock(offset_s)

    def files(self, i: int) -> Path:
        """The broker's data directory, as this process can see it."""
        if self.disk is not None and i == self.small_disk:
            return self.disk.path
        return self.broker(i).data_dir

    def lose_power(
        self, brokers: Sequence[int], is_spared: Callable[[int, str], bool] = lambda i, partition: False
    ) -> int:
        """These die at once, the last of them last, and lose what they have not synced; how many bytes that were.

        ``is_spared``: of this partition the broker had everything on its disk.
        """
        for i in brokers:
            os.kill(self.broker(i).pid, signal.SIGKILL)
        lost = 0
        for i in brokers:
            self.kill(i)
            broker = self.broker(i)
            assert isinstance(broker, FaultBroker)
            lost += lose_unsynced(
                self.files(i), broker.sync_journal, partial(is_spared, i), tails=self.tails, chance=self._chance
            )
        return lost

    def kill_all(self) -> None:
        for i in self.brokers:
            self.kill(i)

    def start_all(self) -> None:
        """All that do not run, at the same time."""
        down = [broker for broker in self._brokers.values() if not broker.is_running]
        for broker in down:
            broker.kill()  # one that has ended by itself is still to be buried
            broker.launch()
        for broker in down:
            broker.wait_until_ready()

    def __enter__(self) -> "FaultCluster":
        super().__enter__()
        return self

    def close(self) -> None:
        with contextlib.ExitStack() as stops:
            stops.callback(self.links.close)
            for port in self._ports:
                stops.callback(port.release)
            if self.disk is not None:
                stops.callback(self.disk.close)
            stops.callback(super().close)
            self._ports, self.disk = [], None


@contextlib.contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


@contextlib.contextmanager
def _interpreter(path: str) -> Iterator[None]:
    before, sys.executable = sys.executable, path
    try:
        yield
    finally:
        sys.executable = before
