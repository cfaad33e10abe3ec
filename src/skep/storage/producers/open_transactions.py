"""The undecided transactions of a log, and so the offset at which a read_committed reader has to stop.

A transaction begins with the producer's first transactional batch in the log and ends with a marker, which commits or
aborts all of it. Between the two it is undecided. Worked example, producers A and B::

    offset   0  1  2  3  4  5  6
    batch    A  -  B  A  A! B  B!      A! and B! are markers

    before 4   undecided: A from 0, B from 2     first unstable offset 0
    after  4   undecided: B from 2               2, once the high watermark has passed 4
    after  6   none                              none, once it has passed 6

A marker that is not below the high watermark may still be lost with its leader, so until then its transaction counts as
undecided too. An aborted transaction is stored with the *last stable offset* at its marker: no transaction with a later
marker begins before that. So a search through the aborted ones, which are in the order of their markers, may stop at
the first whose last stable offset is past the range of the search. If A had been aborted above, it would be stored as
(A, 0 to 4, last stable offset 2): a search for [0, 1] stops there.
"""

from collections import deque
from collections.abc import Iterable

from skep.base.ids import Offset
from skep.storage.segment.transaction_index import AbortedTransaction


class Transactions:
    """The undecided transactions of one log; ``first_unstable_offset`` is where the oldest of them begins.

    ``ongoing`` maps producer ids to first offsets, in the order of these offsets, since each begins at the log end.
    ``_ended`` has those whose marker is not below the high watermark yet, as (marker's offset, first offset).
    """

    __slots__ = ("_ended", "_oldest_ended", "first_unstable_offset", "ongoing")

    def __init__(self, ongoing: Iterable[tuple[int, Offset]] = ()) -> None:
        self.ongoing: dict[int, Offset] = dict(sorted(ongoing, key=lambda begun: begun[1]))
        self.first_unstable_offset: Offset | None = None
        self._ended: deque[tuple[Offset, Offset]] = deque()
        self._oldest_ended: Offset | None = None
        self._changed()

    def begin(self, producer_id: int, offset: Offset) -> None:
        """Notes a transactional batch at ``offset``, which begins the producer's transaction or belongs to it."""
        if producer_id not in self.ongoing:
            self.ongoing[producer_id] = offset
            if self.first_unstable_offset is None:
                self.first_unstable_offset = offset

    def end(self, producer_id: int, marker_offset: Offset) -> AbortedTransaction | None:
        """Notes the producer's marker; returns the transaction as it is stored if it was aborted.

        Returns None when the producer had no transaction: the marker then changes nothing for readers.
        """
        first_offset = self.ongoing.pop(producer_id, None)
        if first_offset is None:
            return None
        self._ended.append((marker_offset, first_offset))
        if self._oldest_ended is None or first_offset < self._oldest_ended:
            self._oldest_ended = first_offset
        undecided = next(iter(self.ongoing.values()), None)
        last_stable_offset = Offset(marker_offset + 1) if undecided is None else undecided
        self._changed()
        return AbortedTransaction(producer_id, first_offset, marker_offset, last_stable_offset)

    def high_watermark_moved(self, high_watermark: Offset) -> None:
        """Drops the transactions whose marker is below the high watermark: they are decided."""
        ended = self._ended
        if not ended or ended[0][0] >= high_watermark:
            return
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        self._oldest_ended = min((first_offset for _, first_offset in ended), default=None)
        self._changed()

    def _changed(self) -> None:
        oldest, undecided = self._oldest_ended, next(iter(self.ongoing.values()), None)
        if oldest is None or undecided is None:
            self.first_unstable_offset = undecided if oldest is None else oldest
        else:
            self.first_unstable_offset = min(oldest, undecided)
