"""The durable delivery state of a share partition, and the interface of whoever keeps it.

The leader of a partition delivers its records to the members of a share group. It writes the state of each delivery to
the share coordinator before it acknowledges anything to a member, and a new leader reads the state from there. Only
the ranges whose state is not the initial one are kept: everything from ``start_offset`` on that no batch covers has
not been delivered yet, or was acquired when its leader stopped.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from skep.base.ids import LeaderEpoch
from skep.metadata.model import id_text

UNINITIALIZED = -1
"""As a start offset: the leader chooses one by share.auto.offset.reset. As a complete count: unknown."""


class DeliveryState(enum.IntEnum):
    """Kafka: RecordState. The numbers are those of the log and of the protocol."""

    AVAILABLE = 0
    ACQUIRED = 1
    """In memory only: what was acquired by a member is available again when the leader stops."""
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """To be written to the dead-letter topic."""
    ARCHIVED = 4


DELIVERY_STATES = {state.value: state for state in DeliveryState}
"""By their numbers: much faster than ``DeliveryState(number)``, and a state may have thousands of batches."""


class SharePartitionKey(NamedTuple):
    """What one group knows of one partition."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key under which FindCoordinator finds the share coordinator."""
        return f"{self.group_id}:{id_text(self.topic_id)}:{self.partition}"


class StateBatch(NamedTuple):
    """The state of the offsets from ``first`` to ``last``, both inclusive. Kafka: PersisterStateBatch."""

    first: int
    last: int
    state: DeliveryState
    delivery_count: int


class ShareState(NamedTuple):
    """The state as it is kept: ``batches`` are ascending and disjoint, none is below ``start_offset``."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNINITIALIZED
    """The number of offsets from ``start_offset`` on that need no further delivery (KIP-1226)."""
    batches: Sequence[StateBatch] = ()


class SharePersister(Protocol):
    """Keeps the state of share partitions. Every method raises KafkaError: FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR and whatever a request to another broker may meet."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None: ...

    async def read(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        """Fences the leaders of earlier epochs: none of their writes succeeds after this."""
        ...

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        """Merges ``state.batches`` into the state and moves its start; ``UNINITIALIZED`` leaves the start where it is.
        Returns when the change is committed."""
        ...

    async def summary(self, key: SharePartitionKey) -> ShareState:
        """Returns the state without its batches, for lag and offsets. Fences nobody."""
        ...

    async def delete(self, key: SharePartitionKey) -> None: ...
