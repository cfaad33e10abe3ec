"""Members of share groups that are gone although their connection is not, and groups that were created again."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of
from tests.scenario.share_member import ACCEPT, ShareMember, acquired, partitions_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    options = {
        "group.share.min.session.timeout.ms": "3000",
        "group.share.min.heartbeat.interval.ms": "1000",
    }
    with EmbeddedBroker(options=options) as running:
        yield running


@pytest.fixture
def clients(broker: EmbeddedBroker) -> Iterator[list[RawClient]]:
    """Two connections: responses of one are in order, and a fetch may wait."""
    with RawClient(broker.bootstrap_servers) as one, RawClient(broker.bootstrap_servers) as two:
        yield [one, two]


@pytest.fixture
def group(clients: list[RawClient]) -> str:
    """A group that starts at the beginning of a topic of its name, which has ten records."""
    name = f"gone-{uuid4().hex[:8]}"
    client = clients[0]
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[name])
    return name


@pytest.fixture
def topic_id(clients: list[RawClient], group: str) -> UUID:
    created = clients[0].create_topic(group)
    clients[0].append(group, batch_of(*(b"x",) * 10))
    set_option(clients[0], group, "share.auto.offset.reset", "earliest")
    return created


def set_option(client: RawClient, group: str, name: str, value: str) -> None:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resources = [{"resource_type": 32, "resource_name": group, "configs": configs}]
    [result] = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False).responses
    assert result.error_code is ErrorCode.none, result.error_message


def beat(client: RawClient, group: str, member_id: str, epoch: int, **said: Any) -> Any:
    body = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **said}
    return client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **body)


def joined(client: RawClient, group: str, topic_id: UUID) -> ShareMember:
    """Returns a member to which the partition is assigned: its state is initialized then."""
    member = ShareMember(client, group, topic_id)
    epoch = 0

    def is_assigned() -> bool:
        nonlocal epoch
        said = {} if epoch else {"subscribed_topic_names": [group]}
        response = beat(client, group, member.member_id, epoch, **said)
        assert response.error_code is ErrorCode.none, response.error_message
        epoch = response.member_epoch
        return response.assignment is not None and bool(response.assignment.topic_partitions)

    wait_until(is_assigned, "the partition is assigned")
    return member


def recreated(client: RawClient, group: str, member: ShareMember) -> None:
    """The member leaves, but its connection and its session stay. The group is deleted."""
    assert beat(client, group, member.member_id, -1).error_code is ErrorCode.none
    [result] = client.ask(apis.DELETE_GROUPS, 2, groups_names=[group]).results
    assert result.error_code is ErrorCode.none


def everything(member: ShareMember) -> bool:
    """Whether the member gets all records. A leader that has the old state says that it has to be asked again."""
    member.send_fetch(wait_s=0.1)
    response = member.receive()
    for partition in partitions_of(response).values():
        if partition.error_code is not ErrorCode.none:
            assert partition.error_code is ErrorCode.not_leader_or_follower, partition.error_message
            return False
    return acquired(response) == [(0, 9, 1)]


def test_what_a_member_of_a_deleted_group_accepts_is_not_accepted_by_the_next_group(
    clients: list[RawClient], group: str, topic_id: UUID
) -> None:
    old = joined(clients[0], group, topic_id)
    assert old.acquire() == [(0, 9, 1)]
    recreated(clients[1], group, old)
    new = joined(clients[1], group, topic_id)
    [code] = old.results({0: [(0, 9, [ACCEPT])]})
    assert code is not ErrorCode.none
    wait_until(lambda: everything(new), "the new group has all records")


def test_a_group_that_is_created_again_begins_again_although_a_session_of_the_first_one_is_open(
    clients: list[RawClient], group: str, topic_id: UUID
) -> None:
    old = joined(clients[0], group, topic_id)
    assert old.acquire() == [(0, 9, 1)]
    assert old.results({0: [(0, 9, [ACCEPT])]}) == [ErrorCode.none]
    recreated(clients[1], group, old)
    new = joined(clients[1], group, topic_id)
    wait_until(lambda: everything(new), "the new group has all records")


def test_a_member_without_heartbeats_loses_its_locks_and_its_session(
    clients: list[RawClient], group: str, topic_id: UUID
) -> None:
    """Its locks would expire only after 30 seconds, and its connection stays open."""
    hanging = joined(clients[0], group, topic_id)
    assert hanging.acquire() == [(0, 9, 1)]
    set_option(clients[1], group, "share.heartbeat.interval.ms", "1000")
    set_option(clients[1], group, "share.session.timeout.ms", "3000")
    last = beat(clients[0], group, hanging.member_id, 0, subscribed_topic_names=[group])
    assert last.error_code is ErrorCode.none, last.error_message
    set_option(clients[1], group, "share.session.timeout.ms", "45000")
    other = joined(clients[1], group, topic_id)
    # Waits for records, of which there are none as long as the first member holds them.
    assert other.acquire(wait_s=25) == [(0, 9, 2)]
    response = hanging.acknowledge({0: [(0, 9, [ACCEPT])]})
    assert response.error_code is ErrorCode.share_session_not_found
