"""A member of a share group that sends no heartbeats loses what it holds at leaders that are not its coordinator."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import assert_no_bug_was_logged
from tests.cluster.driving import FEW_INTERNAL_PARTITIONS, LONG_SESSIONS, ask, create, send
from tests.raw_client import RawClient
from tests.scenario.share_member import ACCEPT, ShareMember
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

TOPIC, GROUP = "orders", "kitchen"
OPTIONS = {
    **FEW_INTERNAL_PARTITIONS,
    **LONG_SESSIONS,
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.session.timeout.ms": "10000",
    "group.share.min.session.timeout.ms": "5000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.record.lock.duration.ms": "60000",
}


def coordinator(cluster: EmbeddedCluster) -> int:
    def found() -> int:
        [one] = ask(cluster, 1, apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[GROUP]).coordinators
        return one.node_id if one.error_code is ErrorCode.none else 0

    return wait_until(found, "there is a coordinator")


def join(client: RawClient, member_id: str) -> None:
    """Joins, and sends heartbeats until the partition is assigned: its state is initialized then."""
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        said: dict[str, Any] = {} if epoch else {"subscribed_topic_names": [TOPIC]}
        body = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, **said}
        response = client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **body)
        if response.error_code is not ErrorCode.none:
            return False  # the coordinator may still be loading
        epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    wait_until(is_assigned, "the partition is assigned")


def test_a_member_without_heartbeats_loses_its_locks_at_other_brokers() -> None:
    with EmbeddedCluster(2, config=OPTIONS) as cluster:
        coordinating = coordinator(cluster)
        leader = 3 - coordinating
        topic_id = create(cluster, TOPIC, [[leader]])
        send(cluster, TOPIC, [b"%d" % number for number in range(10)])
        with RawClient(cluster.brokers[leader]) as one, RawClient(cluster.brokers[leader]) as two:
            hanging, other = (ShareMember(client, GROUP, topic_id) for client in (one, two))
            configs = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
            resources = [{"resource_type": 32, "resource_name": GROUP, "configs": configs}]
            one.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)
            with RawClient(cluster.brokers[coordinating]) as heart:
                join(heart, hanging.member_id)
            first = hanging.acquire()
            # Waits for the records. The locks of the first member would expire after a minute.
            assert [(begin, end) for begin, end, _ in other.acquire(wait_s=50)] == [(b, e) for b, e, _ in first]
            response = hanging.acknowledge({0: [(0, 9, [ACCEPT])]})
            assert response.error_code is ErrorCode.share_session_not_found
        assert_no_bug_was_logged(cluster)
