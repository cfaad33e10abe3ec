"""A pytest plugin for a round of random search: more examples for state machines, and no test begins when time is up.

State machines find what they find with many schedules, and ``make test`` has time for few.
"""

import os
import time

import pytest
from hypothesis import settings

UNTIL = "SKEP_EXPLORE_UNTIL"
"""The environment variable with the deadline, in seconds since 1970."""
MORE = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    machines = {item.cls for item in items if isinstance(item, pytest.Function) and item.cls is not None}
    for machine in machines:
        # The class that RuleBasedStateMachine.TestCase gives has its settings as an attribute.
        if isinstance(chosen := getattr(machine, "settings", None), settings):
            machine.settings = settings(chosen, max_examples=MORE * chosen.max_examples)


def pytest_runtest_setup() -> None:
    if time.time() >= float(os.environ[UNTIL]):
        pytest.skip("the time is up")
