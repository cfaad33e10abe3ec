"""The persister of share states: sends each request to the share coordinator, on whichever broker it is, with retries.

If the coordinator is this broker, a request is a call. Coordinators move and brokers fail, so retriable errors are
retried for a while; each request may be repeated, because writes merge. A fenced leader gets its error at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from skep.base.clock import Clock
from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId, LeaderEpoch, TopicPartition
from skep.client.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRIABLE
from skep.coordination.partition_leaders import PartitionLeaders
from skep.coordination.partitioner import partition_for
from skep.coordination.share.remote_share_state import RemoteShareState
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_state import SharePartitionKey, ShareState
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord

TRY_FOR_S = 15.0
"""No attempt begins later than this after the first. Clients wait 30 seconds for a response."""

T = TypeVar("T")


class RoutedPersister:
    """Implements ``SharePersister``. ``create_topic`` creates ``__share_group_state`` when it is first needed."""

    def __init__(
        self,
        node_id: BrokerId,
        image: Callable[[], ClusterImage],
        coordinator: ShareCoordinator,
        remote: RemoteShareState,
        clock: Clock,
    ) -> None:
        self._image = image
        self._leaders = PartitionLeaders(node_id, image)
        self._coordinator = coordinator
        self._remote = remote
        self._clock = clock
        self.create_topic: Callable[[], Awaitable[None]] = _cannot_create

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._ask(
            key,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset),
            lambda broker: self._remote.initialize(broker, key, state_epoch, start_offset),
        )

    async def read(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        return await self._ask(
            key,
            lambda: self._coordinator.read(key, leader_epoch),
            lambda broker: self._remote.read(broker, key, leader_epoch),
        )

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        await self._ask(
            key,
            lambda: self._coordinator.write(key, state),
            lambda broker: self._remote.write(broker, key, state),
        )

    def write_now(self, key: SharePartitionKey, state: ShareState) -> bool:
        try:
            self._coordinator.write_now(key, state)
        except KafkaError as error:
            if self._is_retriable(error.code, key):
                return False
            raise
        return True

    def commits_at_once(self, key: SharePartitionKey) -> bool:
        return self._coordinator.commits_at_once(key)

    async def summary(self, key: SharePartitionKey) -> ShareState:
        return await self._ask(
            key, lambda: self._coordinator.summary(key), lambda broker: self._remote.summary(broker, key)
        )

    async def delete(self, key: SharePartitionKey) -> None:
        await self._ask(key, lambda: self._coordinator.delete(key), lambda broker: self._remote.delete(broker, key))

    async def _ask(
        self,
        key: SharePartitionKey,
        here: Callable[[], Awaitable[T]],
        elsewhere: Callable[[BrokerRecord], Awaitable[T]],
    ) -> T:
        give_up = self._clock.monotonic() + TRY_FOR_S
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                broker = await self._coordinator_of(key)
                return await (here() if broker is None else elsewhere(broker))
            except KafkaError as error:
                if not self._is_retriable(error.code, key) or self._clock.monotonic() + pause_s >= give_up:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _coordinator_of(self, key: SharePartitionKey) -> BrokerRecord | None:
        """Returns the broker that coordinates the share partition, or None if it is this one."""
        if SHARE_GROUP_STATE not in self._image().topics:
            try:
                await self.create_topic()
            except (StoreUnavailable, VersionConflict) as error:
                raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error
        topic = self._image().topics.get(SHARE_GROUP_STATE)
        if topic is None:
            raise KafkaError(ErrorCode.coordinator_not_available, f"topic {SHARE_GROUP_STATE} does not exist")
        index = partition_for(key.coordinator_key, len(topic.partitions))
        return self._leaders.elsewhere(TopicPartition(SHARE_GROUP_STATE, index))

    def _is_retriable(self, code: ErrorCode, key: SharePartitionKey) -> bool:
        if code is ErrorCode.unknown_topic_or_partition:
            # The coordinator may not have received a new topic yet. If this broker does not know it either, it is gone.
            topic = self._image().topics_by_id.get(key.topic_id)
            return topic is not None and 0 <= key.partition < len(topic.partitions)
        # Kafka calls FENCED_LEADER_EPOCH retriable, for clients that then look for the leader.
        return code in RETRIABLE and code is not ErrorCode.fenced_leader_epoch


async def _cannot_create() -> None:
    raise KafkaError(ErrorCode.coordinator_not_available, f"topic {SHARE_GROUP_STATE} does not exist")
