"""Share states in the requests between brokers: WriteShareGroupState has state batches, as has the response to a
read."""

from collections.abc import Iterable, Sequence
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.share.share_state import DELIVERY_STATES, SharePartitionKey, StateBatch
from skep.wire.codec import Body


def request_for(group_id: str, partitions: Iterable[tuple[SharePartitionKey, Body]]) -> Body:
    """Returns the body of a request for share partitions of one group, each with its fields."""
    topics: dict[Any, list[Body]] = {}
    for key, fields in partitions:
        topics.setdefault(key.topic_id, []).append({"partition": key.partition, **fields})
    return {
        "group_id": group_id,
        "topics": [{"topic_id": topic_id, "partitions": its} for topic_id, its in topics.items()],
    }


def batches_to_send(batches: Sequence[StateBatch]) -> list[Body]:
    return [
        {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
        for first, last, state, count in batches
    ]


def batches_received(batches: Iterable[Any]) -> list[StateBatch]:
    """Raises INVALID_REQUEST for a state that does not exist."""
    received = []
    for batch in batches:
        state = DELIVERY_STATES.get(batch.delivery_state)
        if state is None:
            raise KafkaError(ErrorCode.invalid_request, f"delivery state {batch.delivery_state} does not exist")
        received.append(StateBatch(batch.first_offset, batch.last_offset, state, batch.delivery_count))
    return received
