"""A release against a recall or a new time, each driven to one side of the worker's tombstone, with a real broker.

The worker is in this process, and writes to the log stop it where the test wants. Its topic is an ordinary compacted
one, so that the broker's own worker does not have it.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from skep.client.cluster_client import ClusterClient
from skep.client.topic_info import describe_topics
from skep.testing import EmbeddedBroker
from skep.worker.held.held_index import HeldIndex
from skep.worker.held.held_partition import HeldPartition, HeldSpec
from skep.worker.held.kafka_log import KafkaLog
from skep.worker.held.transition import Firing
from skep.worker.job import Settings
from tests.raw_requests import now_ms
from tests.scenario.held_history import HELD, TARGET, Reader, Writer, check_history
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


class RacingLog(KafkaLog):
    """Calls ``before`` and ``after`` around the first write of tombstones."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    aborts = 0

    def replace(self, firings: Sequence[Firing]) -> list[int]:
        if (before := RacingLog.before) is not None:
            RacingLog.before = None
            before()
        offsets = super().replace(firings)
        if (after := RacingLog.after) is not None:
            RacingLog.after = None
            after()
        return offsets

    def abort(self) -> None:
        RacingLog.aborts += 1
        super().abort()

    def overtaken(self, keys: Collection[bytes], start: int, own: Collection[int]) -> dict[bytes, int]:
        assert max(own) >= start
        return super().overtaken(keys, start, own)


class Race:
    """A held topic, its target, and a worker that is driven step by step. Its clock can be stopped: what is written
    with a delay then waits, however slow the machine is."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self.servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": self.servers})
        topics = [NewTopic(TARGET, 2), NewTopic(HELD, 1, config={"cleanup.policy": "compact"})]
        for deleted in admin.delete_topics([TARGET, HELD]).values():
            deleted.exception()
        for created in admin.create_topics(topics).values():
            created.result()
        with ClusterClient(self.servers) as client:
            topic_id = describe_topics(client, [HELD])[HELD].topic_id
        spec = HeldSpec(HELD, topic_id.hex, 0, 0, TARGET, 10, 1 << 40, False, 86_400_000)
        settings = Settings(self.servers, str(directory), 1)
        self.index = HeldIndex(str(directory / "index"), "x")
        self.log = RacingLog(settings, HELD, spec.id, 0)
        self._stopped_ms: int | None = None
        self.partition = HeldPartition(spec, self.index, lambda: self.log, self._now_ms, threading.Event())
        self.writer = Writer(self.servers)
        RacingLog.before = RacingLog.after = None
        RacingLog.aborts = 0
        self.partition.open(self.log)

    def _now_ms(self) -> int:
        return now_ms() if self._stopped_ms is None else self._stopped_ms

    def stop_clock(self) -> None:
        self._stopped_ms = now_ms()

    def run_clock(self) -> None:
        self._stopped_ms = None

    def write(self, key: str, value: bytes | None, **headers: object) -> None:
        self.writer.write(key, value, **headers)
        self.writer.flush()

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        def stepped() -> object:
            self.partition.step(self.log)
            return condition()

        wait_until(stepped, what)

    def waits(self, value: bytes) -> bool:
        entry = self.index.get(b"a")
        return entry is not None and entry.value == value

    def end(self, *, has_times: bool = True) -> list[bytes]:
        """Returns the values in the target, after the check of both logs if all records had times."""
        self.log.close()
        self.index.close()
        held, target = Reader(self.servers, HELD, 1), Reader(self.servers, TARGET, 2)
        for reader in (held, target):
            reader.read_to_the_end()
            reader.close()
        if has_times:
            check_history(held.messages, target.messages)
        return sorted(message.value() for message in target.messages)


@pytest.fixture
def race(broker: EmbeddedBroker, tmp_path: Path) -> Race:
    return Race(broker, tmp_path)


def test_a_recall_before_the_tombstone_wins(race: Race) -> None:
    race.write("a", b"recalled", delay_ms=0)
    race.write("b", b"kept", delay_ms=0)
    RacingLog.before = lambda: race.write("a", None)
    race.step_until(lambda: RacingLog.aborts == 1 and race.index.count() == 0, "all is decided")
    assert race.end() == [b"kept"]


def test_a_recall_behind_the_tombstone_is_too_late(race: Race) -> None:
    race.write("a", b"released", delay_ms=0)
    RacingLog.after = lambda: race.write("a", None)
    race.step_until(lambda: race.index.position.next_offset > 2, "the recall is read")
    assert (RacingLog.aborts, race.end()) == (0, [b"released"])


def test_a_new_time_before_the_tombstone_wins_and_one_behind_it_is_a_new_message(race: Race) -> None:
    def write_while_the_clock_stands(value: bytes) -> None:
        race.stop_clock()
        race.write("a", value, delay_ms=1000)

    race.write("a", b"old", delay_ms=0)
    RacingLog.before = lambda: write_while_the_clock_stands(b"new")
    race.step_until(lambda: race.waits(b"new"), "the new time is read")
    RacingLog.after = lambda: write_while_the_clock_stands(b"newest")
    race.run_clock()
    race.step_until(lambda: race.waits(b"newest"), "the new message is read")
    race.run_clock()
    race.step_until(lambda: race.index.count() == 0, "all is released")
    assert RacingLog.aborts == 1
    assert race.end() == [b"new", b"newest"]


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_decision_before_the_question_counts_and_nobody_is_asked(race: Race, decision: str) -> None:
    """Written behind the decision, the version that notes the question would hide it."""

    def decide() -> None:
        if decision == "commit":
            race.write("a", b"", commit="")
        else:
            race.write("a", None)

    race.write("a", b"half", check_topic=TARGET + ".check", check_after_ms=1000)
    RacingLog.before = decide
    race.step_until(lambda: RacingLog.aborts == 1 and race.index.count() == 0, "it is decided")
    assert race.end(has_times=False) == ([b"half"] if decision == "commit" else [])


def test_an_open_transaction_holds_up_the_keys_that_it_has_written_to_and_no_others(race: Race) -> None:
    race.stop_clock()
    race.write("a", b"a", delay_ms=1000)
    race.write("b", b"b", delay_ms=1000)
    race.step_until(lambda: race.index.count() == 2, "both are known")
    other = Producer({"bootstrap.servers": race.servers, "transactional.id": "other", "log_level": 0})
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    other.produce(HELD, b"never", b"a", headers=[("delay-ms", b"0")])
    assert other.flush(PATIENCE_S) == 0
    race.run_clock()
    race.step_until(lambda: race.index.get(b"b") is None, "the other one is released")
    assert race.index.get(b"a") is not None
    other.abort_transaction(PATIENCE_S)
    race.step_until(lambda: race.index.count() == 0, "what was not replaced after all is released")
    assert race.end() == [b"a", b"b"]


def test_a_position_that_the_log_does_not_have_is_found_out(race: Race) -> None:
    race.write("a", b"a", delay_ms=3_600_000)
    race.step_until(lambda: race.index.count() == 1, "it is known")
    known = race.index.position
    assert known.next_offset == 1
    assert not race.log.was_cut(known)
    for other in (
        known._replace(next_offset=2),
        known._replace(leader_epoch=known.leader_epoch + 1),
        known._replace(leader_epoch=-1),
    ):
        assert race.log.was_cut(other)
    race.log.close()
    race.index.close()
