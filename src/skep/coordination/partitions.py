"""What coordinators need of partitions: a log for their records, and logs in which to end transactions.

The application passes in the partitions of ``replication``, which coordinators do not depend on.
"""

import asyncio
from typing import Protocol

from skep.base.ids import LeaderEpoch
from skep.records.batch import BatchHeader
from skep.storage.log.log import Appended, Log

Committed = asyncio.Future[None] | None
"""Done when an append may be acknowledged; None means now.

Fails when nobody can say whether it ever will be: with StorageError, or with KafkaError when leadership was lost
(NOT_LEADER_OR_FOLLOWER) or too few replicas are in sync (NOT_ENOUGH_REPLICAS_AFTER_APPEND). Several callers may wait
for one future.
"""


class WritablePartition(Protocol):
    """A partition that this broker leads, or has led: its methods raise NOT_LEADER_OR_FOLLOWER when it no longer
    does."""

    @property
    def log(self) -> Log: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def is_replicated(self) -> bool:
        """Whether another replica could become the leader."""
        ...

    @property
    def commits_at_once(self) -> bool:
        """Whether what is appended is committed when ``append`` returns."""
        ...

    def check_leads(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER when another broker may lead the partition without our knowing."""
        ...

    def append(self, batch: bytes, header: BatchHeader) -> tuple[Appended, Committed]: ...

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        *,
        raises_epoch: bool = False,
    ) -> tuple[Appended, Committed]: ...

    def committed(self) -> Committed:
        """Returns when everything that is in the log now is committed."""
        ...


class Partitions(Protocol):
    def partition(self, topic: str, index: int) -> WritablePartition:
        """Returns a partition that this broker leads. Raises KafkaError when it does not, StorageError when it cannot
        be opened."""
        ...

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have files, written here or copied from another leader."""
        ...
