"""The hand-written encoder of ShareAcknowledge responses says what kio says, byte for byte."""

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import run_at_once
from skep.wire.apis import SHARE_ACKNOWLEDGE
from skep.wire.codec import JOINED_PARTS, encode_response
from skep.wire.leader_hints import NodeEndpoint
from skep.wire.share.share_acknowledge_response import AcknowledgedPartition, encode_share_acknowledge
from tests.raw_requests import seconds

int32 = st.integers(0, 2**31 - 1)
texts = st.none() | st.text(max_size=200)
partitions = st.lists(
    st.builds(
        AcknowledgedPartition,
        int32,
        st.sampled_from([code.value for code in ErrorCode]),
        texts,
        st.none() | st.tuples(int32, int32),
    ),
    max_size=3,
)
topics = st.lists(st.tuples(st.uuids(), partitions), max_size=3)
endpoints = st.lists(st.builds(NodeEndpoint, int32, st.text(max_size=20), int32, texts), max_size=2)


@example(1, 4711, [(UUID(int=7), [AcknowledgedPartition(3)])], 30, [], 5)
@example(2, 4711, [(UUID(int=7), [AcknowledgedPartition(3)])], 30, [], 0)
@given(st.sampled_from([1, 2]), int32, topics, st.integers(0, 1000), endpoints, st.integers(0, 1000))
def test_the_bytes_are_those_of_the_generated_encoder(
    version: int,
    correlation_id: int,
    results: list[tuple[UUID, list[AcknowledgedPartition]]],
    lock_s: int,
    nodes: list[NodeEndpoint],
    throttle_s: int,
) -> None:
    parts = run_at_once(
        encode_share_acknowledge(version, correlation_id, results, 1000 * lock_s, 1 << 30, nodes, 1000 * throttle_s)
    )
    body = {
        "throttle_time": seconds(throttle_s),
        "error_code": 0,
        "acquisition_lock_timeout": seconds(lock_s),
        "responses": [{"topic_id": topic_id, "partitions": list(map(_partition, of))} for topic_id, of in results],
        "node_endpoints": [node._asdict() for node in nodes],
    }
    assert b"".join(parts) == encode_response(SHARE_ACKNOWLEDGE.key, version, correlation_id, body)


def _partition(one: AcknowledgedPartition) -> dict[str, object]:
    leader_id, leader_epoch = one.current_leader or (-1, -1)
    return {
        "partition_index": one.partition,
        "error_code": one.error_code,
        "error_message": one.error_message,
        "current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch},
    }


def test_a_response_that_would_be_too_large_is_refused() -> None:
    results = [AcknowledgedPartition(index, 1, "x" * 100) for index in range(2 * JOINED_PARTS)]
    with pytest.raises(KafkaError) as refused:
        run_at_once(encode_share_acknowledge(2, 1, [(UUID(int=1), results)], 0, 1000))
    assert refused.value.code is ErrorCode.invalid_request
