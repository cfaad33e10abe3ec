"""A fetch by another broker, which follows partitions that this one leads.

It is given all that is in the log, committed or not. What it asks for tells how far it is, and so moves the high
watermark. Its log may have batches that ours does not have, from a leader before us: then it is told where our
histories part (KIP-595), and its position counts for nothing.

A replica that a reassignment adds, or that a topic option names, gets no more than
``leader.replication.throttled.rate`` until it is in sync; what it would get beyond that it does not get yet, and asks
again. Kafka throttles only what is named (KIP-73), and its tool names what it moves.
"""

from collections.abc import Callable, Sized
from typing import Any, NamedTuple

from skep.base.clock import Clock
from skep.base.config.topic_config import NEVER
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, Offset
from skep.broker.fetch.fetch_sessions import Wanted
from skep.metadata.catalog import Catalog
from skep.replication.follower.throttle import Throttle
from skep.replication.partition.partition import Partition
from skep.storage.log.log_slice import LogSlice
from skep.wire.fetch.fetch_response import FetchedPartition

HAS_REPLICA_STATE = 15
LARGEST_DEBT_S = 0.5
"""How far ahead of its rate a copy may be before it waits: as long as a fetch that is given nothing takes."""


class FollowerFetch(NamedTuple):
    """Who fetches. ``broker_epoch`` is that of its registration; -1: it does not say."""

    broker_id: BrokerId
    broker_epoch: int

    def read(
        self,
        partition: Partition,
        one: Wanted,
        left: int,
        records_of: Callable[[LogSlice], Sized],
        *,
        at_least_one: bool,
    ) -> FetchedPartition:
        offset, log = Offset(one.fetch_offset), partition.log
        try:
            diverging = partition.diverging(offset, one.last_fetched_epoch)
            if diverging is not None:
                start = log.log_start_offset
                return FetchedPartition(one.partition, 0, log_start_offset=start, diverging_epoch=diverging)
            records: Sized = b""
            if offset != log.log_end_offset:  # of a thousand partitions that are followed, most are where we are
                size = max(0, min(left, one.max_bytes))
                records = records_of(partition.read(offset, size, up_to=log.log_end_offset, at_least_one=at_least_one))
        except KafkaError as error:
            if error.code is not ErrorCode.offset_out_of_range:
                raise
            # The follower has to know where our log begins, to begin anew there.
            return FetchedPartition(one.partition, error.code, log_start_offset=log.log_start_offset)
        if not self._is_on_another_history(partition, one):
            partition.follower_fetched(self.broker_id, offset, self.broker_epoch, one.log_start_offset)
        return FetchedPartition(
            one.partition,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            log.log_start_offset,
            records,
        )

    def _is_on_another_history(self, partition: Partition, one: Wanted) -> bool:
        """Whether it has an empty log that begins past ours, and nothing says that we had the same before.

        It is about to begin anew. Its position must not bring it into the ISR before that.
        """
        if one.last_fetched_epoch >= 0 or one.log_start_offset <= partition.log.log_start_offset:
            return False
        return partition.in_sync is not None and self.broker_id not in partition.in_sync.isr


class ThrottledReplicas:
    """Those that are to catch up slowly, and how fast they are given what they have to copy from this leader."""

    def __init__(
        self, catalog: Catalog, node_id: Callable[[], BrokerId], clock: Clock, rate: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._clock = clock
        self._rate = rate
        self._throttle = Throttle(rate)

    def room(self, broker_id: BrokerId, partition: Partition, left: int) -> int | None:
        """How many of the ``left`` bytes it may have now; None when there is no limit for it."""
        rate = self._rate()
        if rate == NEVER or not self._is_throttled(broker_id, partition):
            return None
        return 0 if self._throttle.wait_s(self._clock.monotonic()) > LARGEST_DEBT_S else min(left, max(1, rate))

    def gave(self, size: int) -> None:
        self._throttle.took(size, self._clock.monotonic())

    def _is_throttled(self, broker_id: BrokerId, partition: Partition) -> bool:
        """Whether it is one of them and has not caught up yet; once it has, producers wait for it."""
        name, index = partition.topic_partition
        topic = self._catalog.image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return False
        record = topic.partitions[index]
        if broker_id in record.isr:
            return False
        return broker_id in record.adding or (index, self._node_id()) in partition.log.config.throttled_leaders


def follower_in(body: Any, version: int) -> FollowerFetch | None:
    """The broker that a request comes from; None for a consumer."""
    if version >= HAS_REPLICA_STATE:
        state = body.replica_state
        return None if state.replica_id < 0 else FollowerFetch(state.replica_id, state.replica_epoch)
    return None if body.replica_id < 0 else FollowerFetch(body.replica_id, -1)
