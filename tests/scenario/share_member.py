"""A member of a share group that sends exactly what it is told, to one topic."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import MEBIBYTE, seconds
from tests.waiting import PATIENCE_S, wait_until

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = -1

Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""By partition: first offset, last offset and types of each batch."""


def initialize_share_state(client: RawClient, group: str, topic_id: UUID, partitions: int = 1, start: int = 0) -> None:
    """What a group's coordinator does before it assigns the partitions of a topic."""
    states = [{"partition": index, "state_epoch": 0, "start_offset": start} for index in range(partitions)]
    topics = [{"topic_id": topic_id, "partitions": states}]

    def is_initialized() -> bool:
        client.ask(apis.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[f"{group}:AAAAAAAAAAAAAAAAAAAAAA:0"])
        [topic] = client.ask(apis.INITIALIZE_SHARE_GROUP_STATE, 0, group_id=group, topics=topics).results
        return all(result.error_code is ErrorCode.none for result in topic.partitions)

    wait_until(is_initialized, "the share state is initialized")


class ShareMember:
    """Owns the epoch of its share session, which it counts as the broker does."""

    def __init__(self, client: RawClient, group: str, topic_id: UUID, partitions: int = 1, version: int = 2) -> None:
        self.client = client
        self.group = group
        self.topic_id = topic_id
        self.member_id = str(uuid.uuid4())
        self.partitions = range(partitions)
        self.version = version
        self.epoch = 0

    def send_fetch(self, acks: Acks | None = None, *, wait_s: float = PATIENCE_S, **fields: Any) -> None:
        acks = acks or {}
        epoch = fields.pop("epoch", self.epoch)
        named = sorted(acks) if epoch else self.partitions
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": epoch,
            "max_wait": seconds(wait_s),
            "min_bytes": 1,
            "max_bytes": MEBIBYTE,
            "max_records": 500,
            "batch_size": 500,
            "topics": self._topics(named, acks),
            "forgotten_topics_data": [],
            **fields,
        }
        self.client.send(apis.SHARE_FETCH, self.version, **body)

    def receive(self) -> Any:
        response = self.client.receive()
        if response.error_code is ErrorCode.none:
            self.epoch += 1
        return response

    def fetch(self, acks: Acks | None = None, *, wait_s: float = PATIENCE_S, **fields: Any) -> Any:
        """The whole response."""
        self.send_fetch(acks, wait_s=wait_s, **fields)
        return self.receive()

    def acquire(self, acks: Acks | None = None, **fields: Any) -> list[tuple[int, int, int]]:
        """Waits for records of partition 0, and returns what was acquired of it."""
        return acquired(self.fetch(acks, **fields))

    def acquire_now(self, acks: Acks | None = None, **fields: Any) -> list[tuple[int, int, int]]:
        return acquired(self.fetch(acks, wait_s=0, **fields))

    def acknowledge(self, acks: Acks, **fields: Any) -> Any:
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "topics": self._topics(sorted(acks), acks),
            **fields,
        }
        response = self.client.ask(apis.SHARE_ACKNOWLEDGE, self.version, **body)
        if response.error_code is ErrorCode.none:
            self.epoch += 1
        return response

    def results(self, acks: Acks, **fields: Any) -> list[ErrorCode]:
        """Acknowledges, and returns the code of each partition."""
        response = self.acknowledge(acks, **fields)
        assert response.error_code is ErrorCode.none, response.error_message
        return [partition.error_code for topic in response.responses for partition in topic.partitions]

    def close(self) -> None:
        assert self.acknowledge({}, share_session_epoch=FINAL).error_code is ErrorCode.none

    def _topics(self, named: Sequence[int], acks: Acks) -> list[dict[str, Any]]:
        partitions = [
            {
                "partition_index": index,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                    for first, last, types in acks.get(index, ())
                ],
            }
            for index in named
        ]
        return [{"topic_id": self.topic_id, "partitions": partitions}] if partitions else []


def partitions_of(response: Any) -> dict[int, Any]:
    assert response.error_code is ErrorCode.none, response.error_message
    return {partition.partition_index: partition for topic in response.responses for partition in topic.partitions}


def acquired(response: Any, index: int = 0) -> list[tuple[int, int, int]]:
    """First offset, last offset and delivery count of what was acquired of a partition, which has no error."""
    partition = partitions_of(response).get(index)
    if partition is None:
        return []
    assert partition.error_code is ErrorCode.none, partition.error_message
    assert partition.acknowledge_error_code == 0, partition.acknowledge_error_message
    return [(one.first_offset, one.last_offset, one.delivery_count) for one in partition.acquired_records]


def values(response: Any, index: int = 0) -> list[bytes | None]:
    """The values of the records that were acquired, as a client finds them."""
    ranges = acquired(response, index)
    records = records_in(bytes(partitions_of(response)[index].records))
    return [one.value for one in records if any(first <= one.offset <= last for first, last, _ in ranges)]
