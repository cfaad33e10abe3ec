"""A broker is stopped at every write and every sync of its logs while a worker releases what is due.

The next broker goes on with what survived, and the same worker, or another one with or without the index, too. In the
end the log of the held topic is read by the model (``held_model.py``): each version was released as often as it asks
for, a recall that came first has won, and readers of committed records find exactly that.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import TopicPartition
from skep.records.builder import NewRecord
from skep.worker.held.held_index import HeldIndex
from skep.worker.held.held_partition import HeldPartition, HeldSpec
from skep.worker.held.kafka_log import Unavailable
from tests.crash.held_life import HELD, HELD_PLACE, QUESTIONS, TARGET, HeldLife, HeldMemoryLog
from tests.crash.redrive_life import BrokerMachine
from tests.memory_files import Crashed, Survivors
from tests.unit.worker.held.held_model import HeldModel, released

TICK_MS = 100
NOW_MS = 1_700_000_000_000
SPEC = HeldSpec(HELD.name, HELD.topic_id.hex, 0, 0, TARGET.name, TICK_MS, 1 << 40, False, 86_400_000)
STEPS_OF_WORKER = 12
"""Of one worker: so many find everything that is due, and what was held up by a race."""
CASES = pytest.mark.parametrize(
    ("config", "survivors"),
    [
        (TopicConfig(), Survivors.ALL),
        (TopicConfig(flush_messages=1), Survivors.TORN),
        (TopicConfig(flush_messages=1), Survivors.SYNCED),
    ],
    ids=["killed", "torn-synced", "power-cut-synced"],
)


def said(**headers: object) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name.replace("_", "-"), str(text).encode()) for name, text in headers.items())


USERS = [
    NewRecord(b"once", b"1", NOW_MS, said(delay_ms=0)),
    NewRecord(b"new time", b"2", NOW_MS, said(delay_ms=0)),
    NewRecord(b"new time", b"3", NOW_MS, said(delay_ms=0)),
    NewRecord(b"raced", b"4", NOW_MS, said(delay_ms=0)),
    NewRecord(b"recalled", b"5", NOW_MS, said(delay_ms=0)),
    NewRecord(b"recalled", None, NOW_MS, ()),
    NewRecord(b"half", b"6", NOW_MS, ()),
    NewRecord(b"half", b"", NOW_MS, said(commit="")),
    NewRecord(b"rolled back", b"7", NOW_MS, ()),
    NewRecord(b"rolled back", None, NOW_MS, ()),
    NewRecord(b"asked", b"8", NOW_MS - 2000, said(check_topic=QUESTIONS.name, check_after_ms=1000, check_attempts=1)),
    NewRecord(b"beat", b"9", NOW_MS - 60_000, said(schedule="@every 60s")),
    NewRecord(b"later", b"10", NOW_MS, said(delay_ms=3_600_000)),
]
ALWAYS = {b"once", b"new time", b"half", b"asked", b"beat"}
"""What is released in any case."""


class RacedLog(HeldMemoryLog):
    """Somebody recalls a message just before its first release, which the worker has not read."""

    is_raced = False

    def replace(self, firings):  # type: ignore[no-untyped-def]
        if self.is_raced:
            self._ask(self._life.write(HELD_PLACE, [NewRecord(b"raced", None, NOW_MS, ())]))
            type(self).is_raced = False
        return super().replace(firings)


class Workers:
    """Workers that follow each other, on a clock that moves one tick a step."""

    def __init__(self, machine: BrokerMachine[HeldLife], path: Path) -> None:
        self._machine, self._path = machine, path
        self._now_ms = NOW_MS
        self._index: HeldIndex | None = None
        self.begin(loses_index=True)

    def begin(self, *, loses_index: bool) -> None:
        if self._index is not None:
            self._index.close()
        self._index = HeldIndex(str(self._path / "index"), "x")
        if loses_index:
            self._index.clear()
        self._partition = HeldPartition(
            SPEC, self._index, lambda: self._log(), lambda: self._now_ms, threading.Event(), lambda topic: False
        )

    def _log(self) -> HeldMemoryLog:
        return RacedLog(self._machine, lambda: self._now_ms)

    def serve(self) -> None:
        """Raises Unavailable if the broker dies meanwhile."""
        log = self._log()
        self._partition.open(log)
        for _ in range(STEPS_OF_WORKER):
            self._partition.step(log)
            self._now_ms += TICK_MS

    def close(self) -> None:
        assert self._index is not None
        self._index.close()


@contextmanager
def held(config: TopicConfig, survivors: Survivors, path: Path) -> Iterator[tuple[BrokerMachine[HeldLife], Workers]]:
    """A machine whose held topic has all kinds of records, and a worker that has not begun."""
    machine = BrokerMachine(HeldLife, config, survivors)
    workers = Workers(machine, path)
    try:
        for record in USERS:
            machine.run(machine.life.write(HELD_PLACE, [record]))
        yield machine, workers
    finally:
        workers.close()
        machine.end()


def play(
    config: TopicConfig,
    survivors: Survivors,
    path: Path,
    step: int | None = None,
    *,
    worker: str = "lives",
    is_raced: bool = False,
) -> int:
    """Stops the broker at a step of the release, and checks what the next one leads to. Returns how many there were."""
    RacedLog.is_raced = is_raced
    with held(config, survivors, path) as (machine, workers):
        before = machine.files.steps
        if step is not None:
            machine.files.stop_at(step)
        with suppress(Unavailable):
            workers.serve()
        done = machine.files.steps - before
        if step is not None and machine.files.is_stopped:
            # It has died in the midst of what follows a commit, and nobody has noticed.
            machine.revive()
        if worker != "lives":
            workers.begin(loses_index=worker == "loses its index")
        workers.serve()
        with suppress(Crashed):
            machine.run(machine.life.complete())
        check(machine.life, is_raced=is_raced)
        return done


def check(life: HeldLife, *, is_raced: bool) -> None:
    model = HeldModel(life.held_records(), target=TARGET.name)
    assert model.overdue(NOW_MS) == []
    found: Counter[tuple[str, bytes, bytes, str]] = Counter()
    for topic in (TARGET.name, QUESTIONS.name):
        for record in life.committed_records(TopicPartition(topic, 0)):
            found[released(topic, record.key or b"", record.value, record.headers)] += 1
    assert found == model.released
    assert {key for _, key, _, _ in found} == (ALWAYS if is_raced else ALWAYS | {b"raced"})
    assert set(found.values()) == {1}
    assert set(model.waiting) == {b"asked", b"beat", b"later"}


def at_every_step(config: TopicConfig, survivors: Survivors, path: Path, **how: object) -> None:
    steps = play(config, survivors, path, **how)  # type: ignore[arg-type]
    for step in range(1, steps + 2):
        try:
            play(config, survivors, path, step, **how)  # type: ignore[arg-type]
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {steps}") from error


def test_without_a_stop_all_that_is_due_is_released(tmp_path: Path) -> None:
    assert play(TopicConfig(), Survivors.ALL, tmp_path) > 15


@CASES
@pytest.mark.parametrize("worker", ["lives", "loses its index"])
def test_the_broker_is_stopped_at_every_write_and_sync(
    tmp_path: Path, config: TopicConfig, survivors: Survivors, worker: str
) -> None:
    at_every_step(config, survivors, tmp_path, worker=worker)


def test_the_worker_dies_with_the_broker_and_keeps_its_index(tmp_path: Path) -> None:
    at_every_step(TopicConfig(), Survivors.ALL, tmp_path, worker="dies")


@CASES
def test_the_broker_is_stopped_while_a_release_is_aborted_for_a_recall(
    tmp_path: Path, config: TopicConfig, survivors: Survivors
) -> None:
    at_every_step(config, survivors, tmp_path, is_raced=True, worker="loses its index")
