"""Share states in the messages between brokers: what Kafka has no words for travels too, and nothing else changes."""

import uuid
from typing import Any

import pytest
from kio.schema.read_share_group_state.v0 import response as kio_read
from kio.schema.write_share_group_state.v1 import request as kio_write

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.share_operations import MAX_STATE_BATCHES
from skep.coordination.share.share_records import encode_batches
from skep.coordination.share.share_state import DeliveryState, Reason, SharePartitionKey, ShareState, StateBatch
from skep.coordination.share.state_messages import batches_received, fields_of, generation_received, request_for
from skep.wire.apis import READ_SHARE_GROUP_STATE, WRITE_SHARE_GROUP_STATE
from skep.wire.client_codec import decode_response, encode_request, request_header
from skep.wire.codec import decode_in_slices, decode_request, encode_response
from skep.wire.entities.encoders import entity_encoder

KEY = SharePartitionKey("kitchen", uuid.UUID(int=7), 3)
PLAIN = ShareState(1, 2, 3, 4, [StateBatch(5, 6, DeliveryState.ACKNOWLEDGED, 1)])
LONG = ShareState(
    1,
    2,
    3,
    4,
    [
        StateBatch(5, 6, DeliveryState.AVAILABLE, 2, 1, 1_700_000_000_000),
        StateBatch(7, 7, DeliveryState.ARCHIVED, 1),
        StateBatch(8, 9, DeliveryState.ARCHIVING, 5, 5, 0, Reason.LIMIT),
    ],
    generation=6,
)


def request_bytes(state: ShareState) -> bytes:
    body = request_for("kitchen", [(KEY, {"state_epoch": 1, "start_offset": 3, **fields_of(state)})])
    return encode_request(WRITE_SHARE_GROUP_STATE, 1, 9, "a broker", body)


def read_request(frame: bytes, *, in_slices: bool) -> Any:
    position = len(request_header(WRITE_SHARE_GROUP_STATE, 1, 9, "a broker"))
    if not in_slices:
        request = decode_request(85, 1, memoryview(frame), position)
    else:
        work = decode_in_slices(85, 1, memoryview(frame), position, 1000)
        try:
            while True:
                next(work)
        except StopIteration as done:
            request = done.value
    [topic] = request.topics
    [partition] = topic.partitions
    return partition


@pytest.mark.parametrize("state", [PLAIN, LONG], ids=["plain", "long"])
@pytest.mark.parametrize("in_slices", [False, True])
def test_a_write_carries_all_of_the_state(state: ShareState, in_slices: bool) -> None:
    partition = read_request(request_bytes(state), in_slices=in_slices)
    assert batches_received(partition) == state.batches
    assert generation_received(partition) == state.generation


@pytest.mark.parametrize("state", [PLAIN, LONG], ids=["plain", "long"])
def test_the_response_to_a_read_carries_all_of_the_state(state: ShareState) -> None:
    result = {"partition": 3, "error_code": 0, "state_epoch": 1, "start_offset": 3, **fields_of(state)}
    frame = encode_response(84, 0, 9, {"results": [{"topic_id": KEY.topic_id, "partitions": [result]}]})
    _, response = decode_response(READ_SHARE_GROUP_STATE, 0, frame)
    [topic] = response.results
    [partition] = topic.partitions
    assert batches_received(partition) == state.batches
    assert generation_received(partition) == state.generation


def test_a_state_without_private_fields_has_the_bytes_of_kafkas_messages() -> None:
    body = request_for("kitchen", [(KEY, {"state_epoch": 1, "start_offset": 3, **fields_of(PLAIN)})])
    assert request_bytes(PLAIN).endswith(entity_encoder(kio_write.WriteShareGroupStateRequest)(body))
    result = {"partition": 3, "error_code": 0, "state_epoch": 1, "start_offset": 3, **fields_of(PLAIN)}
    response = {"results": [{"topic_id": KEY.topic_id, "partitions": [result]}]}
    kafkas = entity_encoder(kio_read.ReadShareGroupStateResponse)(response)
    assert encode_response(84, 0, 9, response).endswith(kafkas)


TOO_MANY = encode_batches([StateBatch(1, 1, DeliveryState.ARCHIVED, 1)] * (MAX_STATE_BATCHES + 1))


@pytest.mark.parametrize(
    "packed",
    [b"\0", b"\x09", encode_batches(LONG.batches)[:-1], encode_batches([]) + b"\0", TOO_MANY],
    ids=["null", "cut", "cut batch", "longer", "too many"],
)
def test_damaged_batches_are_refused(packed: bytes) -> None:
    body = request_for("kitchen", [(KEY, {"skep_batches": packed})])
    partition = read_request(encode_request(WRITE_SHARE_GROUP_STATE, 1, 9, "a broker", body), in_slices=False)
    with pytest.raises(KafkaError, match="damaged") as refused:
        batches_received(partition)
    assert refused.value.code is ErrorCode.invalid_request
