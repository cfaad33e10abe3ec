"""The coordinators of this broker, and how they follow the cluster: which shards are here, which topics are gone."""

from collections.abc import Callable
from concurrent.futures import Executor

from skep.base.broker_config import BrokerConfig
from skep.base.clock import Clock
from skep.base.ids import BrokerId
from skep.base.tasks import Supervisor
from skep.broker.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.forgetting import forget_topics
from skep.coordination.groups.shard import GroupShard
from skep.coordination.runtime import CoordinatorRuntime
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions.coordinator import TransactionCoordinator
from skep.coordination.transactions.markers import MarkerWriter
from skep.coordination.transactions.shard import TransactionShard
from skep.metadata.catalog import Catalog
from skep.metadata.image import ClusterImage
from skep.replication.replicas import Replicas


class Coordinators:
    """Owns both coordinators. ``settings`` gives the broker's options as they are at that moment."""

    def __init__(
        self,
        node_id: BrokerId,
        settings: Callable[[], BrokerConfig],
        catalog: Catalog,
        replicas: Replicas,
        clock: Clock,
        executor: Executor,
        supervisor: Supervisor,
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            lambda context: GroupShard(context, settings, lambda: catalog.image),
            decode_group_record,
            replicas,
            clock,
            executor,
            supervisor,
        )
        markers = MarkerWriter(TRANSACTION_STATE, replicas, self.groups)
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_STATE,
            lambda context: TransactionShard(context, settings, markers),
            decode_transaction_record,
            replicas,
            clock,
            executor,
            supervisor,
        )
        self._transaction_runtime = runtime
        self.transactions = TransactionCoordinator(runtime, self.groups, settings)

    def start(self) -> None:
        """Begins to load what is on the disk. Groups first: transactions that were under way write to theirs."""
        image = self._catalog.image
        self._follow(image)
        # Whose deletion a crash interrupted: their offsets may not have been forgotten before it.
        self._forget(frozenset(self._catalog.pending_deletions.values()).difference(image.topics))

    def stop(self) -> None:
        self._transaction_runtime.stop()
        self.groups.stop()

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """To be called after the replicas have followed the same change."""
        if new.topics is old.topics:
            return
        self._follow(new)
        deleted = frozenset(
            name
            for name, topic in old.topics.items()
            if (now := new.topics.get(name)) is not topic and (now is None or now.topic_id != topic.topic_id)
        )
        self._forget(deleted)

    def _forget(self, topics: frozenset[str]) -> None:
        if topics:
            for shard in self.groups.shards():
                forget_topics(shard, topics)

    def _follow(self, image: ClusterImage) -> None:
        self.groups.follow(image.topics.get(CONSUMER_OFFSETS), self._node_id)
        self._transaction_runtime.follow(image.topics.get(TRANSACTION_STATE), self._node_id)
