"""The state of share partitions in a real broker: the requests between brokers, restarts, and the topic it is in."""

from typing import Any
from uuid import UUID

import pytest

from skep.base.errors import ErrorCode
from skep.metadata.model import id_text
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.wire.apis import Api
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

STATE_TOPIC = "__share_group_state"
GROUP = "kitchen"
ACKNOWLEDGED = 2
EARLIEST = -2


class ShareClient:
    """Asks for the share partition 0 of one topic, as another broker would."""

    def __init__(self, client: RawClient, topic_id: UUID, group: str = GROUP) -> None:
        self.client = client
        self.topic_id = topic_id
        self.group = group

    def ask(self, api: Api, **fields: Any) -> Any:
        topics = [{"topic_id": self.topic_id, "partitions": [{"partition": 0, **fields}]}]
        [topic] = self.client.ask(api, api.newest, group_id=self.group, topics=topics).results
        assert topic.topic_id == self.topic_id
        [result] = topic.partitions
        assert result.partition == 0
        return result

    def initialize(self, state_epoch: int = 0, start_offset: int = 0) -> ErrorCode:
        result = self.ask(apis.INITIALIZE_SHARE_GROUP_STATE, state_epoch=state_epoch, start_offset=start_offset)
        return ErrorCode(result.error_code)

    def write(self, first: int, last: int, start_offset: int = -1, leader_epoch: int = 0) -> ErrorCode:
        batch = {"first_offset": first, "last_offset": last, "delivery_state": ACKNOWLEDGED, "delivery_count": 1}
        result = self.ask(
            apis.WRITE_SHARE_GROUP_STATE,
            state_epoch=0,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=last - first + 1,
            state_batches=[batch],
        )
        return ErrorCode(result.error_code)

    def read(self, leader_epoch: int = 0) -> Any:
        return self.ask(apis.READ_SHARE_GROUP_STATE, leader_epoch=leader_epoch)

    def batches(self, leader_epoch: int = 0) -> list[tuple[int, int]]:
        state = self.read(leader_epoch)
        assert state.error_code is ErrorCode.none, state
        return [(batch.first_offset, batch.last_offset) for batch in state.state_batches]

    def summary(self) -> Any:
        return self.ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, leader_epoch=-1)

    def delete(self) -> ErrorCode:
        return ErrorCode(self.ask(apis.DELETE_SHARE_GROUP_STATE).error_code)


def find(client: RawClient, topic_id: UUID) -> None:
    """Creates the topic of the coordinator, and waits until it serves the share partition."""
    key = f"{GROUP}:{id_text(topic_id)}:0"
    wait_until(lambda: _found(client, key), "there is a coordinator")
    share = ShareClient(client, topic_id)
    wait_until(lambda: share.summary().error_code is ErrorCode.none, "the coordinator is loaded")


def _found(client: RawClient, key: str) -> bool:
    [found] = client.ask(apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key]).coordinators
    return found.error_code is ErrorCode.none


@pytest.fixture
def share(client: RawClient, topic: str) -> ShareClient:
    topic_id = client.create_topic(topic)
    find(client, topic_id)
    return ShareClient(client, topic_id)


def test_the_state_is_initialized_written_read_and_deleted(share: ShareClient) -> None:
    summary = share.summary()
    assert (summary.start_offset, summary.delivery_complete_count) == (-1, -1)
    assert share.initialize(start_offset=5) is ErrorCode.none
    assert share.initialize(start_offset=5) is ErrorCode.none
    assert share.write(10, 19) is ErrorCode.none
    assert share.write(20, 24, start_offset=15) is ErrorCode.none
    state = share.read(leader_epoch=3)
    assert (state.error_code, state.state_epoch, state.start_offset) == (ErrorCode.none, 0, 15)
    assert share.batches(3) == [(15, 24)]
    assert share.write(25, 29, leader_epoch=2) is ErrorCode.fenced_leader_epoch
    summary = share.summary()
    assert (summary.leader_epoch, summary.start_offset, summary.delivery_complete_count) == (3, 15, 5)
    assert share.delete() is ErrorCode.none
    assert share.delete() is ErrorCode.none
    assert share.read(leader_epoch=3).error_code is ErrorCode.invalid_request


def test_each_partition_has_its_own_result(share: ShareClient) -> None:
    assert share.initialize() is ErrorCode.none
    partitions = [{"partition": index, "leader_epoch": 0} for index in (0, 7)]
    topics = [
        {"topic_id": share.topic_id, "partitions": partitions},
        {"topic_id": UUID(int=5), "partitions": partitions[:1]},
    ]
    results = share.client.ask(apis.READ_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics).results
    assert [[one.error_code for one in topic.partitions] for topic in results] == [
        [ErrorCode.none, ErrorCode.unknown_topic_or_partition],
        [ErrorCode.unknown_topic_or_partition],
    ]
    assert "does not exist" in results[1].partitions[0].error_message


