"""What is done to a cluster in a fault run: kinds of faults, a seeded schedule of them, and how each is done.

The schedule depends on the seed alone: which faults, against whom, for how long. ``leader`` (of partition 0) and
``controller`` are looked up when the fault comes, for who that is depends on what happened before.
"""

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.cluster.fault_cluster import SESSION_TIMEOUT_S, FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.workload import SYNCED_TOPIC, TOPIC

BROKERS = (1, 2, 3)
LEADER, CONTROLLER = "leader", "controller"


class Fault(NamedTuple):
    """``settle``: the next one comes only when all replicas are in sync again."""

    kind: str
    target: str
    seconds: float
    settle: bool = True

    def __str__(self) -> str:
        return f"{self.kind} ({self.target}) for {self.seconds:.1f} s"


class Nemesis:
    """Does faults to a cluster, one at a time, and takes each back."""

    def __init__(self, cluster: FaultCluster) -> None:
        self._cluster = cluster
        self._links = cluster.links
        self.bytes_lost = 0
        """Written, not synced, and gone in a power cut."""

    def do(self, fault: Fault) -> str:
        """Returns when it was taken back; what was done, with the broker that it was done to."""
        target = self._resolve(fault.target)
        KINDS[fault.kind](self, target, fault.seconds)
        return f"{fault}{f': broker {target}' if fault.target in (LEADER, CONTROLLER) else ''}"

    def settle(self, timeout_s: float = 120.0) -> None:
        self._cluster.wait_until_ready(timeout_s)
        self._cluster.wait_until_in_sync(timeout_s)

    def _resolve(self, target: str) -> int:
        if target.isdigit():
            return int(target)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                found = self._cluster.leader_of(TOPIC, 0) if target == LEADER else self._cluster.controller
            except (RuntimeError, LookupError):
                found = -1
            if found > 0:
                return found
            time.sleep(0.1)
        raise RuntimeError(f"there was no {target} for 60 s")

    # Processes.

    def kill(self, i: int, seconds: float) -> None:
        self._cluster.kill(i)
        time.sleep(seconds)
        self._cluster.restart(i)

    def stop(self, i: int, seconds: float) -> None:
        self._cluster.stop(i)
        time.sleep(seconds)
        self._cluster.restart(i)

    def freeze(self, i: int, seconds: float) -> None:
        self._cluster.pause(i)
        time.sleep(seconds)
        self._cluster.resume(i)

    def kill_two(self, i: int, seconds: float) -> None:
        two = [i, next_of(i)]
        for each in two:
            self._cluster.kill(each)
        time.sleep(seconds)
        self._cluster.start_all()

    def kill_all(self, i: int, seconds: float) -> None:
        self._cluster.kill_all()
        time.sleep(seconds)
        self._cluster.start_all()

    # Power. All are in sync before each cut: with min.insync.replicas=2 a record may have only two copies, and both
    # could be lost one after the other.

    def cut_power(self, i: int, seconds: float) -> None:
        self._lose_power([i], seconds)

    def cut_power_of_two(self, i: int, seconds: float) -> None:
        self._lose_power([i, next_of(i)], seconds)

    def cut_power_of_all(self, i: int, seconds: float) -> None:
        """One of them had everything on its disk, but for the topic that syncs. It is back first or last.

        Of a topic that does not sync before it acknowledges, what no disk has is lost, and there is nothing to judge.
        So there is one disk that has it. It is the last to die: until then nothing is acknowledged without it.
        """
        others = [each for each in BROKERS if each != i]
        order = [i, *others] if round(10 * seconds) % 2 else [*others, i]
        self._lose_power(
            [*others, i], seconds, lambda each, partition: each == i and not is_synced(partition), order=order
        )

    def _lose_power(
        self,
        brokers: Sequence[int],
        seconds: float,
        is_spared: Callable[[int, str], bool] = lambda i, partition: False,
        order: Sequence[int] | None = None,
    ) -> None:
        self._settle_for_good()
        self.bytes_lost += self._cluster.lose_power(brokers, is_spared)
        time.sleep(seconds)
        for each in order or brokers:
            self._cluster.restart(each)
        self.settle()

    def _settle_for_good(self) -> None:
        self.settle()
        # One that was cut off or frozen until now may say what was true before; by then it knows.
        time.sleep(2 * SESSION_TIMEOUT_S)
        self.settle()

    # Links.

    def cut_pair(self, i: int, seconds: float) -> None:
        self._cut(both_ways(i, next_of(i)), seconds)

    def cut_one_way(self, i: int, seconds: float) -> None:
        """What the broker sends to the next does not arrive; what that one sends does."""
        self._cut([(str(i), str(next_of(i)))], seconds)

    def isolate(self, i: int, seconds: float) -> None:
        """From the other brokers and from the clients; the store it can reach."""
        others = [each for each in BROKERS if each != i]
        self._cut([pair for other in (*others, "client") for pair in both_ways(i, other)], seconds)

    def cut_clients(self, i: int, seconds: float) -> None:
        self._cut(both_ways(i, "client"), seconds)

    def cut_store(self, i: int, seconds: float) -> None:
        self._cut(both_ways(i, "zk"), seconds)

    def cut_store_one_way(self, i: int, seconds: float) -> None:
        """It is heard by ZooKeeper and does not hear it."""
        self._cut([("zk", str(i))], seconds)

    def cut_off(self, i: int, seconds: float) -> None:
        """From everything: brokers, clients, store. It goes on believing what it knew."""
        others = [each for each in BROKERS if each != i]
        self._cut([pair for other in (*others, "client", "zk") for pair in both_ways(i, other)], seconds)

    def _cut(self, directions: list[tuple[str, str]], seconds: float) -> None:
        self._links.cut(directions)
        time.sleep(seconds)
        self._links.heal()

    # Disks and clocks.

    def fill_disk(self, i: int, seconds: float) -> None:
        """Of the broker that has a small one, whoever was meant."""
        assert self._cluster.disk is not None
        self._cluster.disk.fill()
        time.sleep(seconds)
        self._cluster.disk.empty()

    def lose_disk(self, i: int, seconds: float) -> None:
        """It comes back with nothing. Only when all are in sync: no rule helps who loses two disks of three."""
        self._settle_for_good()
        self._cluster.kill(i)
        for found in self._cluster.files(i).iterdir():
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()
        time.sleep(seconds)
        self._cluster.restart(i)
        self.settle()

    def jump_clock(self, i: int, seconds: float) -> None:
        """An hour ahead, an hour behind, and right again."""
        for offset_s in (3600.0, -3600.0, 0.0):
            self._cluster.set_clock(i, offset_s)
            time.sleep(seconds / 3)

    # ZooKeeper.

    def kill_zookeeper_leader(self, i: int, seconds: float) -> None:
        assert self._cluster.zookeeper is not None
        leader = self._cluster.zookeeper.leader() or 0
        self._cluster.zookeeper.kill(leader)
        time.sleep(seconds)
        self._cluster.zookeeper.restart(leader)

    def restart_zookeeper(self, i: int, seconds: float) -> None:
        assert self._cluster.zookeeper is not None
        for index in range(len(self._cluster.zookeeper.servers)):
            self._cluster.zookeeper.kill(index)
        time.sleep(seconds)
        self._cluster.zookeeper.start()
        self._cluster.zookeeper.wait_until_serving()


