"""What scenario tests share: a raw client on the common broker, a topic name of one's own, waiting for a condition."""

import re
import uuid
from collections.abc import Iterator

import pytest

from skep.testing import EmbeddedBroker
from tests.raw_client import RawClient


@pytest.fixture
def client(skep_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(skep_broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def other(skep_broker: EmbeddedBroker) -> Iterator[RawClient]:
    """A second connection, for what happens while the first one waits."""
    with RawClient(skep_broker.bootstrap_servers, client_id="other") as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; the topic itself is the test's to create."""
    test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100]
    return f"{test}-{uuid.uuid4().hex[:8]}"
