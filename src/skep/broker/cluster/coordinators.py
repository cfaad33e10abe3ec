"""The coordinators of this broker, and how they follow the cluster: which shards are here, which topics are gone."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.coordinator_config import CONSUMER_OFFSETS, TRANSACTION_STATE
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.client.peer.peers import Peers
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets.deleted_topics import forget_topics
from skep.coordination.partition_leaders import Leaders
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions.markers import MarkerWriter
from skep.coordination.transactions.remote_markers import RemoteMarkers
from skep.coordination.transactions.transaction_coordinator import TransactionCoordinator
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.verifier import Verifier
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import Replicas


class Coordinators:
    """Owns both coordinators, and the connections over which they talk to other brokers.

    ``settings`` gives the broker's options as they are at that moment.
    """

    def __init__(
        self,
        node_id: BrokerId,
        settings: Callable[[], BrokerConfig],
        catalog: Catalog,
        replicas: Replicas,
        clock: Clock,
        executor: Executor,
        supervisor: Supervisor,
        slicer: Slicer,
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        timeout_s = settings().replica_socket_timeout_ms / 1000
        # Two connections to each broker: a marker's answer waits for replicas, and no produce is to wait behind it.
        self._asking = Peers(client_id=f"broker-{node_id}-verifying", timeout_s=timeout_s)
        self._marking = Peers(client_id=f"broker-{node_id}-markers", timeout_s=timeout_s)
        leaders = Leaders(node_id, lambda: catalog.image)
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            lambda context: GroupShard(context, settings, lambda: catalog.image, self._bytes_of_groups),
            decode_group_record,
            replicas,
            clock,
            executor,
            supervisor,
            slicer,
        )
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_STATE,
            lambda context: TransactionShard(context, settings, markers),
            decode_transaction_record,
            replicas,
            clock,
            executor,
            supervisor,
            slicer,
        )
        verifier = Verifier(runtime, settings, leaders, self._asking)
        remote = RemoteMarkers(self._marking, supervisor)
        markers = MarkerWriter(TRANSACTION_STATE, replicas, self.groups, verifier.guards, leaders, remote)
        self._transaction_runtime = runtime
        self.transactions = TransactionCoordinator(runtime, self.groups, settings, verifier)

    def start(self) -> None:
        """Begins to load what is on the disk. Groups first: transactions that were under way write to theirs."""
        image = self._catalog.image
        self._follow(image)
        self._forget_pending(image)

    def stop(self) -> None:
        self._transaction_runtime.stop()
        self.groups.stop()
        self._talk_only_to(())

    def _bytes_of_groups(self) -> int:
        return sum(shard.memory.bytes for shard in self.groups.shards())

    def _talk_only_to(self, brokers: Iterable[BrokerRecord]) -> None:
        """Whoever waits for an answer of another broker is told that none will come, and asks the next leader."""
        for peers in (self._asking, self._marking):
            peers.retain(brokers)

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """As ``Replicas.on_role`` tells it. Shards of partitions that are gone are unloaded by ``image_changed``."""
        topic, index = partition.topic_partition
        if record is None:
            return
        if topic == TRANSACTION_STATE:
            self._transaction_runtime.role_taken(index)
        elif topic == CONSUMER_OFFSETS and self.groups.role_taken(index):
            self._forget_pending(self._catalog.image)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """To be called after the replicas were told of the same change; they may carry it out later."""
        if new.brokers is not old.brokers:
            self._talk_only_to(new.brokers.values())
        if new.topics is old.topics:
            return
        if self._follow(new):
            self._forget_pending(new)
        deleted = frozenset(
            name
            for name, topic in old.topics.items()
            if (now := new.topics.get(name)) is not topic and (now is None or now.topic_id != topic.topic_id)
        )
        self._forget(deleted)

    def _forget_pending(self, image: ClusterImage) -> None:
        """Of topics whose deletion a crash interrupted, or that went while a shard was on its way to us, offsets may
        not have been forgotten."""
        if self._catalog.pending_deletions:
            self._forget(frozenset(self._catalog.pending_deletions.values()).difference(image.topics))

    def _forget(self, topics: frozenset[str]) -> None:
        if topics:
            for shard in self.groups.shards():
                forget_topics(shard, topics)

    def _follow(self, image: ClusterImage) -> bool:
        """Whether groups have come here."""
        has_more = self.groups.follow(image.topics.get(CONSUMER_OFFSETS), self._node_id)
        self._transaction_runtime.follow(image.topics.get(TRANSACTION_STATE), self._node_id)
        return has_more
