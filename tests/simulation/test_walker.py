"""Random schedules over the brokers' own rules: nothing acknowledged is lost, nothing read is taken back."""

import pytest

from tests.lengths import times
from tests.simulation.walking import explain, look_for_violations

SCHEDULES = times(300, long=6000)
STEPS = 300


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(0, 4 * SCHEDULES, SCHEDULES))
def test_no_schedule_breaks_a_promise(first_seed):
    report = look_for_violations(range(first_seed, first_seed + SCHEDULES), STEPS)
    if report.failed_seed is not None:
        told = "\n".join(explain(report.failed_seed, STEPS))
        pytest.fail(f"python -m tests.simulation --seed {report.failed_seed} --steps {STEPS}\n{told}")
    # A walker that gets nothing done finds nothing either.
    assert report.schedules == SCHEDULES
    assert report.steps > 50 * SCHEDULES
    assert report.acknowledged > 2 * SCHEDULES
    assert report.recoveries > SCHEDULES / 10
    assert report.excused < SCHEDULES / 50


def test_a_seed_gives_the_same_schedule_again():
    seeds = range(7, 27)
    assert look_for_violations(seeds, STEPS) == look_for_violations(seeds, STEPS)
