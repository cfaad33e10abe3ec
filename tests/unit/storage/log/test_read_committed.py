"""What a read_committed consumer sees, whatever producers do at the same time, is what a plain model says it may see.

The consumer does what clients do: it reads up to the last stable offset in pieces, gets the aborted transactions of
each piece, and leaves out the batches of a producer from its transaction's first offset to its abort marker.
"""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import BatchHeader
from skep.records.end_txn_marker import read_marker
from skep.records.record import batches_in
from skep.storage.log.log import Log

CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=100)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("abort"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """Records by what became of them; ``decided`` is what may be read of them, and to where."""

    def __init__(self) -> None:
        self.open: dict[int, list[int]] = {}
        self.committed: list[int] = []
        self.end = 0

    def write(self, producer: int, count: int) -> None:
        offsets = range(self.end, self.end + count)
        (self.open.setdefault(producer, []) if producer else self.committed).extend(offsets)
        self.end += count

    def mark(self, producer: int, committed: bool) -> None:
        offsets = self.open.pop(producer, [])
        if committed:
            self.committed += offsets
        self.end += 1

    def readable(self) -> tuple[list[int], int]:
        stable = min([self.end, *(offsets[0] for offsets in self.open.values())])
        return sorted(offset for offset in self.committed if offset < stable), stable


def consume(log: Log, offset: int, max_bytes: int) -> Iterator[int]:
    """The offsets that a read_committed consumer gets from ``offset`` on; ends where it would wait."""
    unstable = log.first_unstable_offset
    up_to = log.log_end_offset if unstable is None else unstable
    while True:
        piece = log.read(Offset(offset), max_bytes, up_to=up_to, at_least_one=True)
        if piece.file is None:
            assert offset == up_to
            return
        aborted = log.aborted_transactions(Offset(offset), piece.next_offset)
        coming = sorted(((one.first_offset, one.producer_id) for one in aborted), reverse=True)
        aborting: set[int] = set()
        for header, batch in batches_in(piece.file.read(piece.position, piece.size)):
            while coming and coming[-1][0] <= header.last_offset:
                aborting.add(coming.pop()[1])
            if not _is_left_out(header, batch, aborting):
                yield from (o for o in range(header.base_offset, header.next_offset) if o >= offset)
        offset = piece.next_offset


def _is_left_out(header: BatchHeader, batch: bytes, aborting: set[int]) -> bool:
    if header.is_control:
        marker = read_marker(batch)
        if marker is not None and not marker.committed:
            aborting.discard(header.producer_id)
        return True
    return header.is_transactional and header.producer_id in aborting


@given(steps=STEPS, max_bytes=st.integers(1, 1500), start=st.integers(0, 30))
def test_a_consumer_sees_the_committed_records_and_no_others(kit, steps, max_bytes: int, start: int) -> None:
    files, model = kit.files(), Model()
    log = kit.log(CONFIG, files)
    sequences = dict.fromkeys(range(1, 5), 0)
    for what, producer, count in steps:
        if what == "write":
            ids = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            kit.append(log, count, is_transactional=True, **ids)
            sequences[producer] += count
            model.write(producer, count)
        elif what == "plain":
            kit.append(log, count)
            model.write(0, count)
        elif what in ("commit", "abort"):
            log.append_marker(producer, 0, 0, what == "commit", LeaderEpoch(0), kit.now_ms)
            model.mark(producer, what == "commit")
        elif what == "restart":
            log.close()
            log = kit.log(CONFIG, files)
        else:
            log = kit.log(CONFIG, files, recovery_point=log.flushed_offset)
        log.producers.transactions.high_watermark_moved(log.log_end_offset)
        committed, stable = model.readable()
        assert (model.end if log.first_unstable_offset is None else log.first_unstable_offset) == stable
    committed, stable = model.readable()
    start = min(start, stable)
    assert list(consume(log, start, max_bytes)) == [offset for offset in committed if offset >= start]
