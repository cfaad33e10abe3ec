"""A short fuzz run; ``make fuzz`` is the long one."""

import pytest

from tests.fuzz.run import Report, run


@pytest.mark.parametrize("seed", [20_261])
def test_five_seconds_of_hostile_bytes_harm_nobody(seed: int) -> None:
    report = unharmed(5, seed)
    if not _has_met_enough(report):
        # A machine that does other things needs longer for as much.
        report = unharmed(60, seed)
    assert _has_met_enough(report), report


def unharmed(seconds: float, seed: int) -> Report:
    report = run(seconds, seed)
    if report.failures:
        # Not an assertion, which pytest would shorten: the broker's log lines are printed whole.
        pytest.fail("\n".join([f"python -m tests.fuzz {seconds} {seed}", *report.failures]), pytrace=False)
    return report


def _has_met_enough(report: Report) -> bool:
    return report.rounds > 10 and sum(report.done.values()) > 200 and report.done.get("closed by the broker", 0) > 0
