"""Schedules drawn at random from a seed, replayed, and shortened when one finds something."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import skep.controller.controller
from tests.simulation.cluster import Cluster
from tests.simulation.cluster_state import Shape, Step
from tests.simulation.violation import Excused, Violation

ORDINARY = {
    "round": 16,
    "fetch": 6,
    "serve": 8,
    "take": 8,
    "produce": 7,
    "catch_up": 6,
    "hear": 6,
    "isr": 6,
    "control": 5,
    "finish": 6,
    "answer": 10,
    "land": 2,
    "thaw": 2,
    "start": 5,
}
FAULTS = {"cut": 2, "tick": 2, "checkpoint": 1, "crash": 3, "lose": 1, "expire": 3, "freeze": 1, "depose": 2}
"""How often each kind is drawn, about: each seed has rates of its own, and leaves some faults out. Schedules that are
one-sided in different ways find more than those that are all alike (swarm testing)."""
RATES = (0.3, 1.0, 1.0, 3.0)
FAULT_RATES = (0.0, 0.1, 0.3, 1.0)
KINDS = (*ORDINARY, *FAULTS)
MOVES_IN = 3
"""Of so many seeds of a shape one has reassignments too: where replicas come and go, other things happen less often."""
MOVE_RATE = 0.06
POWER_IN = 5
"""Of so many seeds two have power cuts too."""
POWER_RATES = {"power": 0.015, "sync": 0.045, "report": 0.1}
FAILOVERS_BEFORE_POWER = (
    *("catch_up", "start", "finish", "produce", "round", "depose", "catch_up", "produce", "depose", "catch_up"),
    *("round", "sync", "sync", "sync", "power"),
)
"""Machines that lose power one after the other: two failovers in a row, with records that not all have, and then a cut.
Each power cut of a quarter of these seeds comes like that."""
LEFT_OUT = 0.1
"""How often a step of such a sequence is left out."""
CUTS_ALL = 0.5
"""How often the power cut after failovers is one of all brokers; otherwise it is one of any."""
DELETES_IN = 4
"""Of so many seeds two delete records too."""
DELETE_RATE = 0.03
DRIVE_RATE = 0.2
DECISIONS_AFTER_FAILOVER = (
    *("depose", "catch_up", "isr", "drive", "drive", "round", "round", "drive", "drive", "round", "round"),
    *("drive", "drive", "drive", "round", "round"),
)
"""What seeds with a driver have now and then: it decides while a leader that was succeeded does not know that."""
DECISION_RATE = 0.015
DRIVER_IN = 3
"""Of so many seeds that neither delete nor cut power one has a driver."""
SHAPES = (
    Shape(),
    Shape(in_sync=2),
    Shape(brokers=2),
    Shape(brokers=4, in_sync=3),
    Shape(min_insync_replicas=1, in_sync=1),
    Shape(partitions=2),
)
FAILOVER_SHAPE = Shape(min_insync_replicas=1)
"""Of seeds with failovers before power cuts: the third leader is alone in the ISR, and that is enough to commit."""


class Found(NamedTuple):
    """How a schedule ended before its last step."""

    what: str
    after: int


SYNCED_IN = 20
"""Of so many seeds one, with power cuts, has a topic that syncs before it acknowledges. A sync of the model takes no
time, which a partition that is left with one replica does not expect: so none with moves."""


def shape_of(seed: int) -> Shape:
    shape = FAILOVER_SHAPE if has_failovers_before_power(seed) else SHAPES[seed % len(SHAPES)]
    is_synced = has_power_cuts(seed) and not has_moves(seed) and seed % SYNCED_IN == 0
    return replace(shape, is_synced=is_synced)


def has_power_cuts(seed: int) -> bool:
    return seed % POWER_IN < 2


def has_failovers_before_power(seed: int) -> bool:
    return seed % (2 * POWER_IN) == 1


def has_moves(seed: int) -> bool:
    return seed // len(SHAPES) % MOVES_IN == MOVES_IN - 1


def has_deletes(seed: int) -> bool:
    return seed % DELETES_IN < 2


def has_driver(seed: int) -> bool:
    """A power cut of all may take decisions of a topic that is not synced, and nobody deletes decisions.

    Failovers before decisions are all that goes wrong in these seeds: among many faults a driver gets little done.
    """
    return seed % DRIVER_IN == 0 and not has_power_cuts(seed) and not has_deletes(seed)


def schedule_of(seed: int, count: int) -> list[Step]:
    generator = random.Random(seed)
    weights = [weight * generator.choice(RATES) for weight in ORDINARY.values()]
    weights += [weight * generator.choice(FAULT_RATES) * (not has_driver(seed)) for weight in FAULTS.values()]
    kinds = generator.choices(KINDS, weights, k=count)
    # Where one is favoured, the others are slow: followers that lag behind, brokers that hear of nothing.
    favour = {kind: generator.choice((0.0, 0.0, 0.7)) for kind in KINDS}
    favourite = {kind: generator.getrandbits(8) for kind in KINDS}
    steps = [
        Step(
            kind,
            favourite[kind] if generator.random() < favour[kind] else generator.getrandbits(8),
            generator.getrandbits(8),
        )
        for kind in kinds
    ]
    if has_moves(seed):
        _mix_in(steps, "reassign", MOVE_RATE, generator)
    if has_power_cuts(seed):
        _mix_in_power_cuts(steps, generator, has_failovers=has_failovers_before_power(seed))
    if has_deletes(seed):
        _mix_in(steps, "delete", DELETE_RATE, generator)
    if has_driver(seed):
        _mix_in(steps, "drive", DRIVE_RATE, generator)
        for first in range(count - len(DECISIONS_AFTER_FAILOVER)):
            if generator.random() < DECISION_RATE:
                _overwrite(steps, first, DECISIONS_AFTER_FAILOVER, generator)
    return steps


def _mix_in(steps: list[Step], kind: str, rate: float, generator: random.Random) -> None:
    for number in range(len(steps)):
        if generator.random() < rate:
            steps[number] = Step(kind, generator.getrandbits(8), generator.getrandbits(8))


def _overwrite(steps: list[Step], first: int, kinds: Sequence[str], generator: random.Random) -> None:
    for place, kind in enumerate(kinds, first):
        if generator.random() >= LEFT_OUT:
            steps[place] = Step(kind, generator.getrandbits(8), generator.getrandbits(8))


def _mix_in_power_cuts(steps: list[Step], generator: random.Random, *, has_failovers: bool) -> None:
    kinds = [None, *POWER_RATES]
    rates = [1 - sum(POWER_RATES.values()), *POWER_RATES.values()]
    for number, kind in enumerate(generator.choices(kinds, rates, k=len(steps))):
        if kind is not None:
            steps[number] = Step(kind, generator.getrandbits(8), generator.getrandbits(8))
        first = number + 1 - len(FAILOVERS_BEFORE_POWER)
        if kind == "power" and has_failovers and first >= 0:
            _overwrite(steps, first, FAILOVERS_BEFORE_POWER, generator)
            if generator.random() < CUTS_ALL:
                steps[number] = steps[number]._replace(kind="power", which=0)


class Walk(NamedTuple):
    found: Found | None
    steps: int
    acknowledged: int
    recoveries: int
    is_excused: bool


def walk(shape: Shape, steps: Sequence[Step], trace: list[str] | None = None) -> Walk:
    """One schedule from its beginning, to the first violation if there is one. Needs a running event loop."""
    cluster = Cluster(shape, is_traced=trace is not None)
    drawn = made = 0
    try:
        for step in steps:
            drawn += 1
            said = cluster.step(step)
            if said is not None:
                made += 1
                if trace is not None:
                    trace.append(said)
                cluster.check()
        cluster.come_to_rest()
    except Violation as violation:
        return Walk(Found(str(violation), drawn), made, cluster.safety.acknowledged, cluster.recoveries, False)
    except Excused:
        return Walk(None, made, cluster.safety.acknowledged, cluster.recoveries, True)
    finally:
        cluster.close()
    return Walk(None, made, cluster.safety.acknowledged, cluster.recoveries, False)


def shortened(shape: Shape, steps: Sequence[Step]) -> list[Step]:
    """The same violation, or another, with as few steps as leaving out some can give."""
    best = list(steps)
    found = walk(shape, best).found
    assert found is not None
    best = best[: found.after]
    size = len(best) // 2
    while size:
        start = 0
        while start < len(best):
            fewer = best[:start] + best[start + size :]
            found = walk(shape, fewer).found
            if found is not None:
                best = fewer[: found.after]
            else:
                start += size
        size //= 2
    return best


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The brokers log what befalls them, and pause before they try again; here neither is wanted."""
    logger, pause_s = logging.getLogger("skep"), skep.controller.controller.RETRY_PAUSE_S
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    skep.controller.controller.RETRY_PAUSE_S = 0
    try:
        yield
    finally:
        logger.setLevel(level)
        skep.controller.controller.RETRY_PAUSE_S = pause_s


