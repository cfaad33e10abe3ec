"""Offsets over the wire: every shape of the requests, restarts, many groups, and what is refused."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, create_topics_body
from tests.waiting import wait_until

GROUP = "readers"


def find_coordinator(client: RawClient, *groups: str) -> list[Any]:
    return list(client.ask(apis.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=groups).coordinators)


def commit_body(group: str, topic: str, offsets: dict[int, int], metadata: str = "", **more: Any) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        for partition, offset in offsets.items()
    ]
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", **more}
    return {**body, "topics": [{"name": topic, "partitions": partitions}]}


def commit(client: RawClient, group: str, topic: str, offsets: dict[int, int], **more: Any) -> list[ErrorCode]:
    response = client.ask(apis.OFFSET_COMMIT, 8, **commit_body(group, topic, offsets, **more))
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def fetch_groups(client: RawClient, *groups: str) -> dict[str, Any]:
    wanted = [{"group_id": group, "topics": None} for group in groups]
    response = client.ask(apis.OFFSET_FETCH, 8, groups=wanted)
    return {
        group.group_id: group.error_code
        if group.error_code is not ErrorCode.none
        else {(t.name, p.partition_index): p.committed_offset for t in group.topics for p in t.partitions}
        for group in response.groups
    }


@pytest.fixture
def ready(client: RawClient, topic: str) -> RawClient:
    client.create_topic(topic, 3)
    find_coordinator(client, GROUP)
    return client


def test_offsets_come_back_in_every_shape(ready: RawClient, topic: str) -> None:
    assert commit(ready, topic, topic, {0: 5, 2: 7}, metadata="été") == [ErrorCode.none] * 2
    for version in range(apis.OFFSET_FETCH.oldest, 8):
        response = ready.ask(
            apis.OFFSET_FETCH, version, group_id=topic, topics=[{"name": topic, "partition_indexes": [0, 1, 2]}]
        )
        [found] = response.topics
        assert [(p.committed_offset, p.metadata) for p in found.partitions] == [(5, "été"), (-1, ""), (7, "été")]
    assert fetch_groups(ready, topic, "unheard-of") == {topic: {(topic, 0): 5, (topic, 2): 7}, "unheard-of": {}}


def test_topics_are_named_by_id_in_the_newest_version(client: RawClient, topic: str) -> None:
    topic_id = client.create_topic(topic, 1)
    find_coordinator(client, topic)
    wanted = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    stranger = client.create_topic(f"{topic}-gone")
    client.delete_topic(f"{topic}-gone")
    response = client.ask(
        apis.OFFSET_COMMIT,
        10,
        group_id=topic,
        generation_id_or_member_epoch=-1,
        topics=[{"topic_id": topic_id, "partitions": [wanted]}, {"topic_id": stranger, "partitions": [wanted]}],
    )
    assert [t.partitions[0].error_code for t in response.topics] == [ErrorCode.none, ErrorCode.unknown_topic_id]
    topics = [{"topic_id": topic_id, "partition_indexes": [0]}, {"topic_id": stranger, "partition_indexes": [0]}]
    response = client.ask(apis.OFFSET_FETCH, 10, groups=[{"group_id": topic, "member_epoch": -1, "topics": topics}])
    [group] = response.groups
    found = [(t.partitions[0].committed_offset, t.partitions[0].error_code) for t in group.topics]
    assert found == [(3, ErrorCode.none), (-1, ErrorCode.unknown_topic_id)]


def test_what_is_refused_and_that_others_go_on(ready: RawClient, topic: str) -> None:
    assert commit(ready, topic, "no-such-topic", {0: 1}) == [ErrorCode.unknown_topic_or_partition]
    assert commit(ready, "g" * 10_000, topic, {0: 1}) == [ErrorCode.invalid_group_id]
    assert fetch_groups(ready, "g" * 10_000) == {"g" * 10_000: ErrorCode.invalid_group_id}
    assert commit(ready, topic, topic, {0: 1}, metadata="x" * 5000) == [ErrorCode.offset_metadata_too_large]
    no_member = commit(ready, topic, topic, {0: 1}, generation_id_or_member_epoch=4, member_id="nobody")
    assert no_member == [ErrorCode.illegal_generation]
    [coordinator] = find_coordinator(ready, "g" * 10_000)
    assert coordinator.error_code is ErrorCode.invalid_group_id
    assert commit(ready, topic, topic, {0: 1}) == [ErrorCode.none]


def test_the_offsets_topic_is_made_when_first_needed_and_its_directories_when_written(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic)
        names = {t.name for t in client.ask(apis.METADATA, 12, topics=None).topics}
        assert "__consumer_offsets" not in names
        assert commit(client, GROUP, topic, {0: 1}) == [ErrorCode.not_coordinator]
        [coordinator] = find_coordinator(client, GROUP)
        assert coordinator.error_code is ErrorCode.none
        [offsets] = [t for t in client.ask(apis.METADATA, 12, topics=None).topics if t.name == "__consumer_offsets"]
        assert offsets.is_internal
        assert len(offsets.partitions) == 50
        assert list(broker.data_dir.glob("__consumer_offsets-*")) == []
        assert commit(client, GROUP, topic, {0: 1}) == [ErrorCode.none]
        assert len(list(broker.data_dir.glob("__consumer_offsets-*"))) == 1


@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "kill -9"])
def test_five_thousand_groups_are_there_again(skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool) -> None:
    broker, groups, partitions = skep_fresh_broker, 5000, 20
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic, partitions)
        find_coordinator(client, GROUP)
        for first in range(0, groups, 50):
            for number in range(first, first + 50):
                offsets = {partition: number + partition for partition in range(partitions)}
                client.send(apis.OFFSET_COMMIT, 8, **commit_body(f"g{number}", topic, offsets))
            for _ in range(50):
                [answered] = client.receive().topics
                assert {partition.error_code for partition in answered.partitions} == {ErrorCode.none}
    if is_killed:
        broker.kill()
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        wait_until(
            lambda: client.ask(apis.LIST_GROUPS, 4).error_code is ErrorCode.none,
            "all groups are loaded after a restart",
        )
        assert len(client.ask(apis.LIST_GROUPS, 4).groups) == groups
        for first in range(0, groups, 500):
            names = [f"g{number}" for number in range(first, first + 500)]
            found = fetch_groups(client, *names)
            for number in range(first, first + 500):
                expected = {(topic, partition): number + partition for partition in range(partitions)}
                assert found[f"g{number}"] == expected


def test_offsets_of_a_deleted_topic_are_gone(ready: RawClient, topic: str) -> None:
    commit(ready, topic, topic, {0: 1})
    ready.delete_topic(topic)
    wait_until(lambda: fetch_groups(ready, topic) == {topic: {}}, "the offsets of the deleted topic are forgotten")


def test_groups_that_have_only_offsets_are_listed_and_deleted(ready: RawClient, topic: str) -> None:
    commit(ready, topic, topic, {0: 1})
    listed = {g.group_id: g for g in ready.ask(apis.LIST_GROUPS, 5, types_filter=["Classic"]).groups}
    assert (listed[topic].group_state, listed[topic].protocol_type) == ("Empty", "")
    assert topic not in {g.group_id for g in ready.ask(apis.LIST_GROUPS, 5, types_filter=["consumer"]).groups}
    assert topic not in {g.group_id for g in ready.ask(apis.LIST_GROUPS, 4, states_filter=["Stable"]).groups}
    response = ready.ask(apis.DELETE_GROUPS, 2, groups_names=[topic, "unheard-of", topic])
    codes = {result.group_id: result.error_code for result in response.results}
    assert codes == {topic: ErrorCode.none, "unheard-of": ErrorCode.group_id_not_found}
    assert fetch_groups(ready, topic) == {topic: {}}
    response = ready.ask(apis.OFFSET_DELETE, 0, group_id="unheard-of", topics=[])
    assert response.error_code is ErrorCode.group_id_not_found


def test_the_topics_of_the_coordinators_are_the_brokers_alone(ready: RawClient) -> None:
    produced = ready.produce("__consumer_offsets", batch_of(b"x"))
    assert produced.error_code is ErrorCode.invalid_topic_exception
    grown = ready.ask(apis.CREATE_PARTITIONS, 3, topics=[{"name": "__consumer_offsets", "count": 51}])
    assert [result.error_code for result in grown.results] == [ErrorCode.invalid_partitions]
    made = ready.ask(apis.CREATE_TOPICS, 7, **create_topics_body("__transaction_state", 1, {}))
    assert [topic.error_code for topic in made.topics] == [ErrorCode.invalid_topic_exception]


def test_every_type_of_coordinator_is_found_in_both_shapes(ready: RawClient) -> None:
    share_partition = "group:AAAAAAAAAAAAAAAAAAAAAA:3"
    for key_type, key in enumerate(("a group", "a transactional id", share_partition)):
        [found] = ready.ask(apis.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=[key]).coordinators
        assert (found.error_code, found.key, found.node_id) == (ErrorCode.none, key, 1)
        if key != share_partition:
            single = ready.ask(apis.FIND_COORDINATOR, 2, key_type=key_type, key=key)
            assert (single.error_code, single.host, single.port) == (ErrorCode.none, found.host, found.port)
    refused = [(5, 2, share_partition), (6, 3, "x"), (6, 2, "no share partition"), (6, 2, ":AAAAAAAAAAAAAAAAAAAAAA:3")]
    for version, key_type, key in refused:
        [response] = ready.ask(apis.FIND_COORDINATOR, version, key_type=key_type, coordinator_keys=[key]).coordinators
        assert response.error_code is ErrorCode.invalid_request
