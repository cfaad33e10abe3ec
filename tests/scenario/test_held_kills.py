"""Half messages and schedules through kills of the broker and of the worker.

Every message whose purchase the database has arrives once, and no other one ever. No schedule fires early, twice, or
more than once for the time in which nothing ran.
"""

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from skep.testing import EmbeddedBroker
from tests.lengths import times
from tests.scenario.held_decisions import QUESTIONS, Beats, Purchases
from tests.scenario.held_history import HELD, TARGET, Reader, Writer, create_held, worker_pid
from tests.waiting import wait_until

KILLS = times(4, long=60)
PURCHASES_A_KILL = times(100, long=500)
BEATS = times(12, long=120)
OUTAGE_MS = 2500
"""Longer than two firings of the fastest schedules. Only the second restart waits so long."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        create_held(started.bootstrap_servers)
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        admin.create_topics([NewTopic(QUESTIONS, 1)])[QUESTIONS].result()
        yield started


class Logs:
    """The three logs, as far as they were read."""

    def __init__(self, servers: str) -> None:
        self.held, self.target = Reader(servers, HELD, 1), Reader(servers, TARGET, 2)
        self.questions = Reader(servers, QUESTIONS, 1)

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.target.messages if message.key().startswith(kind.encode())]

    def read_to_the_end(self) -> None:
        """The last one is in the held topic twice: as it was written, and as it was released."""
        self.target.until(lambda _: self.of("last"), "everything before the last one is decided")
        self.held.until(lambda found: [one.key() for one in found[-2:]] == [b"last", b"last"], "the held topic is read")
        for reader in (self.held, self.target, self.questions):
            reader.read_to_the_end()
            reader.close()


def kill(broker: EmbeddedBroker, number: int, beats: Beats) -> None:
    if number % 2:
        broker.kill()
        killed = now_ms()
        if number == 1:
            wait_until(lambda: now_ms() >= killed + OUTAGE_MS, "the schedules miss some firings")
        beats.restarts.append(now_ms())
        broker.start()
    elif (pid := worker_pid(broker.pid)) is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_what_is_committed_arrives_once_and_schedules_keep_their_times_through_kills(broker: EmbeddedBroker) -> None:
    dice, servers = random.Random(11), broker.bootstrap_servers
    writer, logs = Writer(servers), Logs(servers)
    purchases, beats = Purchases(writer, dice), Beats(writer, BEATS)
    logs.target.until(lambda found: beats.have_fired(found), "every schedule has fired")
    for number in range(KILLS):
        purchases.begin(PURCHASES_A_KILL)
        purchases.decide_some()
        enough = len(logs.target.messages) + dice.randrange(1, PURCHASES_A_KILL // 2)
        logs.target.until(lambda found, enough=enough: len(found) >= enough, f"{enough} are released")
        kill(broker, number, beats)
        purchases.decide_some()
        logs.questions.read()
        purchases.answer(logs.questions.messages)

    def all_are_in(target: list[Message]) -> bool:
        purchases.decide_some()
        logs.questions.read()
        purchases.answer(logs.questions.messages)
        return purchases.are_all_in(target)

    logs.target.until(all_are_in, "every purchase has arrived")
    before = len(logs.of("beat"))
    logs.target.until(lambda found: len(logs.of("beat")) >= before + BEATS, "the schedules go on")
    beats.recall()
    writer.flush()
    # Whatever is released too much is due before this one.
    writer.write("last", b"last", delay_ms=0)
    writer.flush()
    logs.read_to_the_end()
    of_purchases = [message for message in logs.held.messages if message.key().startswith(b"purchase")]
    purchases.check(of_purchases, logs.of("purchase"), logs.questions.messages)
    made_up = beats.check([m for m in logs.held.messages if m.key().startswith(b"beat")], logs.of("beat"))
    assert made_up >= BEATS, "the restart after an outage has made up for none"
    committed = sum(value is not None for value in purchases.arriving.values())
    print(
        f"{KILLS} kills; half messages: {len(purchases.arriving)}, committed {committed}, "
        f"questions {len(logs.questions.messages)}; schedules: {BEATS}, firings {len(logs.of('beat'))}, "
        f"made up for {made_up}"
    )
