"""What handlers work on: one object with the broker's parts, made by ``app.py``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from skep.base.broker_config import BrokerConfig
from skep.base.clock import Clock
from skep.base.slicer import Slicer
from skep.base.threads import Threads
from skep.broker.departed import Departed
from skep.broker.fetch_sessions import FetchSessions
from skep.broker.follower_fetch import ThrottledReplicas
from skep.broker.partition_count import PartitionCount
from skep.broker.producer_ids import ProducerIds
from skep.coordination.groups.shard import GroupShard
from skep.coordination.runtime import CoordinatorRuntime
from skep.coordination.transactions.coordinator import TransactionCoordinator
from skep.metadata.catalog import Catalog
from skep.metadata.model import BrokerRecord
from skep.replication.replicas import Replicas
from skep.replication.time_lookups import TimeLookups


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
