"""Share states in the requests between brokers: WriteShareGroupState has state batches, as has the response to a
read.

What Kafka's messages have no fields for is in tagged fields of our own (``wire/entities/private_fields.py``). Batches
with failures, a time or a reason are there in the layout of the log, all of the state's batches then; others are where
Kafka has them, so the requests of a group that uses nothing of this are Kafka's.
"""

import struct
from collections.abc import Iterable
from typing import Any

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.coordination.share.share_operations import MAX_STATE_BATCHES
from skep.coordination.share.share_records import decode_batches, encode_batches
from skep.coordination.share.share_state import DELIVERY_STATES, SharePartitionKey, ShareState, StateBatch
from skep.wire.codec import Body
from skep.wire.primitives import read_uvarint


def request_for(group_id: str, partitions: Iterable[tuple[SharePartitionKey, Body]]) -> Body:
    """Returns the body of a request for share partitions of one group, each with its fields."""
    topics: dict[Any, list[Body]] = {}
    for key, fields in partitions:
        topics.setdefault(key.topic_id, []).append({"partition": key.partition, **fields})
    return {
        "group_id": group_id,
        "topics": [{"topic_id": topic_id, "partitions": its} for topic_id, its in topics.items()],
    }


def fields_of(state: ShareState) -> Body:
    """Returns the fields that carry the batches and the generation of a state."""
    batches = state.batches
    generation = {"skep_generation": state.generation} if state.generation else {}
    if any(failures or not_before_ms or reason for *_, failures, not_before_ms, reason in batches):
        return {"skep_batches": encode_batches(batches), **generation}
    plain = [
        {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
        for first, last, state, count, *_ in batches
    ]
    return {"state_batches": plain, **generation}


def batches_received(partition: Any) -> list[StateBatch]:
    """Returns the batches of a partition in a message. Raises INVALID_REQUEST for a state that does not exist."""
    if packed := getattr(partition, "skep_batches", b""):
        return _unpacked(packed)
    received = []
    for batch in partition.state_batches:
        state = DELIVERY_STATES.get(batch.delivery_state)
        if state is None:
            raise KafkaError(ErrorCode.invalid_request, f"delivery state {batch.delivery_state} does not exist")
        received.append(StateBatch(batch.first_offset, batch.last_offset, state, batch.delivery_count))
    return received


def generation_received(partition: Any) -> int:
    generation: int = getattr(partition, "skep_generation", 0)
    return generation


def _unpacked(packed: bytes) -> list[StateBatch]:
    try:
        # They are few bytes each on the wire, and objects in memory.
        count = read_uvarint(memoryview(packed), 0)[0] - 1
        if count > MAX_STATE_BATCHES:
            raise ValueError(f"there are {count} of them, more than {MAX_STATE_BATCHES}")
        batches, end = decode_batches(memoryview(packed), 0)
        if end != len(packed):
            raise ValueError(f"the state batches end at byte {end} of {len(packed)}")
    except (ValueError, DecodeError, struct.error) as error:
        raise KafkaError(ErrorCode.invalid_request, f"the packed state batches are damaged: {error}") from None
    return batches
