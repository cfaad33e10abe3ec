"""Assigns the partitions that this broker follows to fetchers, one or more per leader."""

import asyncio
from collections.abc import Awaitable, Callable

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord
from skep.replication.follower.fetcher import Fetcher
from skep.replication.follower.throttle import Throttle
from skep.replication.partition.partition import Partition

_Place = tuple[BrokerId, int]
"""The leader, and the number of one of the fetchers that follow it."""


class FetcherManager:
    """Owns the fetchers. Between calls each partition that is followed here belongs to one fetcher of its leader.

    ``num.replica.fetchers`` is the number of fetchers per leader; a partition always has the same one.
    """

    def __init__(
        self,
        node: Callable[[], BrokerRecord],
        image: Callable[[], ClusterImage],
        config: CurrentConfig,
        clock: Clock,
        before_truncation: Callable[[Partition], Awaitable[None]],
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._node = node
        self._image = image
        self._config = config
        self._clock = clock
        self._before_truncation = before_truncation
        self._security = security
        self._throttle = Throttle(lambda: config.value.cluster.follower_replication_throttled_rate)
        self._count = config.value.cluster.num_replica_fetchers
        self._fetchers: dict[_Place, Fetcher] = {}
        self._tasks: dict[_Place, asyncio.Task[None]] = {}
        self._leaders: dict[Partition, BrokerId] = {}
        self._is_stopped = False
        self._supervisor = Supervisor()

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """Called by ``ReplicaManager.on_role_change``."""
        if self._is_stopped:
            return
        leader = NO_LEADER if record is None or partition.is_leader else record.leader
        before = self._leaders.get(partition, NO_LEADER)
        if before not in (NO_LEADER, leader):
            self._forget(partition, before)
        if leader == NO_LEADER or record is None:
            return
        self._leaders[partition] = leader
        node_id = self._node().id
        self._fetcher_at(self._place(partition, leader)).follow(
            partition, is_new=node_id in record.adding, is_in_sync=node_id in record.isr
        )

    def _place(self, partition: Partition, leader: BrokerId) -> "_Place":
        return leader, hash((partition.topic_id, partition.topic_partition.partition)) % self._count

    def _forget(self, partition: Partition, leader: BrokerId) -> None:
        del self._leaders[partition]
        place = self._place(partition, leader)
        fetcher = self._fetchers[place]
        fetcher.forget(partition)
        if not len(fetcher):
            del self._fetchers[place]
            self._tasks.pop(place).cancel()

    def _fetcher_at(self, place: "_Place") -> Fetcher:
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            leader, number = place
            fetcher = self._fetchers[place] = Fetcher(
                leader,
                number,
                lambda broker: self._image().brokers.get(broker),
                self._node,
                self._config,
                self._clock,
                self._throttle,
                self._before_truncation,
                self._security,
            )
            self._tasks[place] = self._supervisor.spawn(f"fetch from broker {leader}", fetcher.run())
        return fetcher

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.brokers is not old.brokers:
            for fetcher in self._fetchers.values():
                fetcher.brokers_changed()

    async def stop(self) -> None:
        """Stops all fetchers. Nothing is followed afterwards, whatever roles partitions get."""
        self._is_stopped = True
        await self._supervisor.close()
        self._fetchers.clear()
        self._tasks.clear()
        self._leaders.clear()
