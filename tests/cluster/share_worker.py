"""A member of a share group, as a process that a test can kill: ``python -m tests.cluster.share_worker``.

It writes down what it is given and what it says of it, before it says it, one line each. A line is one write to a file
that is open for appending, so what a killed worker has written is there. ``share_history.py`` reads the lines:

    got PARTITION OFFSET COUNT VALUE     a record was delivered
    says PARTITION OFFSET TYPE           the next commit has this acknowledgement
    confirmed PARTITION                  the commit has succeeded for all that was said of the partition before
    refused PARTITION ERROR              it has not; what was said may have an effect or not
    at TIME                              when all that follows was written

Most records are accepted. Some are released, a few rejected, and now and then it sleeps longer than its locks last.
"""

import argparse
import os
import random
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

COMMIT_TIMEOUT_S = 10.0
TYPES = {"accept": AcknowledgeType.ACCEPT, "release": AcknowledgeType.RELEASE, "reject": AcknowledgeType.REJECT}
CHANCES = {"accept": 0.93, "release": 0.06, "reject": 0.01}
CHANCE_OF_SLEEP = 0.01


class Notes:
    """The file of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, lines: Iterable[str]) -> None:
        if text := "".join(f"{line}\n" for line in lines):
            os.write(self._file, f"at {time.time():.6f}\n{text}".encode())


class Worker:
    def __init__(self, consumer: ShareConsumer, notes: Notes, chance: random.Random, sleep_s: float) -> None:
        self._consumer, self._notes, self._chance, self._sleep_s = consumer, notes, chance, sleep_s

    def work(self) -> None:
        """Takes what one poll gives and acknowledges it."""
        messages = [message for message in self._consumer.poll(0.5) if message.error() is None]
        if not messages:
            return
        self._notes.write(
            f"got {one.partition()} {one.offset()} {one.delivery_count()} {(one.value() or b'').decode()}"
            for one in messages
        )
        if self._chance.random() < CHANCE_OF_SLEEP:
            time.sleep(self._sleep_s)
        said = [(one, self._chance.choices(list(CHANCES), list(CHANCES.values()))[0]) for one in messages]
        self._notes.write(f"says {one.partition()} {one.offset()} {kind}" for one, kind in said)
        for message, kind in said:
            self._consumer.acknowledge(message, TYPES[kind])
        self._commit(messages)

    def _commit(self, messages: list[Message]) -> None:
        try:
            results = self._consumer.commit_sync(COMMIT_TIMEOUT_S)
        except KafkaException as error:
            partitions = {message.partition() for message in messages}
            self._notes.write(f"refused {partition} {error}" for partition in sorted(partitions))
            return
        self._notes.write(
            f"confirmed {partition.partition}" if error is None else f"refused {partition.partition} {error}"
            for partition, error in results.items()
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "group", "topic", "notes"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sleep-s", type=float, default=0.0)
    given = parser.parse_args()
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": given.servers,
            "group.id": given.group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
            "socket.timeout.ms": 5_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.subscribe([given.topic])
    worker = Worker(consumer, Notes(Path(given.notes)), random.Random(given.seed), given.sleep_s)
    while not is_over:
        worker.work()
    consumer.close()


if __name__ == "__main__":
    main()
