"""Fetch of one partition by a consumer, outside any fetch session."""

import struct
from uuid import UUID

from skep.base.errors import DecodeError, ErrorCode
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import ClientError
from skep.client.topic_info import NO_ID
from skep.records.batch import LENGTH_END
from skep.wire.apis import FETCH, Api
from skep.wire.fetch.fetch_request import FetchPosition, encode_fetch_request
from skep.wire.fetch.fetch_response import HAS_TOPIC_ID
from skep.wire.fetch.fetch_response_reader import FetchResponsePartition, read_fetch_response

MAX_WAIT_MS = 500
"""How long the broker waits for records when there are none."""
_BY_NAME = FETCH._replace(newest=HAS_TOPIC_ID - 1)
_READ_COMMITTED = 1
_NOTHING = FetchResponsePartition(NO_ID, -1, ErrorCode.none, -1, -1, -1, memoryview(b""))

_BATCH_BEGIN = struct.Struct(">qi11xi")
"""Base offset, length, last offset delta."""
_LARGEST_OFFSET = (1 << 63) - 1


def fetch_api(topic_id: UUID) -> Api:
    """Returns Fetch in the versions that can name the topic: a broker from before topic ids has only the name."""
    return _BY_NAME if topic_id == NO_ID else FETCH


def fetch_body(
    version: int,
    topic: str,
    topic_id: UUID,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    committed: bool,
    max_wait_ms: int = MAX_WAIT_MS,
) -> bytes:
    """Returns the body of a request. The first batch is returned even when it is larger than ``max_bytes``."""
    return encode_fetch_request(
        version,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=_READ_COMMITTED if committed else 0,
        partitions=[FetchPosition(topic_id, partition, -1, offset, -1, -1, max_bytes)],
        topic_names={topic_id: topic},
    )


def read_fetched(version: int, frame: memoryview) -> FetchResponsePartition | None:
    """Returns the one partition of a response; None when it has none, as from a broker that throttles.

    A code of the whole response becomes that of the partition. Raises DecodeError for damaged bytes.
    """
    response = read_fetch_response(version, frame)
    if response.error_code is not ErrorCode.none:
        return _NOTHING._replace(error_code=response.error_code)
    return response.partitions[0] if response.partitions else None


def fetch_partition(
    cluster: ClusterClient,
    leader: Node,
    topic: str,
    topic_id: UUID,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    committed: bool,
    max_wait_ms: int,
) -> FetchResponsePartition:
    """Sends one request and returns its partition, whatever its code is; without records if the broker throttles."""

    def encode(version: int) -> bytes:
        return fetch_body(
            version,
            topic,
            topic_id,
            partition,
            offset,
            max_bytes=max_bytes,
            committed=committed,
            max_wait_ms=max_wait_ms,
        )

    version, frame = cluster.ask_node_raw(leader, fetch_api(topic_id), encode)
    try:
        return read_fetched(version, frame) or _NOTHING
    except DecodeError as error:
        raise ClientError(f"the response of {leader.host}:{leader.port} is not Kafka's protocol: {error}") from None


def offset_after(records: memoryview, offset: int) -> int:
    """Returns the offset after these batches; ``offset`` itself when not even one is whole.

    A walk of its own, not ``records.record.batches_in``: the next request waits for it. It reads only lengths and
    offsets and stops at damage, which the decoder reports.
    """
    position, size = 0, len(records)
    unpack = _BATCH_BEGIN.unpack_from
    while size - position >= _BATCH_BEGIN.size:
        base_offset, length, last_delta = unpack(records, position)
        position += LENGTH_END + length
        if position > size or length <= 0 or last_delta < 0 or base_offset + last_delta >= _LARGEST_OFFSET:
            break
        following = base_offset + last_delta + 1
        if following > offset:
            offset = following
    return offset
