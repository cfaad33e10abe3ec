"""Topics and groups for the tests of queue consumers, and workers that are processes.

``python -m tests.scenario.queue_topics <bootstrap servers> <topic> <seconds>`` is a worker that takes so long for each
record, and prints when it begins and ends one.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import skep
from tests.waiting import wait_until

PATIENCE_S = 60
LOCK_S = 4.0
"""Of the shortest locks. They are renewed after a third of it, so a process may not run for twice as long."""
OPTIONS = {
    "group.share.min.heartbeat.interval.ms": "50",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": f"{LOCK_S * 1000:.0f}",
}
"""Of a broker: shorter than Kafka's, so that nobody has to wait long. Sessions are as long as Kafka's: a member that is
fenced loses what it holds, and the machine may be busy."""


def create(servers: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def configure(servers: str, group: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def write(servers: str, topic: str, values: Sequence[str], partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def jobs(count: int) -> list[str]:
    return [f"job {number}" for number in range(count)]


def text(message: skep.Message) -> str:
    assert message.value is not None
    return message.value.decode()


@contextmanager
def worker(servers: str, topic: str, seconds: float) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.scenario.queue_topics", servers, topic, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main(servers: str, topic: str, seconds: str) -> None:
    def handle(message: skep.Message) -> None:
        # A signal that comes before ``wait`` looks for it would end the process.
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the worker waits for signals")
        say("begin", text(message))
        time.sleep(float(seconds))
        say("end", text(message))

    queue = skep.consume(topic, handle, group=topic, concurrency=2, prefetch=20, bootstrap_servers=servers)
    say("ready")
    done = queue.wait()
    say("stopped", done.accepted, done.returned)


def say(*words: object) -> None:
    """Prints a line in one piece: several threads print."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
