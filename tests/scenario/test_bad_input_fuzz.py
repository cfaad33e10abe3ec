"""A short fuzz run; ``make fuzz`` is the long one."""

import pytest

from tests.fuzz.run import run


@pytest.mark.parametrize("seed", [20_261])
def test_five_seconds_of_hostile_bytes_harm_nobody(seed: int) -> None:
    report = run(5, seed)
    assert report.failures == [], f"python -m tests.fuzz 5 {seed}"
    # Enough to have met something, also on a machine that does other things: two connections were closed on one.
    assert report.rounds > 10
    assert sum(report.done.values()) > 200
    assert report.done["closed by the broker"] > 0
