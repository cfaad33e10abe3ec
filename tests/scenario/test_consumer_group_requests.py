"""Consumer groups (KIP-848) over the wire: both versions, what is refused, large and strange requests, a crowd."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import seconds

JOINING: dict[str, Any] = {"member_epoch": 0, "rebalance_timeout": seconds(60), "topic_partitions": []}


@pytest.fixture
def group(client: RawClient, topic: str) -> str:
    """A name of its own, a topic of that name with 20 partitions, and the topic of the coordinators is there."""
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[topic])
    client.ask(apis.CREATE_TOPICS, 7, topics=[{"name": topic, "num_partitions": 20, "replication_factor": 1}])
    return topic


def beat(client: RawClient, group: str, member_id: str, version: int = 1, **said: Any) -> Any:
    said = {"member_epoch": 1, **said}
    return client.ask(apis.CONSUMER_GROUP_HEARTBEAT, version, group_id=group, member_id=member_id, **said)


def join(client: RawClient, group: str, member_id: str = "m", version: int = 1, **said: Any) -> Any:
    return beat(client, group, member_id, version, **{"subscribed_topic_names": [group], **JOINING, **said})


def describe(client: RawClient, group: str, version: int = 1) -> Any:
    (described,) = client.ask(
        apis.CONSUMER_GROUP_DESCRIBE, version, group_ids=[group], include_authorized_operations=True
    ).groups
    return described


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_stays_is_described_and_leaves(client: RawClient, group: str, version: int) -> None:
    joined = join(client, group, "" if version == 0 else "m", version, rack_id="shed", server_assignor="range")
    assert (joined.error_code, joined.member_epoch) == (ErrorCode.none, 1)
    assert joined.heartbeat_interval == seconds(5)
    (assigned,) = joined.assignment.topic_partitions
    assert assigned.partitions == tuple(range(20))
    again = beat(client, group, joined.member_id, version)
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.none, 1, None)

    described = describe(client, group, version)
    assert (described.error_code, described.group_state) == (ErrorCode.none, "Stable")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (1, 1, "range")
    assert described.authorized_operations > 0
    (member,) = described.members
    assert (member.member_id, member.member_epoch, member.rack_id) == (joined.member_id, 1, "shed")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((group,), None)
    for assignment in (member.assignment, member.target_assignment):
        (of_topic,) = assignment.topic_partitions
        assert (of_topic.topic_id, of_topic.topic_name) == (assigned.topic_id, group)
        assert of_topic.partitions == tuple(range(20))
    if version == 1:
        assert member.member_type == 1

    left = beat(client, group, joined.member_id, version, member_epoch=-1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)
    assert describe(client, group, version).group_state == "Empty"


def test_version_1_subscribes_to_an_expression(client: RawClient, group: str) -> None:
    joined = join(client, group, subscribed_topic_names=None, subscribed_topic_regex=f"{group[:-1]}.")
    assert len(joined.assignment.topic_partitions) == 1
    assert describe(client, group).members[0].subscribed_topic_regex == f"{group[:-1]}."


def test_refusals_say_why(client: RawClient, group: str) -> None:
    refused = join(client, group, subscribed_topic_names=None, subscribed_topic_regex="(")
    assert refused.error_code is ErrorCode.invalid_regular_expression
    assert "not a valid regular expression" in refused.error_message
    assert beat(client, group, "m").error_code is ErrorCode.group_id_not_found
    assert join(client, group, "").error_code is ErrorCode.invalid_request
    assert join(client, "", "m").error_code is ErrorCode.invalid_request
    join(client, group)
    assert beat(client, group, "stranger").error_code is ErrorCode.unknown_member_id
    assert beat(client, group, "m", member_epoch=7).error_code is ErrorCode.fenced_member_epoch


def test_a_group_that_is_not_there_is_described_as_such(client: RawClient, group: str) -> None:
    described = describe(client, group)
    assert described.error_code is ErrorCode.group_id_not_found
    assert described.error_message
    assert describe(client, "").error_code is ErrorCode.invalid_group_id


@pytest.mark.parametrize("field", ["group", "member_id", "instance_id", "rack_id", "subscribed_topic_regex"])
@pytest.mark.parametrize("size", [10_000, 40_000])
def test_names_that_are_too_long_are_refused_and_the_broker_goes_on(
    client: RawClient, group: str, field: str, size: int
) -> None:
    name = "x" * size
    if field == "group":
        response = client.ask(
            apis.CONSUMER_GROUP_HEARTBEAT, 1, group_id=name, member_id="m", subscribed_topic_names=[group], **JOINING
        )
        assert response.error_code is ErrorCode.invalid_group_id
    else:
        response = join(client, group, **{"member_id": "m", field: name})
        assert response.error_code in (ErrorCode.invalid_request, ErrorCode.invalid_regular_expression)
    assert join(client, group).error_code is ErrorCode.none


def test_a_member_that_claims_partitions_that_there_are_not_is_harmless(client: RawClient, group: str) -> None:
    joined = join(client, group)
    (assigned,) = joined.assignment.topic_partitions
    strange = [
        {"topic_id": assigned.topic_id, "partitions": [*range(-5, 5_000), 2**31 - 1]},
        {"topic_id": assigned.topic_id, "partitions": [0, 0, 0]},
        {"topic_id": None, "partitions": [1]},
    ]
    response = beat(client, group, "m", topic_partitions=strange)
    assert (response.error_code, response.member_epoch) == (ErrorCode.none, 1)
    assert describe(client, group).members[0].assignment.topic_partitions[0].partitions == tuple(range(20))


def test_a_crowd_joins_and_comes_to_rest(client: RawClient, group: str) -> None:
    members = {f"member {number}": 0 for number in range(100)}
    owned: dict[str, tuple[Any, ...]] = dict.fromkeys(members, ())
    for member in members:
        response = join(client, group, member)
        members[member], owned[member] = response.member_epoch, response.assignment.topic_partitions
    for _ in range(50):
        for member in members:
            response = beat(
                client,
                group,
                member,
                member_epoch=members[member],
                topic_partitions=[
                    {"topic_id": each.topic_id, "partitions": list(each.partitions)} for each in owned[member]
                ],
            )
            assert response.error_code is ErrorCode.none
            members[member] = response.member_epoch
            if response.assignment is not None:
                owned[member] = response.assignment.topic_partitions
        if describe(client, group).group_state == "Stable":
            break
    assert describe(client, group).group_state == "Stable"
    numbers = [number for topics in owned.values() for each in topics for number in each.partitions]
    assert sorted(numbers) == list(range(20))
