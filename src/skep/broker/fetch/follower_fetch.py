"""Fetches of other brokers that follow partitions led by this one.

A follower reads the whole log, committed or not. Its fetch offset says how far it is, and so moves the high watermark.
Its log may have batches of an earlier leader that our log does not have. Then the response says where the logs diverge
(KIP-595), and the fetch offset is ignored.

A replica that a reassignment adds, or that a topic option names, gets at most ``leader.replication.throttled.rate``
until it is in sync. It gets fewer records, or none, and fetches again. Kafka throttles only the replicas that are named
(KIP-73), and its tool names those that it moves.
"""

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, NamedTuple

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import NEVER
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, Offset
from skep.broker.fetch.fetch_sessions import Wanted
from skep.metadata.catalog import Catalog
from skep.replication.follower.throttle import Throttle
from skep.replication.partition.partition import Partition
from skep.storage.log.log_slice import LogSlice
from skep.wire.fetch.fetch_request import HAS_REPLICA_STATE
from skep.wire.fetch.fetch_response import FetchedPartition

if TYPE_CHECKING:
    from skep.wire.entities.request_types import FetchRequest

LARGEST_DEBT_S = 0.5
"""How far a copy may be ahead of its rate before it waits: as long as a fetch without records takes."""


class FollowerFetch(NamedTuple):
    """The broker that fetches. ``broker_epoch`` is the epoch of its registration, -1 if the version has none."""

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
            if offset != log.log_end_offset:  # most of a thousand followed partitions are up to date
                size = max(0, min(left, one.max_bytes))
                records = records_of(partition.read(offset, size, up_to=log.log_end_offset, at_least_one=at_least_one))
        except KafkaError as error:
            if error.code is not ErrorCode.offset_out_of_range:
                raise
            # The follower needs our log start offset to restart its log there.
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
        """Whether the follower's log is empty and begins after the start of ours, with nothing shown to be in common.

        The follower is about to restart its log. Its position must not bring it into the ISR before that.
        """
        if one.last_fetched_epoch >= 0 or one.log_start_offset <= partition.log.log_start_offset:
            return False
        return partition.in_sync is not None and self.broker_id not in partition.in_sync.isr


class ThrottledReplicas:
    """Limits the rate at which added replicas, or those that a topic option names, copy from this leader."""

    def __init__(self, catalog: Catalog, node_id: BrokerId, clock: Clock, config: CurrentConfig) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._clock = clock
        self._config = config
        self._throttle = Throttle(lambda: config.value.cluster.leader_replication_throttled_rate)

    def room(self, broker_id: BrokerId, partition: Partition, left: int) -> int | None:
        """Returns how many of the ``left`` bytes the replica may get now; None if it is not throttled."""
        rate = self._config.value.cluster.leader_replication_throttled_rate
        if rate == NEVER or not self._is_throttled(broker_id, partition):
            return None
        return 0 if self._throttle.wait_s(self._clock.monotonic()) > LARGEST_DEBT_S else min(left, max(1, rate))

    def gave(self, size: int) -> None:
        self._throttle.took(size, self._clock.monotonic())

    def _is_throttled(self, broker_id: BrokerId, partition: Partition) -> bool:
        """Whether the replica is throttled. Once it is in sync it is not: producers wait for it."""
        name, index = partition.topic_partition
        topic = self._catalog.image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return False
        record = topic.partitions[index]
        if broker_id in record.isr:
            return False
        return broker_id in record.adding or (index, self._node_id) in partition.log.config.throttled_leaders


def follower_in(body: "FetchRequest", version: int) -> FollowerFetch | None:
    """Returns the broker that sent the request; None for a consumer."""
    if version >= HAS_REPLICA_STATE:
        state = body.replica_state
        return None if state.replica_id < 0 else FollowerFetch(state.replica_id, state.replica_epoch)
    return None if body.replica_id < 0 else FollowerFetch(body.replica_id, -1)
