"""Finds the batches of a Fetch response that belong to aborted transactions, as Kafka's consumer does.

The response lists the aborted transactions, each with its producer and first offset. In the order of the batches, a
producer is in an aborted transaction from that offset on until its abort marker. A commit marker changes nothing:
before it the producer's earlier transaction, if that was aborted, has been ended by a marker of its own.
"""

from collections import deque
from collections.abc import Sequence

from skep.records.end_txn_marker import read_marker


class AbortedTransactions:
    """Called for each batch with a producer id, in the order of the log."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._to_come = deque(sorted((first_offset, producer_id) for producer_id, first_offset in aborted))
        self._producers: set[int] = set()

    def is_aborted(
        self, producer_id: int, last_offset: int, *, is_transactional: bool, control_batch: bytes | None
    ) -> bool:
        """Returns whether the records of the batch were aborted; False for a control batch."""
        while self._to_come and self._to_come[0][0] <= last_offset:
            self._producers.add(self._to_come.popleft()[1])
        if control_batch is not None:
            marker = read_marker(control_batch)
            if marker is not None and not marker.committed:
                self._producers.discard(producer_id)
            return False
        return is_transactional and producer_id in self._producers
