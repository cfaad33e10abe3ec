"""The walker finds each bug that is planted, with the schedules that it finds nothing in otherwise."""

import pytest

from tests.simulation.planted import BUGS, HARMLESS
from tests.simulation.walking import explain, look_for_violations

SCHEDULES = 1600
STEPS = 300


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant):
    with plant():
        report = look_for_violations(range(SCHEDULES), STEPS)
    assert report.failed_seed is not None


@pytest.mark.parametrize("plant", HARMLESS, ids=lambda plant: plant.__name__)
def test_what_another_rule_covers_for_is_not_found(plant):
    with plant():
        report = look_for_violations(range(SCHEDULES // 8), STEPS)
    assert report.failed_seed is None


def test_what_is_found_is_told_in_few_steps():
    plant = BUGS[-1]
    with plant():
        report = look_for_violations(range(SCHEDULES), STEPS)
        assert report.failed_seed is not None
        told = explain(report.failed_seed, STEPS)
    assert told[-1].startswith("VIOLATION")
    assert len(told) < 20
