"""One fuzz run: hostile connections and a witness against one broker; what was done, and what went wrong."""

import random
import time
from dataclasses import dataclass, field

import psutil

from skep.testing import EmbeddedBroker
from tests.fuzz.hostility import Hostility
from tests.fuzz.witness import Witness

MAX_GROWTH_BYTES = 150 << 20
LOOK_EVERY = 200
"""Steps between two looks at the broker."""


@dataclass
class Report:
    seed: int
    done: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    slowest_round_s: float = 0.0
    grown_bytes: int = 0
    failures: list[str] = field(default_factory=list)


def run(seconds: float, seed: int) -> Report:
    """Stops at the first failure."""
    report = Report(seed)
    # Deletions are left to the requests themselves; what they leave must not fill the disk of a long run.
    with EmbeddedBroker(options={"log.segment.delete.delay.ms": "0"}) as broker:
        process = psutil.Process(broker.pid)
        hostility = Hostility(broker.bootstrap_servers, random.Random(seed))
        try:
            with Witness(broker) as witness:
                witness.go_on()
                at_first = process.memory_info().rss
                _attack(hostility, witness, broker, process, time.monotonic() + seconds)
                report.grown_bytes = process.memory_info().rss - at_first
                witness.go_on()
        except (AssertionError, OSError, psutil.Error) as error:
            report.failures.append(f"{type(error).__name__}: {error}")
        hostility.close()
        report.done = dict(hostility.done)
        report.rounds, report.slowest_round_s = witness.rounds, witness.slowest_s
        if report.grown_bytes > MAX_GROWTH_BYTES:
            report.failures.append(f"the broker grew by {report.grown_bytes >> 20} MiB")
        if trouble := _trouble_in(broker.log):
            report.failures.append(f"the broker logged:\n{trouble}")
    return report


def _attack(
    hostility: Hostility, witness: Witness, broker: EmbeddedBroker, process: psutil.Process, deadline: float
) -> None:
    steps = 0
    while time.monotonic() < deadline:
        hostility.step()
        steps += 1
        if steps % LOOK_EVERY == 0:
            witness.check()
            assert process.status() != psutil.STATUS_ZOMBIE, "the broker is dead"
            assert not _trouble_in(broker.log), "the broker logged an error"


def _trouble_in(log: str) -> str:
    """From the first error on, or nothing."""
    for mark in ("Traceback (most recent call last)", " ERROR ", "stack backtrace"):
        if mark in log:
            place = log.index(mark)
            return log[log.rfind("\n", 0, place) + 1 :][:4000]
    return ""
