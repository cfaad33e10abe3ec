"""Two share groups in a cluster that is not left alone: workers, a producer, and what is done to all of them.

Both read the same topic, and have one dead-letter topic. One of them asks for the order of each key.
Every fault ends with a cluster that is in sync and with workers that go on, so that the next one hits a group at work.
"""

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from skep.base.errors import ErrorCode
from skep.coordination.partitioner import partition_for
from skep.metadata.model import id_text
from skep.wire import apis
from tests.cluster.driving import ask, state, wait_until_configured
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.links import both_ways
from tests.cluster.scenes import create_topics
from tests.cluster.share_history import Place, ShareHistory
from tests.cluster.workload import high_watermark
from tests.waiting import wait_until

TOPIC, DEAD_LETTERS = "jobs", "dlq.jobs"
ANY_ORDER, ORDERED = "workers", "appliers"
GROUPS = {ANY_ORDER: 3, ORDERED: 3}
"""The number of their workers."""
PARTITIONS = 4
KEYS = 40
COORDINATOR_PARTITIONS = 3
LOCK_S = 2
LIMIT = 10
PATIENCE_S = 120.0
OPTIONS = {
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "share.coordinator.state.topic.num.partitions": str(COORDINATOR_PARTITIONS),
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.write.timeout.ms": "2000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.record.lock.duration.ms": "1000",
}
_GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": str(LOCK_S * 1000),
    "share.delivery.count.limit": str(LIMIT),
    "errors.deadletterqueue.topic.name": DEAD_LETTERS,
}
_MORE_CONFIGS = {ORDERED: {"skep.share.order": "key"}}

_GROUP_HEADER = "__dlq.errors.group"
_PLACE_HEADERS = ("__dlq.errors.partition", "__dlq.errors.offset")


def key_of(value: str) -> str:
    """Returns the key of the job with this value."""
    return value.partition("/")[0]


