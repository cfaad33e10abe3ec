"""Which partitions are followed, and from whom: a fetcher for each leader, as the roles of partitions say."""

import asyncio
from collections.abc import Awaitable, Callable

from skep.base.broker_config import BrokerConfig
from skep.base.clock import Clock
from skep.base.ids import BrokerId
from skep.base.tasks import Supervisor
from skep.metadata.image import ClusterImage
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord
from skep.replication.fetcher import Fetcher
from skep.replication.partition import Partition
from skep.replication.throttling import Throttle


class Following:
    """Owns the fetchers. Between calls each partition that is followed here belongs to the fetcher of its leader."""

    def __init__(
        self,
        node: Callable[[], BrokerRecord],
        image: Callable[[], ClusterImage],
        settings: Callable[[], BrokerConfig],
        clock: Clock,
        before_truncation: Callable[[Partition], Awaitable[None]],
    ) -> None:
        self._node = node
        self._image = image
        self._settings = settings
        self._clock = clock
        self._before_truncation = before_truncation
        self._throttle = Throttle(lambda: settings().follower_replication_throttled_rate)
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._leaders: dict[Partition, BrokerId] = {}
        self._supervisor = Supervisor()

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """As ``Replicas.on_role`` tells it."""
        leader = NO_LEADER if record is None or partition.is_leader else record.leader
        before = self._leaders.get(partition, NO_LEADER)
        if before not in (NO_LEADER, leader):
            self._forget(partition, before)
        if leader == NO_LEADER or record is None:
            return
        self._leaders[partition] = leader
        is_throttled = self._node().id in record.adding
        self._fetcher_of(leader).follow(partition, is_throttled=is_throttled)

    def _forget(self, partition: Partition, leader: BrokerId) -> None:
        del self._leaders[partition]
        fetcher = self._fetchers[leader]
        fetcher.forget(partition)
        if not len(fetcher):
            del self._fetchers[leader]
            self._tasks.pop(leader).cancel()

    def _fetcher_of(self, leader: BrokerId) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                lambda broker: self._image().brokers.get(broker),
                self._node,
                self._settings,
                self._clock,
                self._throttle,
                self._before_truncation,
            )
            self._tasks[leader] = self._supervisor.spawn(f"fetch from broker {leader}", fetcher.run())
        return fetcher

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.brokers is not old.brokers:
            for fetcher in self._fetchers.values():
                fetcher.brokers_changed()

    async def stop(self) -> None:
        await self._supervisor.close()
        self._fetchers.clear()
        self._tasks.clear()
        self._leaders.clear()
