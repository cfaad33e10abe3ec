"""What coordinators need of partitions: a log to write their records to, and logs to end transactions in.

Whoever puts a broker together gives them the partitions of ``replication``, which coordinators need not know.
"""

import asyncio
from typing import Protocol

from skep.base.ids import LeaderEpoch
from skep.records.batch import BatchHeader
from skep.storage.log import Appended, Log

Committed = asyncio.Future[None] | None
"""When an append may be acknowledged; None: now. Fails with StorageError when it never will."""


class WritablePartition(Protocol):
    @property
    def log(self) -> Log: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    def append(self, batch: bytes, header: BatchHeader) -> tuple[Appended, Committed]: ...

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> tuple[Appended, Committed]: ...

    def committed(self) -> Committed:
        """Of all that is in the log now."""
        ...


class Partitions(Protocol):
    def partition(self, topic: str, index: int) -> WritablePartition:
        """KafkaError when there is none, StorageError when its files cannot be opened."""
        ...

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have been written to."""
        ...
