"""A shard of the share coordinator under a driver, and a topic of two partitions to share."""

from dataclasses import replace
from typing import Any

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.ids import BrokerId
from skep.coordination.share import share_operations
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import DeliveryState, SharePartitionKey, ShareState, StateBatch
from skep.coordination.share.share_table import KeptState
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord, random_id
from tests.unit.coordination.driver import ShardDriver

AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED
ARCHIVING, ARCHIVED = DeliveryState.ARCHIVING, DeliveryState.ARCHIVED
ORDERS = TopicRecord("orders", random_id(), tuple(PartitionRecord.new([BrokerId(1)]) for _ in range(2)))
KEY = SharePartitionKey("kitchen", ORDERS.topic_id, 0)
OTHER = SharePartitionKey("kitchen", ORDERS.topic_id, 1)


def accepted(first: int, last: int, count: int = 1) -> StateBatch:
    return StateBatch(first, last, ACKNOWLEDGED, count)


class ShareScene(ShardDriver):
    """The requests, by the names of the operations."""

    def __init__(self, **options: Any) -> None:
        self.image = ClusterImage.of("test", topics=[ORDERS])
        config = BrokerConfig()
        self.config = CurrentConfig(replace(config, coordinator=replace(config.coordinator, **options)))
        super().__init__(lambda context: ShareShard(context, self.config, lambda: self.image), decode_share_record)

    def initialize(self, key: SharePartitionKey = KEY, state_epoch: int = 0, start_offset: int = 0) -> None:
        self.submit(lambda shard: share_operations.initialize(shard, key, state_epoch, start_offset))

    def read(self, key: SharePartitionKey = KEY, leader_epoch: int = 0) -> ShareState:
        response: ShareState = self.submit(lambda shard: share_operations.read(shard, key, leader_epoch))
        return response

    def write(
        self,
        *batches: StateBatch,
        key: SharePartitionKey = KEY,
        start_offset: int = -1,
        complete: int = -1,
        state_epoch: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        self.write_state(ShareState(state_epoch, leader_epoch, start_offset, complete, batches), key)

    def write_state(self, state: ShareState, key: SharePartitionKey = KEY) -> None:
        self.submit(lambda shard: share_operations.write(shard, key, state))

    def summary(self, key: SharePartitionKey = KEY) -> ShareState:
        response: ShareState = self.submit(lambda shard: share_operations.summary(shard, key))
        return response

    def delete(self, key: SharePartitionKey = KEY) -> None:
        self.submit(lambda shard: share_operations.delete(shard, key))

    def records(self) -> list[Any]:
        """(key, value) of each record in the log."""
        return [decode_share_record(key, value) for key, value, _ in self.log]

    def delete_before(self, offset: int) -> None:
        """Deletes records as DeleteRecords does: the others keep their offsets."""
        self.log[:offset] = [None] * offset

    def _replay(self, shard: Any, offset: int) -> None:
        if self.log[offset] is not None:
            super()._replay(shard, offset)


def fields(state: KeptState) -> dict[str, Any]:
    """Everything that follows from the log."""
    return {name: getattr(state, name) for name in KeptState.__slots__ if name != "is_orphaned"}
