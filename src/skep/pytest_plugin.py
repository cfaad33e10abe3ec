"""Fixtures for pytest, available when Skep is installed.

``skep_broker``          one broker for the whole test run; use different topic names in each test
``skep_fresh_broker``    a broker for a single test, to kill and restart
``skep_secured_broker``  one broker for the whole test run, with TLS and SASL; its ``client_config`` is for clients
``skep_broker_options``  override it to set options of all three
``skep_cluster``         three brokers for a single test, to kill, pause and restart one by one
``skep_cluster_options`` override it to set arguments of ``EmbeddedCluster``, e.g. ``{"brokers": 5}``

The report of a test that fails ends with the last lines that each broker has logged.
"""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from skep.testing import EmbeddedBroker, EmbeddedCluster

LINES_SHOWN = 20


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    testing = sys.modules.get("skep.testing.broker")
    if not report.failed or testing is None:
        return
    for broker in sorted(testing.started, key=lambda broker: broker.options.get("node.id", "")):
        lines = broker.log.splitlines()[-LINES_SHOWN:]
        name = f"broker {broker.options.get('node.id', '')}".rstrip()
        report.sections.append((f"log of {name} on {broker.bootstrap_servers}", "\n".join(lines)))


@pytest.fixture(scope="session")
def skep_broker_options() -> dict[str, str]:
    return {}


@pytest.fixture(scope="session")
def skep_broker(skep_broker_options: dict[str, str]) -> "Iterator[EmbeddedBroker]":
    from skep.testing import EmbeddedBroker

    with EmbeddedBroker(options=skep_broker_options) as broker:
        yield broker


@pytest.fixture(scope="session")
def skep_secured_broker(skep_broker_options: dict[str, str]) -> "Iterator[EmbeddedBroker]":
    from skep.testing import EmbeddedBroker

    with EmbeddedBroker(options=skep_broker_options, security="sasl_ssl") as broker:
        yield broker


@pytest.fixture
def skep_fresh_broker(skep_broker_options: dict[str, str]) -> "Iterator[EmbeddedBroker]":
    from skep.testing import EmbeddedBroker

    with EmbeddedBroker(options=skep_broker_options) as broker:
        yield broker


@pytest.fixture(scope="session")
def skep_cluster_options() -> dict[str, Any]:
    return {}


@pytest.fixture
def skep_cluster(skep_cluster_options: dict[str, Any]) -> "Iterator[EmbeddedCluster]":
    from skep.testing import EmbeddedCluster

    with EmbeddedCluster(**skep_cluster_options) as cluster:
        yield cluster
