"""The hand-written encoder of ShareFetch responses: kio reads them to the last byte."""

from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import run_at_once
from skep.wire.apis import SHARE_FETCH
from skep.wire.codec import response_class
from skep.wire.leader_hints import NodeEndpoint
from skep.wire.share.share_fetch_response import SharedPartition, encode_share_fetch
from tests.raw_requests import seconds

TOPIC_ID = UUID(int=7)
BATCHES = b"b" * 61


class Region:
    """Records that stay where they are until they are sent."""

    def __len__(self) -> int:
        return len(BATCHES)


@pytest.mark.parametrize("version", [1, 2])
def test_kio_reads_what_the_encoder_writes(version: int) -> None:
    topics = [
        (
            TOPIC_ID,
            [
                SharedPartition(0, records=Region(), acquired=[(5, 9, 1), (12, 12, 3)]),
                SharedPartition(1, ErrorCode.not_leader_or_follower, "moved", current_leader=(2, 5)),
                SharedPartition(2, 0, None, ErrorCode.invalid_record_state, "not yours"),
            ],
        )
    ]
    endpoints = [NodeEndpoint(2, "two.example", 9093, "shed"), NodeEndpoint(3, "three.example", 9094)]
    parts = run_at_once(encode_share_fetch(version, 4711, topics, 30_000, endpoints, 2000))
    assert any(isinstance(part, Region) for part in parts), "records are passed on, not copied"
    frame = b"".join(BATCHES if isinstance(part, Region) else bytes(part) for part in parts)  # type: ignore[call-overload]
    entity = response_class(SHARE_FETCH.key, version)
    header, position = entity_reader(entity.__header_schema__)(frame, 0)
    response, size = entity_reader(entity)(frame, position)
    assert header.correlation_id == 4711
    assert position + size == len(frame)
    assert response.acquisition_lock_timeout == seconds(30)
    assert response.throttle_time == seconds(2)
    [topic] = response.responses
    assert topic.topic_id == TOPIC_ID
    first, second, third = topic.partitions
    assert bytes(first.records) == BATCHES
    acquired = [(one.first_offset, one.last_offset, one.delivery_count) for one in first.acquired_records]
    assert acquired == [(5, 9, 1), (12, 12, 3)]
    assert (second.error_code, second.error_message) == (ErrorCode.not_leader_or_follower, "moved")
    assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (2, 5)
    assert second.records is not None
    assert len(second.records) == 0
    assert third.acknowledge_error_code == ErrorCode.invalid_record_state
    assert third.acknowledge_error_message == "not yours"
    assert [(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints] == list(
        map(tuple, endpoints)
    )


@pytest.mark.parametrize("records", [BATCHES, b"", Region()])
@pytest.mark.parametrize("version", [1, 2])
def test_a_response_with_one_partition_has_the_bytes_that_others_have(version: int, records: Any) -> None:
    """It has an encoder of its own, unless there are endpoints: these are at the end, before one byte."""
    one = [(TOPIC_ID, [SharedPartition(3, records=records, acquired=[(5, 9, 1), (12, 12, 3)])])]
    endpoint = NodeEndpoint(2, "two.example", 9093)
    short, long = (run_at_once(encode_share_fetch(version, 4711, one, 30_000, given)) for given in ((), (endpoint,)))
    flat, flat_long = (
        b"".join(BATCHES if isinstance(part, Region) else bytes(part) for part in parts)  # type: ignore[call-overload]
        for parts in (short, long)
    )
    assert flat == flat_long[: len(flat) - 2] + b"\1\0"
    assert flat_long.startswith(flat[:-2] + b"\2")