class Worker:
    """One process, and its history in a file."""

    def __init__(self, servers: str, group: str, notes: Path, seed: int) -> None:
        self.group, self.notes = group, notes
        self._read_bytes = 0
        arguments = [servers, group, TOPIC, str(notes), "--seed", str(seed), "--sleep-s", str(LOCK_S * 1.3)]
        self.process = subprocess.Popen([sys.executable, "-m", "tests.cluster.share_worker", *arguments])

    def new_lines(self) -> list[str]:
        """Returns the whole lines that it has written since the last call."""
        if not self.notes.exists():
            return []
        with self.notes.open("rb") as file:
            file.seek(self._read_bytes)
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        self._read_bytes += sum(map(len, lines))
        return [line.decode() for line in lines]

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Jobs:
    """Writes numbered records in small batches until it is told to end. ``written`` is what was confirmed.

    The library does not know the offset of a record if the response to it was lost and that to a later one was not:
    ``unplaced``.
    """

    def __init__(self, servers: str, rate: float, chance: random.Random) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": servers, **settings})
        self._pause_s = 8 / rate
        self._chance = chance
        self._is_over = threading.Event()
        self.written: dict[Place, str] = {}
        self.unplaced: set[str] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._is_over.wait(self._pause_s):
            for number in itertools.islice(numbers, 8):
                key = f"k{self._chance.randrange(KEYS)}"
                self._producer.produce(TOPIC, f"{key}/job-{number}", key, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None and message.offset() < 0:
            self.unplaced.add(message.value().decode())
        elif error is None:
            self.written[Place(message.partition(), message.offset())] = message.value().decode()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


class Churn:
    def __init__(self, cluster: FaultCluster, folder: Path, chance: random.Random, rate: float) -> None:
        self.cluster, self._folder, self._chance = cluster, folder, chance
        self._numbers = itertools.count()
        self._gone: list[Worker] = []
        self._histories = {group: ShareHistory() for group in GROUPS}
        self._create()
        self._epochs = {partition: self._leader_epoch(partition) for partition in range(PARTITIONS)}
        self.workers = [self._new_worker(group) for group, count in GROUPS.items() for _ in range(count)]
        self.jobs = Jobs(cluster.bootstrap_servers, rate, random.Random(chance.random()))
        self.faults: list[str] = []
        self.crashed: list[str] = []

    def _create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})
        safe = {"min.insync.replicas": "2"}
        dead_letters = NewTopic(DEAD_LETTERS, 1, 3, config={**safe, "errors.deadletterqueue.group.enable": "true"})
        create_topics(self.cluster, NewTopic(TOPIC, PARTITIONS, 3, config=safe), dead_letters)
        for group in GROUPS:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in {**_GROUP_CONFIGS, **_MORE_CONFIGS.get(group, {})}.items()
            ]
            resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
            admin.incremental_alter_configs([resource])[resource].result(60)
            wait_until_configured(self.cluster, group, "errors.deadletterqueue.topic.name", DEAD_LETTERS)
        described = ask(self.cluster, 1, apis.METADATA, 12, topics=[{"name": TOPIC}]).topics[0]
        self._topic_id = described.topic_id

    def _new_worker(self, group: str) -> Worker:
        notes = self._folder / f"worker-{next(self._numbers)}"
        return Worker(self.cluster.bootstrap_servers, group, notes, self._chance.randrange(1 << 30))

    def _leader_epoch(self, partition: int) -> int:
        known = wait_until(lambda: state(self.cluster, TOPIC, partition), f"partition {partition} is known")
        return known.leader_epoch

    # Progress.

    def histories(self) -> dict[str, ShareHistory]:
        """The history of each group."""
        for worker in (*self._gone, *self.workers):
            self._histories[worker.group].add(worker.notes.name, worker.new_lines())
        return self._histories

    def _confirmed(self) -> dict[str, int]:
        return {group: history.confirmed_count for group, history in self.histories().items()}

    def go_on(self, count: int = 20) -> None:
        """Until so many more acknowledgements of each group are confirmed."""
        before = self._confirmed()
        wait_until(
            lambda: all(now >= before[group] + count for group, now in self._confirmed().items()),
            lambda: f"{count} more than {before} are confirmed: {self._why()}",
            PATIENCE_S,
        )

    def settle(self) -> None:
        self.cluster.wait_until_ready()
        self.cluster.wait_until_in_sync(PATIENCE_S)
        self.go_on()

    def _why(self) -> str:
        refusals = {group: history.refusals for group, history in self.histories().items()}
        lags = {group: self._lags(group) for group in GROUPS}
        return f"{self._confirmed()} were, after {self.faults}; lags {lags}; refusals {refusals}"

    def _lags(self, group_id: str) -> dict[int, int] | None:
        """The lag of each partition, as the coordinator says; None while it does not know."""
        wanted = [{"group_id": group_id, "topics": None}]
        try:
            coordinator = self._coordinator_of(group_id)
            [group] = ask(self.cluster, coordinator, apis.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=wanted).groups
        except (OSError, LookupError, RuntimeError):
            return None
        rows = [row for topic in group.topics for row in topic.partitions]
        if group.error_code is not ErrorCode.none or any(row.error_code is not ErrorCode.none for row in rows):
            return None
        return {row.partition_index: row.lag for row in rows}

    # Faults. Each says whom it hits.

    def leader(self) -> int:
        return self.cluster.leader_of(TOPIC, self._chance.randrange(PARTITIONS))

    def group_coordinator(self) -> int:
        return self._coordinator_of(self._any_group())

    def _coordinator_of(self, group: str) -> int:
        return self.cluster.leader_of(CONSUMER_OFFSETS, partition_for(group, COORDINATOR_PARTITIONS))

    def _any_group(self) -> str:
        return self._chance.choice(list(GROUPS))

    def share_coordinator(self) -> int:
        key = f"{self._any_group()}:{id_text(self._topic_id)}:{self._chance.randrange(PARTITIONS)}"
        return self.cluster.leader_of(SHARE_GROUP_STATE, partition_for(key, COORDINATOR_PARTITIONS))

    def kill(self, whom: Callable[[], int]) -> None:
        broker = self._known(whom)
        self.cluster.kill(broker)
        self.go_on()
        self.cluster.restart(broker)

    def stop(self, whom: Callable[[], int]) -> None:
        broker = self._known(whom)
        self.cluster.stop(broker)
        self.go_on()
        self.cluster.restart(broker)

    def freeze(self, whom: Callable[[], int]) -> None:
        """Longer than its session and the locks of its records last."""
        broker = self._known(whom)
        self.cluster.pause(broker)
        time.sleep(LOCK_S + 1)
        self.cluster.resume(broker)

    def kill_all(self) -> None:
        self.cluster.kill_all()
        self.cluster.start_all()

    def cut(self, whom: Callable[[], int]) -> None:
        """The clients and a broker do not hear each other for longer than the locks last; then all arrives late."""
        broker = self._known(whom)
        self.cluster.links.cut(both_ways("client", broker))
        time.sleep(LOCK_S + 1)
        self.cluster.links.heal()

    def drop(self, whom: Callable[[], int]) -> None:
        """The connections of all clients with the broker end."""
        for _ in range(3):
            self.cluster.links.drop("client", self._known(whom))
            self.go_on(10)

    def kill_workers(self) -> None:
        """One of each group."""
        for group in GROUPS:
            self._replace([one for one in self.workers if one.group == group], signal.SIGKILL)

    def _replace(self, among: list[Worker], how: signal.Signals) -> None:
        worker = self._chance.choice(among)
        worker.end(how)
        self._gone.append(worker)
        self.workers[self.workers.index(worker)] = self._new_worker(worker.group)

    def freeze_worker(self) -> None:
        """What it says afterwards comes too late."""
        worker = self._chance.choice(self.workers)
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(LOCK_S + 1)
        worker.process.send_signal(signal.SIGCONT)

    def replace_worker(self) -> None:
        """One leaves and says so."""
        self._replace(self.workers, signal.SIGTERM)

    def _known(self, whom: Callable[[], int]) -> int:
        def found() -> int:
            try:
                return max(0, whom())
            except (LookupError, RuntimeError):
                return 0

        return wait_until(found, f"there is a {whom.__name__}", PATIENCE_S)

    def do(self, fault: str) -> None:
        self.faults.append(f"{time.time():.3f} {fault}")
        FAULTS[fault](self)
        self.settle()

    # The end.

    def finish(self) -> dict[str, ShareHistory]:
        """No more records are written; returns when every record is done with and all workers have ended.

        AssertionError if a record whose offset the producer does not know was delivered to nobody.
        """
        self.jobs.end()
        wait_until(
            lambda: all(self._lags(group) == dict.fromkeys(range(PARTITIONS), 0) for group in GROUPS),
            lambda: f"all is done with: {self._why()}",
            PATIENCE_S,
        )
        self.close()
        histories = self.histories()
        for history in histories.values():
            for place, deliveries in history.deliveries.items():
                if (value := deliveries[0].value) in self.jobs.unplaced:
                    self.jobs.written[place] = value
        lost = self.jobs.unplaced - set(self.jobs.written.values())
        assert not lost, f"{lost} were confirmed, without an offset, and never delivered"
        return histories

    def dead_letters(self) -> dict[str, Counter[Place]]:
        """How many dead letters each record has, of each group."""
        settings = {"group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0, **settings})
        found: dict[str, Counter[Place]] = {group: Counter() for group in GROUPS}
        try:
            consumer.assign([TopicPartition(DEAD_LETTERS, 0, 0)])
            end = high_watermark(self.cluster.bootstrap_servers, DEAD_LETTERS, 0)
            while consumer.position([TopicPartition(DEAD_LETTERS, 0)])[0].offset < end:
                for message in consumer.consume(500, 0.5):
                    headers = dict(message.headers() or ())
                    if message.error() is None:
                        place = Place(*(int(headers[name]) for name in _PLACE_HEADERS))
                        found[headers[_GROUP_HEADER].decode()][place] += 1
        finally:
            consumer.close()
        return found

    def leader_changes(self) -> dict[int, int]:
        return {partition: self._leader_epoch(partition) - epoch for partition, epoch in self._epochs.items()}

    def close(self) -> None:
        """Ends all. AssertionError if a worker has raised; one whose client has crashed is one more that was killed."""
        self.jobs.end()
        codes = {worker.notes.name: worker.process.poll() or 0 for worker in self.workers}
        raised = [name for name, code in codes.items() if code > 0]
        self.crashed = [f"{name}: {code}" for name, code in codes.items() if code < 0]
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        with contextlib.ExitStack() as ends:
            for worker in self.workers:
                if worker.process.poll() is None:
                    ends.callback(worker.end, signal.SIGTERM)
        assert raised == [], f"{raised} have failed"


FAULTS: dict[str, Callable[[Churn], None]] = {
    "kill a leader": lambda churn: churn.kill(churn.leader),
    "kill workers": Churn.kill_workers,
    "drop connections": lambda churn: churn.drop(churn.leader),
    "kill a share coordinator": lambda churn: churn.kill(churn.share_coordinator),
    "freeze a worker": Churn.freeze_worker,
    "cut a leader from its clients": lambda churn: churn.cut(churn.leader),
    "kill the group coordinator": lambda churn: churn.kill(churn.group_coordinator),
    "freeze a leader": lambda churn: churn.freeze(churn.leader),
    "a worker leaves": Churn.replace_worker,
    "kill all brokers": Churn.kill_all,
    "stop a leader": lambda churn: churn.stop(churn.leader),
    "freeze a share coordinator": lambda churn: churn.freeze(churn.share_coordinator),
}


@contextlib.contextmanager
def churning(folder: Path, seed: int, rate: float = 120.0) -> Iterator[Churn]:
    """Three brokers and six workers that have begun."""
    with FaultCluster(3, config=OPTIONS, seed=seed) as cluster:
        churn = Churn(cluster, folder, random.Random(seed), rate)
        try:
            churn.go_on()
            yield churn
        finally:
            churn.close()
            for broker in cluster.brokers:
                (folder / f"broker-{broker}.log").write_text(cluster.log(broker))
