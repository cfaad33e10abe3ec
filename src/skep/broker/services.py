"""What handlers work on: one object with the broker's parts, made by ``app.py``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.loop.slicer import Slicer
from skep.base.loop.threads import Threads
from skep.broker.cluster.departed_brokers import Departed
from skep.broker.cluster.producer_ids import ProducerIds
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.fetch.follower_fetch import ThrottledReplicas
from skep.broker.partition_count import PartitionCount
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.transactions.transaction_coordinator import TransactionCoordinator
from skep.metadata.catalog import Catalog
from skep.metadata.model import BrokerRecord
from skep.replication.partition.time_lookups import TimeLookups
from skep.replication.replica_manager import Replicas


@dataclass
class Services:
    """``config`` is the one in force, replaced when an option changes; ``static_config`` is what was set at start."""

    config: BrokerConfig
    static_config: Mapping[str, str]
    node: BrokerRecord
    catalog: Catalog
    replicas: Replicas
    clock: Clock
    threads: Threads
    time_lookups: TimeLookups
    slicer: Slicer
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    groups: CoordinatorRuntime[GroupShard]
    transactions: TransactionCoordinator
    partition_count: PartitionCount = field(default_factory=PartitionCount)
    throttled_replicas: ThrottledReplicas = field(init=False)
    departed: Departed = field(init=False)

    def __post_init__(self) -> None:
        self.departed = Departed(self.catalog, self.clock)
        self.throttled_replicas = ThrottledReplicas(
            self.catalog,
            lambda: self.node.id,
            self.clock,
            lambda: self.config.leader_replication_throttled_rate,
        )