KINDS: dict[str, Callable[[Nemesis, int, float], None]] = {
    "kill -9": Nemesis.kill,
    "clean stop": Nemesis.stop,
    "freeze": Nemesis.freeze,
    "kill -9 of two": Nemesis.kill_two,
    "kill -9 of all": Nemesis.kill_all,
    "power cut of one": Nemesis.cut_power,
    "power cut of two": Nemesis.cut_power_of_two,
    "power cut of all": Nemesis.cut_power_of_all,
    "cut a pair": Nemesis.cut_pair,
    "cut one way": Nemesis.cut_one_way,
    "isolate": Nemesis.isolate,
    "cut from clients": Nemesis.cut_clients,
    "fill the disk": Nemesis.fill_disk,
    "lose the disk": Nemesis.lose_disk,
    "jump the clock": Nemesis.jump_clock,
    "cut from the store": Nemesis.cut_store,
    "cut from the store one way": Nemesis.cut_store_one_way,
    "cut from everything": Nemesis.cut_off,
    "kill the leader of ZooKeeper": Nemesis.kill_zookeeper_leader,
    "restart ZooKeeper": Nemesis.restart_zookeeper,
}
ON_ZOOKEEPER = {
    "cut from the store",
    "cut from the store one way",
    "cut from everything",
    "kill the leader of ZooKeeper",
    "restart ZooKeeper",
}
# More of what is likely to hit a leader in the middle of something.
_WEIGHTS = {"kill -9": 4, "freeze": 4, "cut one way": 2, "cut a pair": 2, "isolate": 2}


def is_synced(partition: str) -> bool:
    return partition.rpartition("-")[0] == SYNCED_TOPIC


def next_of(i: int) -> int:
    return BROKERS[i % len(BROKERS)]


def kinds_for(metadata: str) -> list[str]:
    return [kind for kind in KINDS if metadata == "zookeeper" or kind not in ON_ZOOKEEPER]


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """Faults without end. Each round begins with every kind once, so that a run of some minutes has all of them."""
    chance = random.Random(seed)
    while True:
        drawn = chance.choices(list(kinds), [_WEIGHTS.get(kind, 1) for kind in kinds], k=len(kinds))
        for kind in chance.sample(list(kinds), len(kinds)) + drawn:
            target = chance.choice([LEADER, LEADER, CONTROLLER, *map(str, BROKERS)])
            long = chance.random() < 0.7
            seconds = chance.uniform(SESSION_TIMEOUT_S + 0.5, 3 * SESSION_TIMEOUT_S) if long else chance.uniform(0.1, 1)
            yield Fault(kind, target, round(seconds, 1), settle=chance.random() < 0.5)
