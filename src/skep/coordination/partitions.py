"""What coordinators need of partitions: a log to write their records to, and logs to end transactions in.

Whoever puts a broker together gives them the partitions of ``replication``, which coordinators need not know.
"""

import asyncio
from typing import Protocol

from skep.base.ids import LeaderEpoch
from skep.records.batch import BatchHeader
from skep.storage.log.log import Appended, Log

Committed = asyncio.Future[None] | None
"""When an append may be acknowledged; None: now.

Fails when nobody can say that it ever will: with StorageError, or with KafkaError when leadership was lost
(NOT_LEADER_OR_FOLLOWER) or too few replicas are in sync (NOT_ENOUGH_REPLICAS_AFTER_APPEND). Several may wait on one.
"""


class WritablePartition(Protocol):
    """A partition that this broker leads, or has led: KafkaError NOT_LEADER_OR_FOLLOWER when it does so no more."""

    @property
    def log(self) -> Log: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def is_replicated(self) -> bool:
        """Whether there are others that can come to lead it."""
        ...

    def check_leads(self) -> None:
        """NOT_LEADER_OR_FOLLOWER when another broker may lead it by now without our knowing."""
        ...

    def append(self, batch: bytes, header: BatchHeader) -> tuple[Appended, Committed]: ...

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> tuple[Appended, Committed]: ...

    def committed(self) -> Committed:
        """Of all that is in the log now."""
        ...


class Partitions(Protocol):
    def partition(self, topic: str, index: int) -> WritablePartition:
        """One that is led here; KafkaError when there is none, StorageError when its files cannot be opened."""
        ...

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have been written to, here or by another leader that they were copied from."""
        ...
