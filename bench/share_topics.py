"""What the rows about share groups have in common: a topic in batches of one size, and groups that read it."""

import datetime
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import Message, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench import frames
from bench.peers import create_topic
from bench.raw_client import RawClient
from skep.base.errors import ErrorCode
from skep.records.builder import NewRecord, build_batch
from skep.wire import apis

AT_ONCE = 500
"""Records of a poll, and of a batch in the log: a poll takes whole batches."""
VALUE = bytes(100)
GIVE_UP_S = 300.0
LOCK_MS = 3_600_000
LONG_LOCKS = {
    "group.share.max.record.lock.duration.ms": str(LOCK_MS),
    "group.share.record.lock.duration.ms": str(LOCK_MS),
}
"""Options of a broker whose members keep what they hold, however slow the machine is."""
METADATA_VERSION = 12
OFFSETS_VERSION = 1
SHARE_FETCH_VERSION = 1
_INITIALIZE_VERSION, _COORDINATOR_VERSION = 0, 6
_ATTEMPTS = 200


class Rate(NamedTuple):
    rate: float
    broker_cpu_us: float
    """A record."""
    polls: int = 0

    def __str__(self) -> str:
        return f"{self.rate:,.0f} records/s, {self.broker_cpu_us:.2f} us CPU of the broker each"


def fill(address: str, topic: str, records: int) -> UUID:
    """Creates a topic with so many records in one partition, and returns its id."""
    create_topic(address, topic)
    now_ms = time.time_ns() // 1_000_000
    request = frames.produce(topic, 0, build_batch([NewRecord(None, VALUE, now_ms)] * AT_ONCE))
    with RawClient(address) as client:
        for number in range(records // AT_ONCE):
            if frames.produced_offset(client.ask(request)) != number * AT_ONCE:
                raise RuntimeError(f"batch {number} has another offset")
        answer = client.ask(frames.request(apis.METADATA, METADATA_VERSION, {"topics": [{"name": topic}]}))
        [described] = frames.body(apis.METADATA, METADATA_VERSION, answer).topics
    return UUID(int=described.topic_id.int)


def new_group(servers: str) -> str:
    """The name of a group that nobody has used, and that begins at the first record."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 4})
    admin.incremental_alter_configs([resource])[resource].result(60)
    return name


def polled(consumer: ShareConsumer, records: int) -> Iterator[list[Message]]:
    """What each poll gives that gives something, until there were so many; RuntimeError when they do not come."""
    give_up = time.monotonic() + GIVE_UP_S
    while records > 0:
        messages = list(consumer.poll(1.0))
        if failed := [message.error() for message in messages if message.error()]:
            raise RuntimeError(f"a poll failed: {failed[0]}")
        if messages:
            yield messages
        records -= len(messages)
        if time.monotonic() > give_up:
            raise RuntimeError(f"{records} records did not come within {GIVE_UP_S:.0f} s")


def check_all_done(address: str, group: str) -> None:
    """RuntimeError if the group has not accepted everything: the runs only count what they are given."""
    body = {"groups": [{"group_id": group, "topics": None}]}
    with RawClient(address) as client:
        answer = client.ask(frames.request(apis.DESCRIBE_SHARE_GROUP_OFFSETS, OFFSETS_VERSION, body))
    [found] = frames.body(apis.DESCRIBE_SHARE_GROUP_OFFSETS, OFFSETS_VERSION, answer).groups
    lags = [row.lag for topic in found.topics for row in topic.partitions]
    if found.error_code is not ErrorCode.none or lags != [0]:
        raise RuntimeError(f"group {group} is not done: {found}")


def initialize(client: RawClient, group: str, topic_id: UUID) -> None:
    """What the coordinator of a group does when a member has joined: the group begins at offset 0 of partition 0."""
    state = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    body = {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": [state]}]}
    # Looking for a share coordinator creates the topic of the states.
    key = {"key_type": 2, "coordinator_keys": [f"{group}:AAAAAAAAAAAAAAAAAAAAAA:0"]}
    api, version = apis.INITIALIZE_SHARE_GROUP_STATE, _INITIALIZE_VERSION
    for _ in range(_ATTEMPTS):
        client.ask(frames.request(apis.FIND_COORDINATOR, _COORDINATOR_VERSION, key))
        response = frames.body(api, version, client.ask(frames.request(api, version, body)))
        if all(part.error_code is ErrorCode.none for topic in response.results for part in topic.partitions):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the share state was not initialized: {response}")


def share_fetch(
    group: str, member_id: str, epoch: int, topic_id: UUID, max_records: int = AT_ONCE, wait_s: float = 5.0
) -> bytes:
    """A ShareFetch of partition 0, which epoch 0 names."""
    partition = {"partition_index": 0, "acknowledgement_batches": []}
    body = {
        "group_id": group,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "max_wait": datetime.timedelta(seconds=wait_s),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": max_records,
        "batch_size": max_records,
        "topics": [] if epoch else [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    return frames.request(apis.SHARE_FETCH, SHARE_FETCH_VERSION, body)


def acquired(answer: bytes) -> int:
    """How many records a ShareFetch has acquired; RuntimeError when it was refused."""
    response = frames.body(apis.SHARE_FETCH, SHARE_FETCH_VERSION, answer)
    partitions = [partition for topic in response.responses for partition in topic.partitions]
    if failed := [one for one in (response, *partitions) if one.error_code is not ErrorCode.none]:
        raise RuntimeError(f"a share fetch was refused: {failed[0].error_code.name} {failed[0].error_message}")
    return sum(one.last_offset - one.first_offset + 1 for part in partitions for one in part.acquired_records)
