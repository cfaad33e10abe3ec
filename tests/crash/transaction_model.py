"""What a log's batches mean for transactions, worked out anew from the bytes by the slowest and plainest means.

It shares nothing with ``storage/`` but the record format: a reader that knows the whole log, and asks of each record
what became of its transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import read_marker


@dataclass
class View:
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its transaction."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, marker's offset), in the order of the markers."""
    committed: list[int] = field(default_factory=list)
    """The offsets of records, other than markers, that were committed or never in a transaction."""
    end: int = 0

    @property
    def last_stable_offset(self) -> int:
        return min([*self.open.values(), self.end])


def view_of(batches: Iterable[tuple[BatchHeader, bytes]], end: int) -> View:
    view = View(end=end)
    pending: dict[int, list[int]] = {}
    for header, batch in batches:
        offsets = list(range(header.base_offset, header.base_offset + header.last_offset_delta + 1))
        if header.is_control:
            marker = read_marker(batch)
            assert marker is not None
            first = view.open.pop(header.producer_id, None)
            written = pending.pop(header.producer_id, [])
            if marker.committed:
                view.committed += written
            elif first is not None:
                view.aborted.append((header.producer_id, first, header.base_offset))
        elif header.is_transactional:
            view.open.setdefault(header.producer_id, header.base_offset)
            pending.setdefault(header.producer_id, []).extend(offsets)
        else:
            view.committed += offsets
    view.committed.sort()
    return view