def test_many_partitions_are_answered_in_their_order(share: ShareClient) -> None:
    assert share.initialize() is ErrorCode.none
    partitions = [{"partition": index, "leader_epoch": 0} for index in range(130)]
    topics = [{"topic_id": share.topic_id, "partitions": partitions}, {"topic_id": UUID(int=5), "partitions": []}] * 2
    results = share.client.ask(apis.READ_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics).results
    assert [topic.topic_id for topic in results] == [share.topic_id, UUID(int=5)] * 2
    assert [len(topic.partitions) for topic in results] == [130, 0] * 2
    for topic in results[::2]:
        assert [one.partition for one in topic.partitions] == list(range(130))
        assert [one.error_code for one in topic.partitions[:2]] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]


def test_a_state_that_does_not_exist_is_refused(share: ShareClient) -> None:
    assert share.initialize() is ErrorCode.none
    batch = {"first_offset": 0, "last_offset": 1, "delivery_state": 9, "delivery_count": 1}
    fields = {"state_epoch": 0, "leader_epoch": 0, "start_offset": -1, "state_batches": [batch]}
    result = share.ask(apis.WRITE_SHARE_GROUP_STATE, delivery_complete_count=-1, **fields)
    assert result.error_code is ErrorCode.invalid_request
    assert ShareClient(share.client, share.topic_id, "").initialize() is ErrorCode.invalid_group_id


def test_the_version_without_a_count_is_served_too(share: ShareClient) -> None:
    assert share.initialize() is ErrorCode.none
    fields = {"partition": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "state_batches": []}
    topics = [{"topic_id": share.topic_id, "partitions": [fields]}]
    [topic] = share.client.ask(apis.WRITE_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics).results
    assert topic.partitions[0].error_code is ErrorCode.none
    asked = [{"topic_id": share.topic_id, "partitions": [{"partition": 0, "leader_epoch": -1}]}]
    [found] = share.client.ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, 0, group_id=GROUP, topics=asked).results
    assert found.partitions[0].start_offset == 0


@pytest.mark.parametrize("is_killed", [False, True], ids=["clean stop", "kill -9"])
def test_the_state_is_there_again_after_a_restart(
    skep_fresh_broker: EmbeddedBroker, topic: str, is_killed: bool
) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        topic_id = client.create_topic(topic)
        find(client, topic_id)
        share = ShareClient(client, topic_id)
        assert share.initialize() is ErrorCode.none
        for offset in range(0, 40, 2):
            assert share.write(offset, offset) is ErrorCode.none
        expected = share.batches(leader_epoch=4)
        assert len(expected) == 20
    if is_killed:
        broker.kill()
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        share = ShareClient(client, topic_id)
        wait_until(lambda: share.summary().error_code is ErrorCode.none, "the coordinator is loaded")
        assert share.write(41, 41, leader_epoch=3) is ErrorCode.fenced_leader_epoch
        assert share.batches(leader_epoch=4) == expected


def test_records_that_are_not_needed_any_more_are_deleted(topic: str) -> None:
    options = {
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.prune.interval.ms": "20",
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
    }
    with EmbeddedBroker(options=options) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic_id = client.create_topic(topic)
            find(client, topic_id)
            share = ShareClient(client, topic_id)
            assert share.initialize() is ErrorCode.none
            for offset in range(30):
                assert share.write(offset, offset, start_offset=offset) is ErrorCode.none
            wait_until(lambda: client.list_offset(STATE_TOPIC, EARLIEST).offset == 30, "older records are deleted")
        broker.kill()
        broker.restart()
        with RawClient(broker.bootstrap_servers) as client:
            share = ShareClient(client, topic_id)
            wait_until(lambda: share.summary().error_code is ErrorCode.none, "the coordinator is loaded")
            assert share.batches() == [(29, 29)]


def test_the_topic_of_the_states_is_neither_compacted_nor_deleted_by_others(share: ShareClient) -> None:
    client = share.client
    resources = [{"resource_type": 2, "resource_name": STATE_TOPIC, "configuration_keys": None}]
    [described] = client.ask(apis.DESCRIBE_CONFIGS, 4, resources=resources).results
    configs = {config.name: config.value for config in described.configs}
    wanted = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "2"}
    assert {name: configs[name] for name in wanted} == wanted
    partitions = [{"partition_index": 0, "offset": -1}]
    topics = [{"name": STATE_TOPIC, "partitions": partitions}]
    [deleted] = client.ask(apis.DELETE_RECORDS, 2, topics=topics, timeout=seconds(5)).topics
    assert deleted.partitions[0].error_code is ErrorCode.invalid_topic_exception
