"""One line of the table: what was measured, against which bar; and how runs are repeated on a noisy machine.

A machine that does other things only ever makes a run slower, so of three runs the best one says most about the code.
Reference and subject take turns, so that a slow minute hits both. The rows with Spark, whose runs have more luck in
them, are made of medians of five.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

ROUNDS = 3

Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    bar: float | None
    """None: nothing is asked for, the number is stated."""
    direction: Literal["at least", "at most"]
    measured: float
    ours: str
    reference: str = ""
    unit: str = "x"
    """x: a ratio to the reference; s, MB: what it says."""
    median: float | None = None
    """The median of the ratios of single rounds, where ``measured`` is the ratio of the best ones."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        return self.measured >= self.bar if self.direction == "at least" else self.measured <= self.bar

    @property
    def margin(self) -> float:
        """How far from the bar, on the right side of it from 1.0 on: 2.0 is twice as good as asked."""
        if self.bar is None:
            return 1.0
        return self.measured / self.bar if self.direction == "at least" else self.bar / self.measured

    @property
    def bar_text(self) -> str:
        return "stated" if self.bar is None else f"{self.direction} {self.number(self.bar)}"

    @property
    def measured_text(self) -> str:
        return self.number(self.measured)

    def number(self, value: float) -> str:
        return f"{value:.0f} MB" if self.unit == "MB" else f"{value:.2f} {self.unit}"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": self.what,
            "bar": self.bar,
            "direction": self.direction,
            "unit": self.unit,
            "measured": round(self.measured, 4),
            **({} if self.median is None else {"median": round(self.median, 4)}),
            "ok": self.ok,
            "ours": self.ours,
            "reference": self.reference,
            "details": self.details,
        }


def say(line: str) -> None:
    """Progress goes to standard error: standard output is for the result."""
    print(f"  {line}", file=sys.stderr, flush=True)


def take_turns(
    runs: Mapping[str, Callable[[], Result]], show: Callable[[Result], str], rounds: int = ROUNDS
) -> dict[str, list[Result]]:
    """Every run once, then every run again, so many rounds; what each of them gave, by name."""
    results: dict[str, list[Result]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            result = run()
            results[name].append(result)
            say(f"{name}, {number + 1} of {rounds}: {show(result)}")
    return results


def spread(values: Sequence[float], digits: int = 1) -> dict[str, float | list[float]]:
    """For the details of a row: all runs and their median, beside the best one that the ratio is made of."""
    return {"runs": [round(v, digits) for v in values], "median": round(statistics.median(values), digits)}


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
