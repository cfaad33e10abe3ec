"""Fixtures for pytest, there as soon as Skep is installed.

``skep_broker``          one broker for the whole test run; give topics names of their own
``skep_fresh_broker``    a broker for one test alone, to kill and restart
``skep_broker_options``  override it to give both of them options
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from skep.testing import EmbeddedBroker


@pytest.fixture(scope="session")
def skep_broker_options() -> dict[str, str]:
    return {}


@pytest.fixture(scope="session")
def skep_broker(skep_broker_options: dict[str, str]) -> "Iterator[EmbeddedBroker]":
    from skep.testing import EmbeddedBroker

    with EmbeddedBroker(options=skep_broker_options) as broker:
        yield broker


@pytest.fixture
def skep_fresh_broker(skep_broker_options: dict[str, str]) -> "Iterator[EmbeddedBroker]":
    from skep.testing import EmbeddedBroker

    with EmbeddedBroker(options=skep_broker_options) as broker:
        yield broker
