"""A short fuzz run; ``make fuzz`` is the long one."""

import pytest

from tests.fuzz.run import MODES, Report, run

SEED = 20_261


@pytest.mark.parametrize("mode", MODES)
def test_five_seconds_of_hostile_bytes_harm_nobody(mode: str) -> None:
    report = unharmed(5, SEED, mode)
    if not _has_met_enough(report):
        # A machine that does other things needs longer for as much.
        report = unharmed(60, SEED, mode)
    assert _has_met_enough(report), report


def unharmed(seconds: float, seed: int, mode: str) -> Report:
    report = run(seconds, seed, mode)
    if report.failures:
        # Not an assertion, which pytest would shorten: the broker's log lines are printed whole.
        command = f"python -m tests.fuzz {seconds} {seed} --mode {mode}"
        pytest.fail("\n".join([command, *report.failures]), pytrace=False)
    return report


def _has_met_enough(report: Report) -> bool:
    return report.rounds > 10 and report.frames > 200 and report.done.get("closed by the broker", 0) > 0
