"""Transactions in compaction: records of aborted ones are removed, and markers when they are no longer needed.

A marker is needed as long as there are records of its transaction: without it a reader would take the committed for
undecided, or the aborted for committed. So it stays while the pass finds a batch of its transaction. The first pass
that finds none sets a delete horizon on the marker, as on a tombstone, and the marker is removed when that has passed
(KIP-534): a reader that began before has read it by then.

The batches of one log are passed in order, from some offset on, and only those that are transactional or control.
"""

from collections.abc import Iterable, Sequence

from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import read_marker
from skep.storage.segment.transaction_index import AbortedTransaction


class CleanedTransactions:
    """``retained`` collects the aborted transactions whose index entry is still needed, in the order of their
    markers."""

    def __init__(self, aborted: Iterable[Sequence[int]]) -> None:
        self.retained: list[AbortedTransaction] = []
        self._coming = sorted((AbortedTransaction._make(one) for one in aborted), key=lambda one: -one.first_offset)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_seen: set[int] = set()
        self._committed_seen: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Returns whether this transactional batch belongs to an aborted transaction."""
        self._begin(header)
        if header.producer_id in self._aborted:
            self._aborted_seen.add(header.producer_id)
            return True
        self._committed_seen.add(header.producer_id)
        return False

    def is_marker_free(self, header: BatchHeader, batch: bytes) -> bool:
        """Returns whether no record of this marker's transaction is left, or the marker's own record is gone."""
        self._begin(header)
        if header.records_count == 0:
            return True
        marker = read_marker(batch)
        if marker is None:
            return False
        producer_id = header.producer_id
        if marker.committed:
            was_seen = producer_id in self._committed_seen
            self._committed_seen.discard(producer_id)
            return not was_seen
        aborted = self._aborted.pop(producer_id, None)
        was_seen = producer_id in self._aborted_seen
        self._aborted_seen.discard(producer_id)
        if aborted is not None and was_seen:
            self.retained.append(aborted)
            return False
        return True

    def _begin(self, header: BatchHeader) -> None:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            aborted = self._coming.pop()
            # The first batch may follow the marker of an earlier transaction of the same producer.
            if aborted.last_offset >= header.base_offset:
                self._aborted.setdefault(aborted.producer_id, aborted)
