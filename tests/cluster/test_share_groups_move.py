"""A share group in a cluster: its coordinator, the share coordinators and the leaders are other brokers, which die."""

from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import assert_no_bug_was_logged, bring_back, coordinator_of, running_cluster
from tests.cluster.driving import LONG_SESSIONS, ask
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

TOPIC, GROUP, OTHER = "orders", "kitchen", "waiters"
MOVING = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with running_cluster("sqlite", TOPIC, config=LONG_SESSIONS) as started:
        yield started


def at_coordinator(cluster: EmbeddedCluster, group: str, api: apis.Api, code_of: Any, **body: Any) -> Any:
    """The response of the group's coordinator, asked for again while it moves."""

    def response() -> Any:
        coordinator = coordinator_of(cluster, group)
        if coordinator not in cluster.running:
            return None
        found = ask(cluster, coordinator, api, api.newest, **body)
        return None if code_of(found) in MOVING else found

    return wait_until(response, f"the coordinator of {group} responds", 120)


def beat(cluster: EmbeddedCluster, epoch: int, **said: Any) -> Any:
    body = {"group_id": GROUP, "member_id": "m", "member_epoch": epoch, **said}
    response = at_coordinator(cluster, GROUP, apis.SHARE_GROUP_HEARTBEAT, lambda found: found.error_code, **body)
    assert response.error_code is ErrorCode.none, response
    return response


def lags(cluster: EmbeddedCluster, group: str) -> dict[int, tuple[int, int]]:
    response = at_coordinator(
        cluster,
        group,
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda found: found.groups[0].error_code,
        groups=[{"group_id": group, "topics": None}],
    )
    [described] = response.groups
    assert described.error_code is ErrorCode.none, described
    return {
        row.partition_index: (row.start_offset, row.lag)
        for topic in described.topics
        for row in topic.partitions
        if row.error_code is ErrorCode.none
    }


def joined(cluster: EmbeddedCluster) -> int:
    """Joins, and goes on until all partitions are assigned: their state is on all brokers."""
    epoch = 0

    def assigned() -> bool:
        nonlocal epoch
        response = beat(cluster, epoch, subscribed_topic_names=[TOPIC])
        epoch = response.member_epoch
        return [list(topic.partitions) for topic in response.assignment.topic_partitions] == [[0, 1, 2]]

    wait_until(assigned, "all partitions are assigned", 60)
    return epoch


def test_members_and_offsets_are_kept_when_coordinators_and_leaders_die(cluster: EmbeddedCluster) -> None:
    for group in (GROUP, OTHER):
        ask(cluster, 1, apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group])
    wait_until(lambda: coordinator_of(cluster, GROUP) in cluster.running, "there is a coordinator")
    for partition in range(3):
        with RawClient(cluster.brokers[cluster.leader_of(TOPIC, partition)]) as client:
            client.append(TOPIC, batch_of(*(b"x",) * (partition + 1)), partition=partition)
    starts = [{"partition_index": partition, "start_offset": 1} for partition in range(3)]

    def altered() -> bool:
        response = at_coordinator(
            cluster,
            OTHER,
            apis.ALTER_SHARE_GROUP_OFFSETS,
            lambda found: found.error_code,
            group_id=OTHER,
            topics=[{"topic_name": TOPIC, "partitions": starts}],
        )
        assert response.error_code is ErrorCode.none, response
        return all(row.error_code is ErrorCode.none for row in response.responses[0].partitions)

    wait_until(altered, "the offsets are set", 60)
    expected = {0: (1, 0), 1: (1, 1), 2: (1, 2)}
    # Each partition is led by another broker, so two of the ends come from others.
    assert len({cluster.leader_of(TOPIC, partition) for partition in range(3)}) == 3
    wait_until(lambda: lags(cluster, OTHER) == expected, "all leaders respond", 60)
    epoch = joined(cluster)

    for lost in (coordinator_of(cluster, GROUP), coordinator_of(cluster, OTHER)):
        cluster.wait_until_in_sync()
        cluster.kill(lost)
        wait_until(lambda lost=lost: coordinator_of(cluster, GROUP) not in (lost, -1), "another coordinator", 60)
        kept = beat(cluster, epoch)
        assert (kept.member_epoch, kept.assignment) == (epoch, None)
        wait_until(lambda: lags(cluster, OTHER) == expected, "the offsets are those from before", 60)
        bring_back(cluster, lost)

    cluster.wait_until_in_sync()
    beat(cluster, -1)
    deleted = at_coordinator(
        cluster, GROUP, apis.DELETE_GROUPS, lambda found: found.results[0].error_code, groups_names=[GROUP]
    )
    assert deleted.results[0].error_code is ErrorCode.none
    assert lags(cluster, GROUP) == {}
    assert_no_bug_was_logged(cluster)
