"""The parts of the broker that handlers use, in one object that ``app.py`` makes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.loop.slicer import Slicer
from skep.base.loop.threads import Threads
from skep.broker.cluster.departed_brokers import DepartedBrokers
from skep.broker.cluster.group_progress import GroupProgress
from skep.broker.cluster.latest_offsets import LatestOffsets
from skep.broker.cluster.producer_ids import ProducerIds
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.fetch.follower_fetch import ThrottledReplicas
from skep.broker.share.share_partitions import SharePartitions
from skep.broker.share.share_sessions import ShareSessions
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.transactions.transaction_coordinator import TransactionCoordinator
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord
from skep.replication.partition.time_lookups import TimeLookups
from skep.replication.replica_manager import ReplicaManager
from skep.security.security import Security


class PartitionCount:
    """Counts partitions against ``skep.max.partitions``.

    ``being_created`` counts the partitions of accepted requests that are not in the image yet.
    """

    def __init__(self) -> None:
        self.being_created = 0
        self._image: ClusterImage | None = None
        self._in_image = 0

    def held(self, image: ClusterImage) -> int:
        # Counted once per image: a request may name ten thousand topics, as many may exist, and most are refused.
        if image is not self._image:
            self._image = image
            self._in_image = sum(len(topic.partitions) for topic in image.topics.values())
        return self._in_image + self.being_created


@dataclass
class Services:
    """``current_config`` holds the options in force; ``static_config`` are those that were set at start."""

    current_config: CurrentConfig
    static_config: Mapping[str, str]
    node: BrokerRecord
    catalog: Catalog
    replicas: ReplicaManager
    clock: Clock
    threads: Threads
    time_lookups: TimeLookups
    slicer: Slicer
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_groups: ShareGroupCoordinator
    share: ShareCoordinator
    latest_offsets: LatestOffsets
    group_progress: GroupProgress
    share_partitions: SharePartitions
    partition_count: PartitionCount = field(default_factory=PartitionCount)
    throttled_replicas: ThrottledReplicas = field(init=False)
    share_sessions: ShareSessions = field(init=False)
    departed: DepartedBrokers = field(init=False)
    security: Security = field(init=False)

    def __post_init__(self) -> None:
        self.security = Security(self.current_config, lambda: self.catalog.image, self.clock)
        self.departed = DepartedBrokers(self.catalog, self.clock)
        self.share_sessions = ShareSessions(self.share_partitions, self._share_session_limits)
        self.throttled_replicas = ThrottledReplicas(self.catalog, self.node.id, self.clock, self.current_config)

    @property
    def config(self) -> BrokerConfig:
        """The options in force."""
        return self.current_config.value

    def _share_session_limits(self) -> tuple[int, int]:
        return self.config.share.max_share_sessions, self.config.max_fetch_session_partitions
