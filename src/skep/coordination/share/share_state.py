"""The durable delivery state of a share partition, and the interface of its persister.

The leader of a partition delivers its records to the members of a share group. It writes the state of each delivery to
the share coordinator before it acknowledges anything to a member, and a new leader reads the state from there. Only
the ranges whose state is not the initial one are kept: everything from ``start_offset`` on that no batch covers has
not been delivered yet, or was acquired when its leader stopped.

Kafka has a state and a delivery count for each range. ``failures``, ``not_before_ms`` and ``reason`` are Skep's own,
for groups that ask for retries with a delay or for dead letters.
"""

import enum
import functools
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


class Reason(enum.IntEnum):
    """Why a record goes to the dead-letter topic. The numbers are those of the log."""

    NONE = 0
    REJECTED = 1
    LIMIT = 2
    """Its deliveries are used up."""
    EXPIRED = 3
    """It is older than the group wants (``skep.share.record.ttl.ms``)."""
    DELETED = 4
    """It was deleted from the log, mostly by retention, after it was delivered and before it was done with."""


REASONS = {reason.value: reason for reason in Reason}


class DeadLetters(NamedTuple):
    """Records whose dead letter is not written yet."""

    first: int
    last: int
    reason: Reason
    delivery_count: int
    text: str = ""
    """The member's text about the failure, if this broker has received one."""


class SharePartitionKey(NamedTuple):
    """A share partition: one partition for one group."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key under which FindCoordinator finds the share coordinator."""
        return _coordinator_key(self)


@functools.lru_cache(maxsize=10_000)
def _coordinator_key(key: SharePartitionKey) -> str:
    return f"{key.group_id}:{id_text(key.topic_id)}:{key.partition}"


class StateBatch(NamedTuple):
    """The state of the offsets from ``first`` to ``last``, both inclusive. Kafka: PersisterStateBatch."""

    first: int
    last: int
    state: DeliveryState
    delivery_count: int
    failures: int = 0
    """How many of the deliveries have failed, if the group counts them apart."""
    not_before_ms: int = 0
    """The wall-clock time before which it is not delivered again; 0 for none."""
    reason: Reason = Reason.NONE
    """Of a record in state ``ARCHIVING``."""


class ShareState(NamedTuple):
    """The state as it is kept: ``batches`` are ascending and disjoint, none is below ``start_offset``."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNINITIALIZED
    """The number of offsets from ``start_offset`` on that need no further delivery (KIP-1226)."""
    batches: Sequence[StateBatch] = ()
    generation: int = 0
    """How often a leader has replaced the state within its state epoch."""


def generation_text(state_epoch: int, generation: int) -> str:
    """Returns what changes whenever finished records are opened again, or the offsets of the group are reset."""
    return f"{state_epoch}.{generation}"


class SharePersister(Protocol):
    """Keeps the state of share partitions. Every method raises KafkaError: FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH,
    UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR and whatever a request to another broker may meet."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None: ...

    async def read(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        """Fences the leaders of earlier epochs: none of their writes succeeds after this."""
        ...

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        """Merges ``state.batches`` into the state and moves its start; ``UNINITIALIZED`` leaves the start where it is.
        Returns when the change is committed.

        With a higher generation than the current one, ``state`` replaces the whole state instead, and may move its
        start back. Writes of earlier generations are fenced from then on, so that a late copy of one cannot undo it.
        """
        ...

    def commits_at_once(self, key: SharePartitionKey) -> bool:
        """Whether ``write_now`` can write: the coordinator is on this broker, and has no followers to wait for."""
        ...

    def write_now(self, key: SharePartitionKey, state: ShareState) -> bool:
        """Does what ``write`` does, without waiting. Returns False if that is not possible now, and ``write`` has to
        try it."""
        ...

    async def summary(self, key: SharePartitionKey) -> ShareState:
        """Returns the state without its batches, for lag and offsets. Does not fence other leaders."""
        ...

    async def delete(self, key: SharePartitionKey) -> None: ...
