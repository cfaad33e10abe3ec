"""A queue with a dead-letter topic, and members that treat its records as a test says."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, KafkaError, KafkaException, Message, Producer, ShareConsumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from typer.testing import CliRunner

from skep.base.dead_letters import DeadLetter, dead_letter
from skep.cli.main import app
from tests.waiting import PATIENCE_S, wait_until

OPTIONS = {
    "group.share.min.heartbeat.interval.ms": "50",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.assignment.interval.ms": "0",
}
"""Sessions are as long as Kafka's: a member that is fenced loses what it holds, and the machine may be busy."""
READING = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}
SOON_AGAIN = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
"""For members whose broker is killed: it is back in a second, and they would wait for longer."""
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
Handler = Callable[[Message], AcknowledgeType]


class Queue:
    """A topic, a share group with its name, and the dead-letter topic ``dlq.`` and that name."""

    def __init__(self, servers: str, name: str, *, partitions: int = 1, replicas: int = 1) -> None:
        self.servers, self.name, self.group, self.dlq = servers, name, name, f"dlq.{name}"
        self.client = {"bootstrap.servers": servers, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.replicas = replicas
        self.partitions = partitions
        self.create(name, partitions)
        self.configure(
            **{
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": "2",
                "errors.deadletterqueue.topic.name": self.dlq,
                "errors.deadletterqueue.copy.record.enable": "true",
            }
        )

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        self.admin.create_topics([NewTopic(name, partitions, self.replicas, config=config)])[name].result(PATIENCE_S)

    def create_dlq(self, partitions: int = 1, **config: str) -> None:
        self.create(self.dlq, partitions, **{"errors.deadletterqueue.group.enable": "true", **config})

    def configure(self, kind: ResourceType = ResourceType.GROUP, name: str | None = None, **options: str) -> None:
        entries = [
            ConfigEntry(one, value, incremental_operation=AlterConfigOpType.SET) for one, value in options.items()
        ]
        resource = ConfigResource(kind, name or self.group, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def write(self, *values: bytes, partition: int = 0, **said: Any) -> None:
        producer = Producer(self.client)
        for value in values:
            producer.produce(self.name, value, partition=partition, **said)
        assert producer.flush(PATIENCE_S) == 0

    @contextmanager
    def member(self, **options: Any) -> Iterator[ShareConsumer]:
        settings = {"group.id": self.group, "share.acknowledgement.mode": "explicit", **options}
        with ShareConsumer({**self.client, **settings}) as member:
            member.subscribe([self.name])
            yield member

    def work(self, handle: Handler, until: Callable[[], Any], timeout_s: float = PATIENCE_S, **options: Any) -> None:
        """Lets one member work until a condition holds."""
        deadline = time.monotonic() + timeout_s
        with self.member(**options) as member:
            while not until():
                assert time.monotonic() < deadline, f"not within {timeout_s} s"
                for message in member.poll(0.2):
                    if message.error() is None:
                        member.acknowledge(message, handle(message))
                try:
                    member.commit_sync()
                except KafkaException:
                    continue  # a broker is away, or the lock is over: the records come again

    def messages(self, topic: str | None = None) -> list[Message]:
        """What a read_committed reader finds in the dead-letter topic."""
        topic = topic or self.dlq
        reader = Consumer({**self.client, "group.id": "reader", **READING})
        known = reader.list_topics(topic, PATIENCE_S).topics[topic].partitions
        reader.assign([ClientPartition(topic, partition, 0) for partition in known])
        found, open_partitions = [], set(known)
        try:
            while open_partitions:
                message = reader.poll(PATIENCE_S)
                assert message is not None
                if (error := message.error()) is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
        finally:
            reader.close()
        return found

    def letters(self) -> list[DeadLetter]:
        return [letter for message in self.messages() if (letter := dead_letter(message.headers() or ())) is not None]

    def offsets(self) -> list[tuple[int, int]]:
        """The partition and the offset of every record that has a letter, as often as it has one."""
        return sorted((letter.partition, letter.offset) for letter in self.letters())

    def wait_for_letters(self, count: int) -> list[DeadLetter]:
        return wait_until(
            lambda: letters if len(letters := self.letters()) >= count else None,
            lambda: f"{count} dead letters, only {len(self.letters())}",
        )


def skep(servers: str, *arguments: str) -> str:
    """Runs a command, and returns what it prints."""
    done = CliRunner().invoke(app, list(arguments), env={"SKEP_BOOTSTRAP": servers})
    assert done.exit_code == 0, f"{done.exception} {done.output}"
    return done.stdout


def described(queue: Queue) -> str:
    """What ``skep queues describe`` prints; nothing while the group has no members yet."""
    try:
        return skep(queue.servers, "queues", "describe", queue.group)
    except AssertionError as error:
        assert "there is no share group" in str(error)
        return ""


def as_json(servers: str, *arguments: str) -> Any:
    return json.loads(skep(servers, *arguments, "--json"))


def workers_of(pid: int) -> list[int]:
    """The worker processes of a broker process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == pid and b"skep.worker" in command:
            found.append(int(path.name))
    return found


def kill_workers(pid: int) -> int:
    killed = workers_of(pid)
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    return len(killed)
