"""How Hypothesis looks for examples, in which order processes share the tests, and the fixtures of Skep.

``make test`` and ``make check`` use the profile ``fixed``: every run tries the same examples, so a run that fails has
found something new in the code, not in the dice. ``make explore`` uses ``explore``, which searches at random. What it
finds becomes a test of its own. Neither has limits of time: a busy machine is no reason to fail.

``make test`` runs several processes (``-n``), which take groups of tests from one queue. A group is all tests with the
same ``xdist_group``: they share something that is slow to start, a Spark or a cluster. Every other test is a group by
itself. The longest groups come first, so that no process is left alone with one at the end.
"""

import signal
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


@pytest.fixture(scope="session")
def skep_broker_options() -> dict[str, str]:
    """No check of retention: tests write records with timestamps of long ago, and the broker that they share lives for
    longer than the five minutes between two checks."""
    return {"log.retention.check.interval.ms": "86400000"}


LONGEST_FIRST = (
    # One Spark each. The tests of clusters between them mostly wait, and leave the processors to Spark.
    "spark",
    "tests/spark/test_cluster.py",
    "tests/cluster/test_coordinators_move.py",
    "tests/cluster/test_operating.py",
    "spark-pipelines",
    "tests/spark/test_writing_killed.py",
    "tests/cluster/",
    "tests/spark/",
    "tests/docs/",
    "tests/scenario/",
    "tests/simulation/",
    "tests/crash/",
    "tests/compat/",
    "tests/contract/",
)
"""Groups by their name, or tests by the beginning of their path; what is not listed comes last."""


def place_in_queue(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    name = group.args[0] if group is not None else ""
    for place, listed in enumerate(LONGEST_FIRST):
        if name == listed or item.nodeid.startswith(listed):
            return place
    return len(LONGEST_FIRST)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=place_in_queue)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell script. The processes that tests interrupt would inherit it, and go on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if settings.get_current_profile_name() == "fixed":
        # Hypothesis also draws constants from the modules that are imported by then. These depend on the tests that the
        # process has run before, and on the path of the clone. Left out, the pool stays empty.
        providers._get_local_constants = lambda: providers._local_constants
