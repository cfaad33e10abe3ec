"""Coordinators on brokers that are so busy that each partition takes its role in a turn of the loop of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from skep.coordination.partitioner import partition_for
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import COORDINATOR_PARTITIONS, OPTIONS, assert_no_bug_was_logged
from tests.cluster.driving import LONG_SESSIONS
from tests.cluster.scenes import create
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

TOPIC = "eggs"
STATE = "__transaction_state"
LAST = COORDINATOR_PARTITIONS - 1
"""The partition that is the last to take its role."""
LATEST, READ_COMMITTED = -1, 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedCluster]:
    monkeypatch.setenv("SKEP_TEST_SLICE_S", "1e-9")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "in_broker"))
    with EmbeddedCluster(3, config={**OPTIONS, **LONG_SESSIONS}) as cluster:
        yield cluster


def begin_transaction(cluster: EmbeddedCluster, timeout_ms: int) -> Producer:
    """Of an id that the last partition of the coordinator has."""
    name = next(name for name in map(str, range(1000)) if partition_for(name, COORDINATOR_PARTITIONS) == LAST)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"egg", partition=0)
    producer.flush(60)
    return producer


def has_ended(cluster: EmbeddedCluster) -> bool:
    """Whether no transaction is open in the topic, by the word of its leader."""
    with RawClient(cluster.brokers[cluster.leader_of(TOPIC)]) as client:
        stable = client.list_offset(TOPIC, LATEST, isolation_level=READ_COMMITTED)
        end = client.list_offset(TOPIC, LATEST)
    return stable.error_code is end.error_code is ErrorCode.none and stable.offset == end.offset


def test_a_coordinator_that_leads_again_by_preference_ends_the_transactions_that_time_out(
    cluster: EmbeddedCluster,
) -> None:
    create(cluster, TOPIC)
    begin_transaction(cluster, 60_000).commit_transaction(60)
    cluster.wait_until_in_sync()
    preferred = cluster.leader_of(STATE, LAST)
    cluster.stop(preferred)
    cluster.restart(preferred)
    cluster.wait_until_in_sync()
    acting = cluster.leader_of(STATE, LAST)
    assert acting != preferred
    forgotten = begin_transaction(cluster, 10_000)
    with RawClient(cluster.brokers[acting]) as client:
        client.ask(apis.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=seconds(60))
    wait_until(lambda: cluster.leader_of(STATE, LAST) == preferred, "the preferred leader leads")
    # Nobody asks this coordinator for anything.
    wait_until(lambda: has_ended(cluster), "the transaction is aborted")
    with RawClient(cluster.brokers[preferred]) as client:
        assert client.ask(apis.LIST_TRANSACTIONS, 0).error_code is ErrorCode.none
    assert_no_bug_was_logged(cluster)
    del forgotten
