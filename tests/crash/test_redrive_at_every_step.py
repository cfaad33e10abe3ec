"""A redrive is stopped: the broker at every write and sync, the command before every request.

After the restart the command is run again. Then every dead record was given to its group once, with no deliveries
counted: opened again in place, or produced again from its copy where the record is gone.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.cli.queues import redrive
from skep.cli.queues.redrive import Redrive, Tally
from skep.records.builder import NewRecord
from tests.crash.redrive_life import (
    ACCEPT,
    DEAD_PLACE,
    GROUP,
    KEY,
    LETTERS,
    PLACE,
    REJECT,
    Machine,
    MemoryProducer,
    delete_records,
    letter_of,
)
from tests.memory_files import Crashed, Survivors

VALUES = [b"%d" % number for number in range(8)]
DEAD = {0, 1, 3, 4, 6}
GONE_BEFORE = 2
"""Records below are deleted before the redrive: they come from their copies."""


class Dies(Exception):
    """The command is killed here."""


class Stop:
    """Raises Dies before a request of the command."""

    def __init__(self) -> None:
        self.requests = 0
        self.at: int | None = None

    def __call__(self) -> None:
        self.requests += 1
        if self.requests == self.at:
            raise Dies


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "Producer", lambda settings: MemoryProducer(settings["machine"]))
    monkeypatch.setattr(
        redrive, "command_to_leader", lambda client, *given, **said: client.command(client, *given, **said)
    )
    monkeypatch.setattr(redrive, "_PAUSE_S", 0)


class ClusterOf:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def config(self, settings: object) -> dict[str, Machine]:
        return {"machine": self._machine}


def run_command(machine: Machine) -> Tally:
    work = Redrive(ClusterOf(machine), machine, machine, GROUP, LETTERS.name)  # type: ignore[arg-type]
    work.run(machine.reader)
    return work.tally


@contextmanager
def dead_letters(config: TopicConfig, survivors: Survivors, stop: Stop) -> Iterator[Machine]:
    """A machine whose group has finished all records, of which some have dead letters."""
    machine = Machine(config, survivors, stop)
    try:
        machine.run(prepare(machine))
        yield machine
    finally:
        machine.end()


async def prepare(machine: Machine) -> None:
    life = machine.life
    await life.settled(life.share.initialize(KEY, 0, 0))
    await life.write(PLACE, [NewRecord(None, value, 1_700_000_000_000) for value in VALUES])
    records = life.committed_records(PLACE)
    await life.handle(lambda offset: REJECT if offset in DEAD else ACCEPT)
    for offset in sorted(DEAD):
        await life.write(DEAD_PLACE, [letter_of(offset, records[offset])])
    delete_records(life, GONE_BEFORE)
    await life.new_producer()


def accept_all(machine: Machine, seen: Counter[bytes]) -> None:
    """A member accepts what is open."""
    found = machine.run(machine.life.handle(lambda offset: ACCEPT))
    assert {count for _, count in found} <= {1}, found
    values = {record.offset: record.value for record in machine.life.committed_records(PLACE)}
    # Offsets of transaction markers are acquired too.
    seen.update(values[offset] or b"" for offset, _ in found if offset in values)


def play(
    config: TopicConfig,
    survivors: Survivors,
    *,
    step: int | None = None,
    request: int | None = None,
    lives_on: bool = False,
    works_between: bool = False,
) -> tuple[int, int]:
    """Stops the broker at a step, or the command at a request, and checks what a second command leads to. Returns how
    many steps and requests the first one has made."""
    stop = Stop()
    with dead_letters(config, survivors, stop) as machine:
        seen: Counter[bytes] = Counter()
        stop.requests, stop.at = 0, request
        machine.is_revived_at_once = lives_on
        before = machine.files.steps
        if step is not None:
            machine.files.stop_at(step)
        with suppress(Dies, Crashed):
            run_command(machine)
        done = machine.files.steps - before, stop.requests
        stop.at = None
        if step is not None:
            # It may have died when the command had ended, in the midst of what follows a commit.
            machine.revive()
        if works_between:
            accept_all(machine, seen)
        run_command(machine)
        machine.run(machine.life.complete())
        accept_all(machine, seen)
        assert run_command(machine) == Tally(), "nothing is left to be redriven"
        accept_all(machine, seen)
        assert seen == Counter(VALUES[offset] for offset in DEAD)
        return done


CASES = pytest.mark.parametrize(
    ("config", "survivors"),
    [
        (TopicConfig(), Survivors.ALL),
        (TopicConfig(flush_messages=1), Survivors.TORN),
        (TopicConfig(flush_messages=1), Survivors.SYNCED),
    ],
    ids=["killed", "torn-synced", "power-cut-synced"],
)


def test_a_redrive_without_a_stop_redrives_all() -> None:
    steps, requests = play(TopicConfig(), Survivors.ALL)
    assert steps > 15
    assert requests > 10


@CASES
@pytest.mark.parametrize("works_between", [False, True], ids=["at-once", "a-member-works-between"])
def test_the_broker_is_stopped_at_every_write_and_sync(
    config: TopicConfig, survivors: Survivors, works_between: bool
) -> None:
    """The command dies with it."""
    steps, _ = play(config, survivors)
    for step in range(1, steps + 2):
        try:
            play(config, survivors, step=step, works_between=works_between)
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {steps}") from error


@CASES
def test_the_command_goes_on_with_the_next_broker(config: TopicConfig, survivors: Survivors) -> None:
    steps, _ = play(config, survivors)
    for step in range(1, steps + 2):
        try:
            play(config, survivors, step=step, lives_on=True)
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {steps}") from error


@pytest.mark.parametrize("works_between", [False, True], ids=["at-once", "a-member-works-between"])
def test_the_command_is_stopped_before_every_request(works_between: bool) -> None:
    _, requests = play(TopicConfig(), Survivors.ALL)
    for request in range(1, requests + 1):
        try:
            play(TopicConfig(), Survivors.ALL, request=request, works_between=works_between)
        except AssertionError as error:
            raise AssertionError(f"stopped at request {request} of {requests}") from error
