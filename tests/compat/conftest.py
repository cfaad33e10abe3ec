"""What compat tests share: the address of the common broker, a topic name of one's own."""

import re
import uuid

import pytest

from skep.testing import EmbeddedBroker


@pytest.fixture
def servers(skep_broker: EmbeddedBroker) -> str:
    return skep_broker.bootstrap_servers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