class Report(NamedTuple):
    schedules: int
    steps: int
    acknowledged: int
    recoveries: int
    """How often a leader was found by comparing logs."""
    excused: int
    failed_seed: int | None


async def _look_for_violations(seeds: range, count: int) -> Report:
    steps = acknowledged = recoveries = excused = 0
    for number, seed in enumerate(seeds, 1):
        result = walk(shape_of(seed), schedule_of(seed, count))
        steps += result.steps
        acknowledged += result.acknowledged
        recoveries += result.recoveries
        excused += result.is_excused
        if result.found is not None:
            return Report(number, steps, acknowledged, recoveries, excused, seed)
        # What acknowledgements have left on the loop to be called is called, so that it does not pile up.
        await asyncio.sleep(0)
    return Report(len(seeds), steps, acknowledged, recoveries, excused, None)


def look_for_violations(seeds: range, count: int) -> Report:
    """Schedule after schedule, until one finds something."""
    with quiet():
        return asyncio.run(_look_for_violations(seeds, count))


async def _explain(seed: int, count: int) -> list[str]:
    shape = shape_of(seed)
    steps = shortened(shape, schedule_of(seed, count))
    trace: list[str] = [str(shape)]
    found = walk(shape, steps, trace).found
    assert found is not None
    return [*trace, f"VIOLATION after {len(steps)} steps: {found.what}"]


def explain(seed: int, count: int) -> list[str]:
    """The shortest trace that a failing seed gives."""
    with quiet():
        return asyncio.run(_explain(seed, count))
