"""The share partitions of one partition of ``__share_group_state``, and their states.

The operations on the table are in ``share_operations.py``, one for each request, and in ``share_upkeep.py``, which
keeps the log short. ``ShareShard`` is the table as the runtime sees it.
"""

from collections.abc import Callable
from typing import Any

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.current_config import CurrentConfig
from skep.coordination.shard import ProducerStamp, ShardContext
from skep.coordination.share.share_records import ShareSnapshotKey, ShareSnapshotValue, ShareUpdateValue
from skep.coordination.share.share_state import UNINITIALIZED, SharePartitionKey, StateBatch
from skep.coordination.share.state_batches import merge
from skep.metadata.cluster_image import ClusterImage


class KeptState:
    """The state of one share partition. ``updates`` is the number of updates since its snapshot, which is at
    ``snapshot_offset``; ``is_orphaned``: the topic did not exist when the upkeep last looked."""

    __slots__ = (
        "batches",
        "create_timestamp",
        "delivery_complete_count",
        "generation",
        "is_orphaned",
        "leader_epoch",
        "snapshot_epoch",
        "snapshot_offset",
        "start_offset",
        "state_epoch",
        "updates",
        "write_timestamp",
    )

    def __init__(self, snapshot: ShareSnapshotValue, snapshot_offset: int) -> None:
        self.snapshot_epoch = snapshot.snapshot_epoch
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.start_offset = snapshot.start_offset
        self.delivery_complete_count = snapshot.delivery_complete_count
        self.generation = snapshot.generation
        self.create_timestamp = snapshot.create_timestamp
        self.write_timestamp = snapshot.write_timestamp
        self.batches: list[StateBatch] = []
        merge(self.batches, snapshot.batches, self.start_offset)
        self.snapshot_offset = snapshot_offset
        self.updates = 0
        self.is_orphaned = False

    def snapshot(self, write_timestamp: int) -> ShareSnapshotValue:
        """Returns the next snapshot of the state as it is."""
        return ShareSnapshotValue(
            self.snapshot_epoch + 1,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.delivery_complete_count,
            self.create_timestamp,
            write_timestamp,
            self.batches,
            self.generation,
        )

    def apply(self, update: ShareUpdateValue) -> None:
        """Neither the start offset nor the leader epoch goes back, whichever leader wrote the record."""
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        self.delivery_complete_count = self.complete_count_after(update.start_offset, update.delivery_complete_count)
        self.start_offset = max(self.start_offset, update.start_offset)
        merge(self.batches, update.batches, self.start_offset)
        self.updates += 1

    def complete_count_after(self, start_offset: int, complete_count: int) -> int:
        """Returns the delivery complete count after a write with these. It counts from the start offset, so it only
        grows while the start stays, and a count from an earlier start says nothing."""
        if start_offset > self.start_offset:
            return complete_count
        if start_offset in (self.start_offset, UNINITIALIZED):
            return max(complete_count, self.delivery_complete_count)
        return self.delivery_complete_count


class ShareTable:
    """Owns the states of one partition.

    ``states`` is in the order of the snapshots in the log, so its first entry has the oldest. ``next_offset`` is that
    of the next record. ``unscanned`` is what a scan of the upkeep has not reached yet.
    """

    def __init__(self, context: ShardContext, config: CurrentConfig, image: Callable[[], ClusterImage]) -> None:
        self.partition = context.partition
        self.clock = context.clock
        self.timers = context.timers
        self._config = config
        self._image = image
        self.states: dict[SharePartitionKey, KeptState] = {}
        self.next_offset = 0
        self.unscanned: list[SharePartitionKey] = []

    @property
    def config(self) -> CoordinatorConfig:
        """The options in force."""
        return self._config.value.coordinator

    def has_partition(self, key: SharePartitionKey) -> bool:
        """Returns whether the partition that is shared exists."""
        topic = self._image().topics_by_id.get(key.topic_id)
        return topic is not None and 0 <= key.partition < len(topic.partitions)

    def replay(self, offset: int, key: Any, value: Any, producer: ProducerStamp | None) -> None:
        self.next_offset = offset + 1
        if isinstance(key, ShareSnapshotKey):
            # Removed first, so that a new entry becomes the last one.
            self.states.pop(key.share_partition, None)
            if value is not None:
                self.states[key.share_partition] = KeptState(value, offset)
        elif value is not None and (state := self.states.get(key.share_partition)) is not None:
            # An update without a snapshot is from before the log's start, in a batch that reaches across it.
            state.apply(value)
