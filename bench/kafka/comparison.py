"""One comparison with Kafka: both take turns, and a row holds the ratio of the best runs and the median ratio.

The first turns of each are thrown away, because a JVM compiles its code while it runs. From round to round the order
changes, so that neither always follows the other.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bench.peers import cpu_seconds
from bench.row import Row, say, spread

SKEP, KAFKA = "skep", "kafka"
TRIES = 3


class Peer(NamedTuple):
    """One of the two, as a client sees it, and its processes."""

    name: str
    bootstrap_servers: str
    pids: Sequence[int]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))


@dataclass(frozen=True)
class Measurement:
    """``value`` is a rate or a time, ``cpu_s`` what the brokers used for it, in rows with Spark all processes."""

    value: float
    cpu_s: float = 0.0


@dataclass
class Comparison:
    """What one row measures: ``run`` is called with each peer in turn."""

    name: str
    what: str
    run: Callable[[Peer], Measurement]
    better: Literal["more", "less"] = "more"
    unit: str = "records/s"
    warm_up: int = 1
    """Rounds that are thrown away. Short runs need more of them until a JVM has compiled what they use."""
    rounds: int = 5
    results: dict[str, list[Measurement]] = field(default_factory=lambda: {SKEP: [], KAFKA: []})

    def measure(self, peers: Mapping[str, Peer]) -> Row:
        for number in range(-self.warm_up, self.rounds):
            names = (SKEP, KAFKA) if number % 2 else (KAFKA, SKEP)
            measured = {name: self._tried(peers[name]) for name in names}
            if number < 0:
                continue
            for name in (SKEP, KAFKA):
                self.results[name].append(measured[name])
            texts = ", ".join(f"{name} {self._text(measured[name].value)}" for name in (SKEP, KAFKA))
            say(f"{self.name}, {number + 1} of {self.rounds}: {texts}")
        return self._row()

    def _tried(self, peer: Peer) -> Measurement:
        """On a busy machine a session ends, a leader changes, and a run with it; then it is made again."""
        for _ in range(TRIES - 1):
            try:
                return self.run(peer)
            except (RuntimeError, OSError) as error:
                say(f"{self.name}, {peer.name}: {error}; once more")
        return self.run(peer)

    def _row(self) -> Row:
        ours, theirs = ([one.value for one in self.results[name]] for name in (SKEP, KAFKA))
        best = max if self.better == "more" else min
        cpu = {name: [one.cpu_s for one in runs] for name, runs in self.results.items()}
        used = statistics.median(cpu[SKEP]) / statistics.median(cpu[KAFKA]) if all(cpu[KAFKA]) else None
        return Row(
            self.name,
            self.what,
            1.0,
            "at least" if self.better == "more" else "at most",
            best(ours) / best(theirs),
            self._text(best(ours)),
            self._text(best(theirs)),
            median=statistics.median(our / their for our, their in zip(ours, theirs, strict=True)),
            details={
                SKEP: {"runs": spread(ours), "cpu_s": spread(cpu[SKEP], 2)},
                KAFKA: {"runs": spread(theirs), "cpu_s": spread(cpu[KAFKA], 2)},
                "cpu": None if used is None else round(used, 2),
            },
        )

    def _text(self, value: float) -> str:
        return f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.2f} {self.unit}"
