"""Reads a partition for a consumer, and chooses the replica that the consumer should read from (KIP-392)."""

import asyncio
from collections.abc import Mapping, Sequence

from skep.base.ids import BrokerId, Offset
from skep.broker.fetch.fetch_sessions import Wanted
from skep.broker.fetch.sliced_records import READ_AT_ONCE_BYTES, sliced_records
from skep.metadata.model import BrokerRecord
from skep.replication.partition.partition import Partition
from skep.storage.log.log_slice import LogSlice
from skep.wire.fetch.fetch_response import FetchedPartition


def read_for_consumer(
    partition: Partition, one: Wanted, left: int, read_committed: bool, *, at_least_one: bool
) -> FetchedPartition:
    """Returns the batches from the fetch offset on, up to ``left`` bytes. Raises KafkaError OFFSET_OUT_OF_RANGE."""
    high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
    offset = Offset(one.fetch_offset)
    up_to, most = last_stable_offset if read_committed else high_watermark, max(0, min(left, one.max_bytes))
    found = partition.read(offset, most, up_to=up_to, at_least_one=at_least_one)
    if found.next_offset < up_to and found.size > READ_AT_ONCE_BYTES:
        # The consumer will fetch the rest; where that is can be looked up while this response is sent.
        asyncio.get_running_loop().call_soon(partition.log.prepare, found.next_offset, most)
    return FetchedPartition(
        one.partition,
        0,
        high_watermark,
        last_stable_offset,
        partition.log.log_start_offset,
        sliced_records(found),
        _aborted(partition, offset, found) if read_committed else None,
    )


def _aborted(partition: Partition, offset: Offset, found: LogSlice) -> Sequence[tuple[int, int]]:
    """Returns (producer id, first offset) of the aborted transactions that have records in the slice."""
    if found.file is None:
        return ()
    return [one[:2] for one in partition.log.aborted_transactions(offset, found.next_offset)]


def nearest_replica(partition: Partition, brokers: Mapping[BrokerId, BrokerRecord], rack_id: str) -> BrokerId | None:
    """Returns the follower in ``rack_id`` that a consumer should read from; None if there is none.

    Only the leader redirects, and only to a replica that is in sync and alive; to the one with the longest log.
    """
    in_sync = partition.in_sync
    if in_sync is None:
        return None
    near = [
        (follower.log_end_offset, broker)
        for broker, follower in in_sync.followers.items()
        if broker in in_sync.isr and broker in brokers and brokers[broker].rack == rack_id
    ]
    return max(near)[1] if near else None
