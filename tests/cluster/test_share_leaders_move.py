"""Leaders of partitions that a share group reads stop and die: nothing that was accepted comes again, all else does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from skep.base.errors import ErrorCode
from skep.metadata.model import id_text
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.coordinators import assert_no_bug_was_logged
from tests.cluster.driving import LONG_SESSIONS, ask, create, send, wait_for_isr, wait_for_leader
from tests.compat.test_share_consumer import configure
from tests.raw_client import RawClient
from tests.scenario.share_member import ACCEPT, RELEASE, ShareMember, acquired, partitions_of
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

TOPIC, GROUP = "orders", "kitchen"
OPTIONS = {**LONG_SESSIONS, "share.coordinator.state.topic.num.partitions": "3", "offsets.topic.num.partitions": "1"}
BACKOFF_S = 6.0
MOVING = (ErrorCode.not_leader_or_follower, ErrorCode.coordinator_not_available, ErrorCode.offset_not_available)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=OPTIONS) as started:
        yield started


def initialize(cluster: EmbeddedCluster, topic_id: UUID) -> None:
    key = f"{GROUP}:{id_text(topic_id)}:0"
    topics = [{"topic_id": topic_id, "partitions": [{"partition": 0, "state_epoch": 0, "start_offset": 0}]}]

    def is_initialized() -> bool:
        [found] = ask(cluster, 1, apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key]).coordinators
        if found.error_code is not ErrorCode.none:
            return False
        api = apis.INITIALIZE_SHARE_GROUP_STATE
        [topic] = ask(cluster, found.node_id, api, 0, group_id=GROUP, topics=topics).results
        return all(result.error_code is ErrorCode.none for result in topic.partitions)

    wait_until(is_initialized, "the share state is initialized")


@contextmanager
def member_at(cluster: EmbeddedCluster, broker: int, topic_id: UUID) -> Iterator[ShareMember]:
    with RawClient(cluster.brokers[broker]) as client:
        yield ShareMember(client, GROUP, topic_id)


def first_records(member: ShareMember) -> list[tuple[int, int, int]]:
    """What the member gets first, of a leader that may be a new one."""

    def found() -> list[tuple[int, int, int]]:
        response = member.fetch(wait_s=1)
        partition = partitions_of(response).get(0)
        return [] if partition is None or partition.error_code in MOVING else acquired(response)

    return wait_until(found, "the leader delivers records")


def test_accepted_records_stay_accepted_when_leaders_stop_and_die(cluster: EmbeddedCluster) -> None:
    topic_id = create(cluster, TOPIC, [[3, 1, 2]])
    initialize(cluster, topic_id)
    send(cluster, TOPIC, [b"%d" % number for number in range(10)])
    with member_at(cluster, 3, topic_id) as member, member_at(cluster, 3, topic_id) as waiting:
        assert first_records(member)[-1][1] == 9
        assert member.results({0: [(0, 4, [ACCEPT]), (7, 7, [RELEASE])]}) == [ErrorCode.none]
        assert waiting.acquire() == [(7, 7, 2)]
        waiting.send_fetch()
        cluster.stop(3)
        refused = partitions_of(waiting.receive())[0]
        assert refused.error_code is ErrorCode.not_leader_or_follower
    second = wait_for_leader(cluster, TOPIC, other_than=3)
    assert refused.current_leader.leader_id in (second, -1)
    with member_at(cluster, second, topic_id) as member:
        again = first_records(member)
        offsets = [offset for first, last, _ in again for offset in range(first, last + 1)]
        assert offsets == [5, 6, 7, 8, 9]
        assert [count for first, last, count in again if first <= 7 <= last] == [2], "its release was written"
        assert member.results({0: [(5, 9, [ACCEPT])]}) == [ErrorCode.none]
        cluster.kill(second)
    cluster.restart(3)
    third = wait_for_leader(cluster, TOPIC, other_than=second)
    wait_for_isr(cluster, TOPIC, {1, 2, 3} - {second})
    send(cluster, TOPIC, [b"last"])
    with member_at(cluster, third, topic_id) as member:
        assert first_records(member) == [(10, 10, 1)]
    assert_no_bug_was_logged(cluster)


def test_a_failed_record_waits_for_its_time_at_the_next_leader_too(cluster: EmbeddedCluster) -> None:
    topic_id = create(cluster, TOPIC, [[3, 1, 2]])
    configure(cluster.bootstrap_servers, GROUP, "skep.share.retry.backoff", f"{BACKOFF_S:g}s")
    initialize(cluster, topic_id)
    send(cluster, TOPIC, [b"%d" % number for number in range(10)])
    with member_at(cluster, 3, topic_id) as member:
        assert first_records(member)[-1][1] == 9
        released_at = time.time()
        assert member.results({0: [(0, 5, [ACCEPT]), (7, 7, [RELEASE])]}) == [ErrorCode.none]
        cluster.kill(3)
    second = wait_for_leader(cluster, TOPIC, other_than=3)
    with member_at(cluster, second, topic_id) as member:
        counts: dict[int, int] = {}

        def all_came() -> bool:
            response = member.fetch(wait_s=1)
            partition = partitions_of(response).get(0)
            if partition is not None and partition.error_code not in MOVING:
                for first, last, count in acquired(response):
                    for offset in range(first, last + 1):
                        assert offset not in counts
                        assert offset != 7 or time.time() >= released_at + BACKOFF_S
                        counts[offset] = count
            return len(counts) == 4

        wait_until(all_came, lambda: f"what was not accepted is delivered: {counts}")
        assert counts == {6: 1, 7: 2, 8: 1, 9: 1}
    assert_no_bug_was_logged(cluster)
