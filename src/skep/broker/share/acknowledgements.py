"""The acknowledgements in a ShareFetch or ShareAcknowledge request: begun together, answered when they are written."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Work
from skep.broker.permissions import TOPIC, check_item
from skep.broker.request import AnyRequest
from skep.broker.share.share_partitions import SharePartitions, TopicIdPartition
from skep.broker.share.share_sessions import SessionKey
from skep.coordination.share.acknowledgement import Acknowledgement, check_acknowledgements

HAS_RENEWALS = 2
"""The version of both requests from which on locks can be renewed (KIP-1222)."""

_MAX_MEMBER_ID_LENGTH = 36
"""Of a UUID as text."""

_MAX_BATCHES = 20_000
"""For one partition in one request. A member cannot hold more records than the largest window has, 10,000."""

_BATCHES_AT_ONCE = 500

Refusal = KafkaError | StorageError
Begun = dict[TopicIdPartition, "asyncio.Future[KafkaError | None] | Refusal | None"]
"""For each partition its refusal, a future of the written result, or None if the result is written or needs no
write."""


def session_key(body: Any) -> SessionKey:
    """Returns the group and the member of a request. Raises INVALID_REQUEST."""
    if body.group_id is None:
        raise KafkaError(ErrorCode.invalid_request, "the request names no group")
    member_id = body.member_id
    if not member_id or len(member_id) > _MAX_MEMBER_ID_LENGTH:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"a member id has 1 to {_MAX_MEMBER_ID_LENGTH} characters, not {len(member_id or '')}",
        )
    return SessionKey(body.group_id, member_id)


def is_renewal(request: AnyRequest) -> bool:
    return request.version >= HAS_RENEWALS and bool(request.body.is_renew_ack)


def named_partitions(topics: Iterable[Any]) -> Work[tuple[list[TopicIdPartition], bool]]:
    """Returns the partitions of a request, and whether it has acknowledgements."""
    named, has_acknowledgements = [], False
    for topic in topics:
        for partition in topic.partitions:
            named.append((id_of(topic), partition.partition_index))
            has_acknowledgements = has_acknowledgements or bool(partition.acknowledgement_batches)
            yield
    return named, has_acknowledgements


def id_of(topic: Any) -> UUID:
    # kio decodes the all-zero id as None; no topic has it.
    return topic.topic_id or UUID(int=0)


def begin_acknowledgements(shares: SharePartitions, key: SessionKey, request: AnyRequest) -> Work[Begun]:
    """Begins the acknowledgements of each partition. A client may name a topic several times."""
    batches: dict[TopicIdPartition, list[Acknowledgement]] = {}
    for topic in request.body.topics:
        for partition in topic.partitions:
            of_partition = batches.setdefault((id_of(topic), partition.partition_index), [])
            for batch in partition.acknowledgement_batches:
                of_partition.append(Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types))
                yield
            yield
    begun: Begun = {}
    for (topic_id, index), given in batches.items():
        try:
            yield from _checked(given, request)
            if given:
                share = shares.known(key.group_id, topic_id, index)
                if request.access.is_limited:
                    check_item(request, TOPIC, share.partition.topic_partition.topic)
                begun[topic_id, index] = share.acknowledge(key.member_id, given)
            else:
                begun[topic_id, index] = None
        except (KafkaError, StorageError) as error:
            begun[topic_id, index] = error
        yield
    return begun


def _checked(batches: Sequence[Acknowledgement], request: AnyRequest) -> Work[None]:
    """Raises INVALID_REQUEST for batches of one partition that are wrong whatever was acquired."""
    if len(batches) > _MAX_BATCHES:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"the request acknowledges {len(batches)} batches of a partition; at most {_MAX_BATCHES} are possible",
        )
    has_renew, is_renew_ack = request.version >= HAS_RENEWALS, is_renewal(request)
    for start in range(0, len(batches), _BATCHES_AT_ONCE):
        # With the one before, for their order.
        some = batches[max(0, start - 1) : start + _BATCHES_AT_ONCE]
        check_acknowledgements(some, has_renew=has_renew, is_renew_ack=is_renew_ack)
        yield


def written_already(begun: Begun) -> dict[TopicIdPartition, Refusal | None] | None:
    """Returns the result of each partition; None if one of them is not written yet."""
    results: dict[TopicIdPartition, Refusal | None] = {}
    for key, one in begun.items():
        if isinstance(one, asyncio.Future):
            return None
        results[key] = one
    return results


async def written(begun: Begun) -> dict[TopicIdPartition, Refusal | None]:
    """Returns the result of each partition when all of them are written."""
    return {key: await one if isinstance(one, asyncio.Future) else one for key, one in begun.items()}
