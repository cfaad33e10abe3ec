"""The coordinators of this broker, and how they follow the cluster: the partitions it leads, the deleted topics."""

from collections.abc import Iterable
from concurrent.futures import Executor

from skep.base.clock import Clock
from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from skep.base.config.current_config import CurrentConfig
from skep.base.ids import BrokerId, Offset
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.cluster.group_progress import GroupProgress
from skep.broker.cluster.latest_offsets import LatestOffsets
from skep.client.peer.peers import Peers
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.share.fenced_members import FencedMembers
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.coordination.partition_leaders import PartitionLeaders
from skep.coordination.share.remote_share_state import RemoteShareState
from skep.coordination.share.routed_persister import RoutedPersister
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
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
from skep.replication.replica_manager import ReplicaManager

SILENT_TIMEOUTS = 2
"""A share coordinator that is silent for so many of its write timeouts is given up, and looked for again."""


class Coordinators:
    """Owns the coordinators, their shards, and the connections over which they send requests to other brokers."""

    def __init__(
        self,
        node_id: BrokerId,
        config: CurrentConfig,
        catalog: Catalog,
        replicas: ReplicaManager,
        clock: Clock,
        executor: Executor,
        supervisor: Supervisor,
        slicer: Slicer,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._config = config
        self._replicas = replicas
        self._supervisor = supervisor
        timeout_s = config.value.cluster.replica_socket_timeout_ms / 1000
        # Several connections to each broker: the response to a marker waits for replicas, the progress of a hundred
        # thousand groups takes a while, and no verification of a produce should wait behind them.
        self._asking = Peers(f"broker-{node_id}-verifying", timeout_s, security)
        self._marking = Peers(f"broker-{node_id}-markers", timeout_s, security)
        self.fenced_members = FencedMembers(node_id, lambda: catalog.image, self._asking, supervisor)
        self._inquiring = Peers(f"broker-{node_id}-progress", timeout_s, security)
        leaders = PartitionLeaders(node_id, lambda: catalog.image)
        for_runtimes = (replicas, clock, executor, supervisor, slicer)
        self._group_runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            CONSUMER_OFFSETS,
            lambda context: GroupShard(
                context, config, lambda: catalog.image, self._bytes_of_groups, self.fenced_members.add
            ),
            decode_group_record,
            *for_runtimes,
        )
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_STATE,
            lambda context: TransactionShard(context, config, markers),
            decode_transaction_record,
            *for_runtimes,
        )
        verifier = Verifier(runtime, config, leaders, self._asking)
        remote = RemoteMarkers(self._marking, supervisor)
        markers = MarkerWriter(TRANSACTION_STATE, replicas, self._group_runtime, verifier.guards, leaders, remote)
        self._transaction_runtime = runtime
        self._share_runtime: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            SHARE_GROUP_STATE,
            lambda context: ShareShard(context, config, lambda: catalog.image),
            decode_share_record,
            *for_runtimes,
        )
        self.groups = GroupCoordinator(self._group_runtime, config)
        self.transactions = TransactionCoordinator(runtime, self._group_runtime, config, verifier)
        self.share = ShareCoordinator(self._share_runtime, config, self._delete_share_records)
        self._sharing = Peers(
            client_id=f"broker-{node_id}-share-state",
            timeout_s=SILENT_TIMEOUTS * config.value.coordinator.share_write_timeout_ms / 1000,
            security=security,
        )
        self.share_persister = RoutedPersister(
            node_id, lambda: catalog.image, self.share, RemoteShareState(self._sharing, supervisor), clock
        )
        self.share_groups = ShareGroupCoordinator(self._group_runtime, config, self.share_persister, supervisor)
        self.group_progress = GroupProgress(
            node_id, lambda: catalog.image, self._group_runtime, self._share_runtime, self._inquiring
        )
        self.latest_offsets = LatestOffsets(leaders, replicas, self._asking)

    def start(self) -> None:
        """Starts to load the shards. Groups first: transactions that are being completed write to their partitions."""
        image = self._catalog.image
        self._follow(image)
        self._delete_offsets_of_pending(image)
        self._supervisor.repeat(lambda: self._config.value.coordinator.share_prune_interval_ms, self.share.prune)

    def stop(self) -> None:
        self._share_runtime.stop()
        self._transaction_runtime.stop()
        self._group_runtime.stop()
        self._retain_peers(())

    def _bytes_of_groups(self) -> int:
        return sum(shard.memory.bytes for shard in self._group_runtime.shards())

    def _delete_share_records(self, index: int, before: int) -> None:
        partition = self._replicas.partition(SHARE_GROUP_STATE, index)
        if partition.log.log_start_offset < before <= partition.high_watermark:
            self._replicas.delete_records_before(partition, Offset(before))

    def _retain_peers(self, brokers: Iterable[BrokerRecord]) -> None:
        """Closes the connections to all other brokers. A request that waits there fails and is sent elsewhere."""
        for peers in (self._asking, self._marking, self._sharing, self._inquiring):
            peers.retain(brokers)

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """Called by ``ReplicaManager.on_role_change``. ``image_changed`` unloads the shards of removed partitions."""
        topic, index = partition.topic_partition
        if record is None:
            return
        if topic == TRANSACTION_STATE:
            self._transaction_runtime.role_taken(index)
        elif topic == SHARE_GROUP_STATE:
            self._share_runtime.role_taken(index)
        elif topic == CONSUMER_OFFSETS and self._group_runtime.role_taken(index):
            self._delete_offsets_of_pending(self._catalog.image)

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """To be called after the replica manager has got the same change; it may carry it out later."""
        if new.brokers is not old.brokers:
            self._retain_peers(new.brokers.values())
        if new.topics is old.topics:
            return
        if self._follow(new):
            self._delete_offsets_of_pending(new)
        deleted = {
            name: topic.topic_id
            for name, topic in old.topics.items()
            if (now := new.topics.get(name)) is not topic and (now is None or now.topic_id != topic.topic_id)
        }
        self.groups.delete_offsets_of_topics(frozenset(deleted))
        self.share_groups.delete_state_of_topics(frozenset(deleted.values()))

    def _delete_offsets_of_pending(self, image: ClusterImage) -> None:
        """Deletes the offsets of topics whose deletion is not complete.

        A crash may have interrupted it, or the topic was deleted while a shard moved here.
        """
        if self._catalog.pending_deletions:
            pending = self._catalog.pending_deletions
            self.groups.delete_offsets_of_topics(frozenset(pending.values()).difference(image.topics))
            self.share_groups.delete_state_of_topics(frozenset(pending))

    def _follow(self, image: ClusterImage) -> bool:
        """Returns whether the broker became the coordinator of more groups."""
        has_more = self._group_runtime.follow(image.topics.get(CONSUMER_OFFSETS), self._node_id)
        self._transaction_runtime.follow(image.topics.get(TRANSACTION_STATE), self._node_id)
        self._share_runtime.follow(image.topics.get(SHARE_GROUP_STATE), self._node_id)
        return has_more
