"""The first requests of clients on a new cluster: no broker has heard of the coordinators' topics yet.

Some clients give up when the coordinator that they were told of refuses their first request (kafkajs ends its consumer
on any refused JoinGroup), so it must not be refused.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from skep.wire.codec import request_class, response_class
from tests.raw_client import RawClient

GROUPS = [f"group-{number}" for number in range(18)]
GROUP, TRANSACTION = 0, 1


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[int, RawClient]]:
    """A connection to each broker, opened before the coordinators' topics exist: the race is then a short one."""
    for api, version in (apis.FIND_COORDINATOR, 4), (apis.JOIN_GROUP, 4), (apis.INIT_PRODUCER_ID, 1):
        request_class(api.key, version), response_class(api.key, version)  # imported here, which takes a while
    with EmbeddedCluster(3) as cluster, contextlib.ExitStack() as stack:
        yield {i: stack.enter_context(RawClient(address)) for i, address in cluster.brokers.items()}


def coordinators(client: RawClient, key_type: int, keys: list[str]) -> dict[str, int]:
    found = client.ask(apis.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=keys).coordinators
    assert {one.error_code for one in found} == {ErrorCode.none}
    return {one.key: one.node_id for one in found}


def ask_all(clients: dict[int, RawClient], named: dict[str, int], api: apis.Api, version: int, body: Any) -> set[Any]:
    """The codes of the responses. All requests are sent before any response is read."""
    for key, node_id in named.items():
        clients[node_id].send(api, version, **body(key))
    return {clients[node_id].receive().error_code for node_id in named.values()}


def test_the_coordinator_that_is_named_first_accepts_a_member(clients: dict[int, RawClient]) -> None:
    def join(group_id: str) -> dict[str, Any]:
        return {
            "group_id": group_id,
            "session_timeout": timedelta(seconds=30),
            "rebalance_timeout": timedelta(seconds=30),
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": ({"name": "range", "metadata": b""},),
        }

    named = coordinators(clients[1], GROUP, GROUPS)
    assert set(named.values()) == {1, 2, 3}
    assert ask_all(clients, named, apis.JOIN_GROUP, 4, join) == {ErrorCode.member_id_required}


def test_the_coordinator_that_is_named_first_gives_a_producer_id(clients: dict[int, RawClient]) -> None:
    def init(transactional_id: str) -> dict[str, Any]:
        return {"transactional_id": transactional_id, "transaction_timeout": timedelta(seconds=30)}

    named = coordinators(clients[2], TRANSACTION, GROUPS)
    assert set(named.values()) == {1, 2, 3}
    assert ask_all(clients, named, apis.INIT_PRODUCER_ID, 1, init) == {ErrorCode.none}
