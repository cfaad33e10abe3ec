"""Share groups (KIP-932) over the wire: members, descriptions, offsets, deletions, restarts, what is refused."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, seconds
from tests.waiting import wait_until


@pytest.fixture
def group(client: RawClient, topic: str) -> str:
    """A name of its own, a topic of that name with 3 partitions, and the topic of the coordinators is there."""
    return prepared(client, topic)


def prepared(client: RawClient, name: str) -> str:
    client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[name])
    client.create_topic(name, 3)
    return name


def beat(client: RawClient, group: str, member_id: str = "m", member_epoch: int = 1, **said: Any) -> Any:
    body = {"group_id": group, "member_id": member_id, "member_epoch": member_epoch, **said}
    return client.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **body)


def join(client: RawClient, group: str, member_id: str = "m", **said: Any) -> Any:
    """Joins, and waits until something is assigned: on a busy machine the first response does not wait so long for the
    state of the partitions."""
    epoch = 0

    def assigned() -> Any:
        nonlocal epoch
        joined = beat(client, group, member_id, epoch, subscribed_topic_names=[group], **said)
        assert joined.error_code is ErrorCode.none, joined.error_message
        epoch = joined.member_epoch
        return joined if partitions(joined) else None

    return wait_until(assigned, "partitions are assigned")


def leave(client: RawClient, group: str, member_id: str = "m") -> None:
    assert beat(client, group, member_id, -1).error_code is ErrorCode.none


def partitions(heartbeat: Any) -> tuple[int, ...]:
    assigned = heartbeat.assignment.topic_partitions if heartbeat.assignment is not None else ()
    return tuple(number for topic in assigned for number in topic.partitions)


def describe(client: RawClient, group: str) -> Any:
    body = {"group_ids": [group], "include_authorized_operations": True}
    (described,) = client.ask(apis.SHARE_GROUP_DESCRIBE, 1, **body).groups
    return described


def offsets(client: RawClient, group: str, topics: Any = None, version: int = 1) -> dict[int, tuple[int, int]]:
    """The start offset and the lag of each partition."""
    (described,) = client.ask(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS, version, groups=[{"group_id": group, "topics": topics}]
    ).groups
    assert described.error_code is ErrorCode.none, described.error_message
    return {
        one.partition_index: (one.start_offset, getattr(one, "lag", -1))
        for topic in described.topics
        for one in topic.partitions
    }


def alter(client: RawClient, group: str, topic: str, *starts: tuple[int, int]) -> Any:
    partitions = [{"partition_index": index, "start_offset": offset} for index, offset in starts]
    topics = [{"topic_name": topic, "partitions": partitions}]
    return client.ask(apis.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=topics)


def delete_offsets(client: RawClient, group: str, *topics: str) -> Any:
    named = [{"topic_name": topic} for topic in topics]
    return client.ask(apis.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=named)


def delete_group(client: RawClient, group: str) -> ErrorCode:
    (result,) = client.ask(apis.DELETE_GROUPS, 2, groups_names=[group]).results
    return ErrorCode(result.error_code)


def listed(client: RawClient, group: str, **filters: Any) -> list[tuple[str, str, str]]:
    body = {"states_filter": [], "types_filter": [], **filters}
    return [
        (one.group_type, one.group_state, one.protocol_type)
        for one in client.ask(apis.LIST_GROUPS, 5, **body).groups
        if one.group_id == group
    ]


def test_a_member_joins_stays_is_described_and_leaves(client: RawClient, group: str) -> None:
    joined = join(client, group, rack_id="shed")
    assert partitions(joined) == (0, 1, 2)
    assert joined.heartbeat_interval == seconds(5)
    again = beat(client, group, "m", joined.member_epoch)
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.none, joined.member_epoch, None)

    described = describe(client, group)
    assert (described.error_code, described.group_state, described.assignor_name) == (
        ErrorCode.none,
        "Stable",
        "simple",
    )
    assert described.group_epoch == described.assignment_epoch == joined.member_epoch
    assert described.authorized_operations > 0
    (member,) = described.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("m", "shed", joined.member_epoch)
    assert (member.client_id, member.client_host) == ("raw", "/127.0.0.1")
    assert member.subscribed_topic_names == (group,)
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == (group, (0, 1, 2))

    left = beat(client, group, "m", -1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)
    assert describe(client, group).group_state == "Empty"


def test_share_groups_are_listed_by_type_and_state(client: RawClient, group: str) -> None:
    join(client, group)
    assert listed(client, group) == [("share", "Stable", "share")]
    assert listed(client, group, types_filter=["Share"], states_filter=["stable"]) == [("share", "Stable", "share")]
    assert listed(client, group, types_filter=["consumer", "classic"]) == []
    leave(client, group)
    assert listed(client, group, states_filter=["Empty"]) == [("share", "Empty", "share")]


def test_for_other_kinds_of_groups_a_share_group_does_not_exist(client: RawClient, group: str) -> None:
    join(client, group)
    (classic,) = client.ask(apis.DESCRIBE_GROUPS, 6, groups=[group], include_authorized_operations=False).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    (consumer,) = client.ask(
        apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False
    ).groups
    assert consumer.error_code is ErrorCode.group_id_not_found
    joined = client.ask(
        apis.JOIN_GROUP,
        9,
        group_id=group,
        session_timeout=seconds(10),
        rebalance_timeout=seconds(10),
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert joined.error_code is ErrorCode.inconsistent_group_protocol
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    committed = client.ask(
        apis.OFFSET_COMMIT,
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": group, "partitions": [partition]}],
    )
    assert committed.topics[0].partitions[0].error_code is ErrorCode.group_id_not_found
    (fetched,) = client.ask(
        apis.OFFSET_FETCH, 9, groups=[{"group_id": group, "topics": None}], require_stable=False
    ).groups
    assert fetched.error_code is ErrorCode.group_id_not_found
    deleted = client.ask(
        apis.OFFSET_DELETE, 0, group_id=group, topics=[{"name": group, "partitions": [{"partition_index": 0}]}]
    )
    assert deleted.error_code is ErrorCode.group_id_not_found


def test_refusals_say_why(client: RawClient, group: str) -> None:
    assert beat(client, group).error_code is ErrorCode.group_id_not_found
    assert beat(client, group, "", 0, subscribed_topic_names=[group]).error_code is ErrorCode.invalid_request
    missing = beat(client, group, "m", 0)
    assert missing.error_code is ErrorCode.invalid_request
    assert "SubscribedTopicNames" in missing.error_message
    assert beat(client, "g" * 2_000, "m", 0, subscribed_topic_names=["t"]).error_code is ErrorCode.invalid_group_id
    join(client, group)
    assert beat(client, group, "other").error_code is ErrorCode.unknown_member_id
    assert beat(client, group, "m", 77).error_code is ErrorCode.fenced_member_epoch
    assert describe(client, f"{group}-none").error_code is ErrorCode.group_id_not_found


def test_offsets_are_set_described_and_deleted(client: RawClient, group: str) -> None:
    client.append(group, batch_of(b"a", b"b", b"c"), partition=1)
    answer = alter(client, group, group, (0, 0), (1, 1), (9, 0), (2, -5))
    assert answer.error_code is ErrorCode.none
    (topic,) = answer.responses
    assert [one.error_code for one in topic.partitions] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
    ]
    assert listed(client, group) == [("share", "Empty", "share")]
    assert offsets(client, group) == {0: (0, 0), 1: (1, 2)}
    assert offsets(client, group, version=0) == {0: (0, -1), 1: (1, -1)}
    named = [{"topic_name": group, "partitions": [1, 2]}, {"topic_name": "none", "partitions": [0]}]
    assert offsets(client, group, named) == {1: (1, 2), 2: (-1, -1), 0: (-1, -1)}
    assert offsets(client, f"{group}-none") == {}

    assert alter(client, group, group, (1, 0)).error_code is ErrorCode.none
    assert offsets(client, group)[1] == (0, 3)

    client.create_topic(f"{group}-other")
    answer = delete_offsets(client, group, group, f"{group}-other", "none")
    assert answer.error_code is ErrorCode.none
    unknown = ErrorCode.unknown_topic_or_partition
    assert [one.error_code for one in answer.responses] == [ErrorCode.none, unknown, unknown]
    assert offsets(client, group) == {}


def test_offsets_of_a_group_with_members_are_not_changed(client: RawClient, group: str) -> None:
    join(client, group)
    before = offsets(client, group)
    assert alter(client, group, group, (0, 0)).error_code is ErrorCode.non_empty_group
    assert delete_offsets(client, group, group).error_code is ErrorCode.non_empty_group
    assert delete_group(client, group) is ErrorCode.non_empty_group
    assert offsets(client, group) == before == {0: (-1, -1), 1: (-1, -1), 2: (-1, -1)}


def test_a_group_is_deleted_with_its_state(client: RawClient, group: str) -> None:
    alter(client, group, group, (0, 0), (1, 0), (2, 0))
    assert delete_group(client, group) is ErrorCode.none
    assert listed(client, group) == []
    assert delete_group(client, group) is ErrorCode.group_id_not_found
    assert delete_offsets(client, group, group).error_code is ErrorCode.group_id_not_found
    # A later group of the same name starts where share.auto.offset.reset says, not where this one ended.
    join(client, group)
    # On a busy machine the first heartbeat does not wait until all partitions have their state.
    begun = {0: (-1, -1), 1: (-1, -1), 2: (-1, -1)}
    wait_until(lambda: offsets(client, group) == begun, "the later group has its own state")


def test_new_partitions_of_a_topic_start_at_its_beginning(client: RawClient, group: str) -> None:
    epoch = join(client, group).member_epoch
    grown = [{"name": group, "count": 4, "assignments": None}]
    (answer,) = client.ask(apis.CREATE_PARTITIONS, 3, topics=grown, timeout=seconds(30), validate_only=False).results
    assert answer.error_code is ErrorCode.none

    def assigned() -> bool:
        nonlocal epoch
        heartbeat = beat(client, group, "m", epoch, subscribed_topic_names=[group])
        epoch = heartbeat.member_epoch
        return partitions(heartbeat) == (0, 1, 2, 3)

    wait_until(assigned, "the new partition is assigned")
    assert offsets(client, group) == {0: (-1, -1), 1: (-1, -1), 2: (-1, -1), 3: (0, 0)}


def test_the_state_of_a_deleted_topic_is_deleted(client: RawClient, group: str) -> None:
    second = f"{group}-second"
    client.create_topic(second)
    alter(client, group, group, (0, 0))
    alter(client, group, second, (0, 0))
    client.delete_topic(second)
    client.create_topic(second)
    wait_until(lambda: offsets(client, group) == {0: (0, 0)}, "the state of the first topic is left")
    assert offsets(client, group, [{"topic_name": second, "partitions": [0]}]) == {0: (-1, -1)}


@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "kill -9"])
def test_members_epochs_and_offsets_are_kept_over_a_restart(
    skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool
) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        group = prepared(client, topic)
        alter(client, f"{group}-other", group, (2, 0))
        epoch = join(client, group).member_epoch
        before = describe(client, group)
    if is_killed:
        broker.kill()
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        wait_until(lambda: describe(client, group).error_code is ErrorCode.none, "the group is loaded")
        assert describe(client, group) == before
        assert beat(client, group, "m", epoch).member_epoch == epoch
        wait_until(lambda: listed(client, f"{group}-other") != [], "all groups are loaded")
        assert offsets(client, f"{group}-other") == {2: (0, 0)}


def test_groups_have_limits(topic: str) -> None:
    with (
        EmbeddedBroker(options={"group.share.max.size": "2"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        group = prepared(client, topic)
        join(client, group, "a")
        join(client, group, "b")
        refused = beat(client, group, "c", 0, subscribed_topic_names=[group])
        assert refused.error_code is ErrorCode.group_max_size_reached
        assert "2 members" in refused.error_message


def test_a_crowd_joins_and_every_partition_has_members(client: RawClient, group: str) -> None:
    members = [f"member-{number}" for number in range(10)]
    for member in members:
        client.send(
            apis.SHARE_GROUP_HEARTBEAT,
            1,
            group_id=group,
            member_id=member,
            member_epoch=0,
            subscribed_topic_names=[group],
        )
    epochs = {member: client.receive().member_epoch for member in members}

    def spread() -> bool:
        counts = [0, 0, 0]
        for member in members:
            heartbeat = beat(client, group, member, epochs[member], subscribed_topic_names=[group])
            epochs[member] = heartbeat.member_epoch
            for number in partitions(heartbeat):
                counts[number] += 1
        # Ten members of three partitions: four members a partition, so that two members have two.
        return counts == [4, 4, 4]

    wait_until(spread, "the assignment is made for all members")
