"""How Hypothesis looks for examples, and the fixtures of Skep.

``make test`` and ``make check`` use the profile ``fixed``: every run tries the same examples, so a run that fails has
found something new in the code, not in the dice. ``make explore`` uses ``explore``, which searches at random. What it
finds becomes a test of its own. Neither has limits of time: a busy machine is no reason to fail.
"""

from importlib.metadata import entry_points

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

UNHURRIED = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", UNHURRIED, derandomize=True)
settings.register_profile("explore", UNHURRIED, derandomize=False, print_blob=True)
settings.load_profile("fixed")

# Once only: where Skep is installed its fixtures are there already, and pytest refuses a plugin under two names.
_is_installed = any(point.value == "skep.pytest_plugin" for point in entry_points(group="pytest11"))
pytest_plugins = [] if _is_installed else ["skep.pytest_plugin"]


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    if settings.get_current_profile_name() == "fixed":
        # Hypothesis also draws constants from the modules that are imported by then. These depend on the tests that the
        # process has run before, and on the path of the clone. Left out, the pool stays empty.
        providers._get_local_constants = lambda: providers._local_constants
