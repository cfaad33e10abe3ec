"""Compaction for tests: a whole pass in this process, a log's records as a reader sees them, and Kafka's rules again.

The model knows nothing of segments, batches on disk, codecs or kernels: a plain list of what was appended.
"""

from dataclasses import dataclass, field, replace

from skep.base.files.files import Files
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.end_txn_marker import read_marker
from skep.records.record import batches_in, iterate_records
from skep.storage.compaction.compaction_pass import CompactionPass
from skep.storage.compaction.compaction_plan import PassResult, cleanable, request_for
from skep.storage.log.log import Log
from skep.storage.log.segment_swap import commit, remove_leftovers

MAP_BYTES = 1 << 20


def compact(
    files: Files, log: Log, now_ms: int, *, cleaned_up_to: Offset | None = None, map_bytes: int = MAP_BYTES
) -> PassResult | None:
    """One pass over all that can be compacted, swapped in; None when there is nothing."""
    stable = log.first_unstable_offset
    limit = log.log_end_offset if stable is None else stable
    what = cleanable(log, cleaned_up_to, limit, now_ms)
    if not what.segments:
        return None
    remove_leftovers(files, log.path)
    request = request_for(
        log,
        what,
        log.producers.last_records(),
        high_watermark=log.log_end_offset,
        now_ms=now_ms,
        map_bytes=map_bytes,
        max_bytes_per_second=0,
    )
    compaction = CompactionPass(files, request, lambda size: None)
    for group in compaction.run():
        old = [segment for segment in log.segments if segment.base_offset in group.sources]
        swap = log.replace(old, commit(files, log.path, group.outputs, now_ms))
        swap.mark()
        swap.remove()
    return compaction.result()


@dataclass(frozen=True)
class Kept:
    """A record of the model, or of a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


def records_of(log: Log) -> list[Kept]:
    """All records with their offsets, control records too, as they are in the segments; every batch is checked."""
    records, next_offset = [], 0
    for segment in log.segments:
        assert segment.base_offset >= next_offset
        for header, batch in batches_in(segment.file.read(0, segment.size)):
            assert is_intact(batch)
            assert header.base_offset >= next_offset
            next_offset = header.next_offset
            found = list(iterate_records(batch))
            assert len(found) == header.records_count
            if found and not header.is_append_time:
                assert header.max_timestamp == max(record.timestamp for record in found)
            records += [Kept(record.offset, record.key, record.value, record.timestamp) for record in found]
    assert next_offset <= log.log_end_offset
    return records


@dataclass
class ModelBatch:
    base_offset: int
    records: list[Kept]
    producer_id: int = -1
    is_transactional: bool = False
    committed: bool | None = None
    """Of a marker; None for data."""
    last_offset: int = 0
    horizon_ms: int | None = None


@dataclass
class Model:
    """A log as a list of batches, and one pass of compaction over it by the book."""

    batches: list[ModelBatch] = field(default_factory=list)

    def compact(
        self, first_dirty: int, end: int, now_ms: int, delete_retention_ms: int, last_offsets: set[int]
    ) -> None:
        """``last_offsets`` are those whose batches stay, be they empty."""
        aborted = self._aborted_batches()
        newest: dict[bytes, int] = {}
        for batch in self.batches:
            if batch.committed is None and id(batch) not in aborted:
                for record in batch.records:
                    if record.key is not None and first_dirty <= record.offset < end:
                        newest[record.key] = record.offset
        free = self._free_markers()
        kept = []
        for batch in self.batches:
            if batch.base_offset < end:
                self._clean(batch, newest, id(batch) in aborted, id(batch) in free, now_ms, delete_retention_ms)
            if batch.records or batch.last_offset in last_offsets or batch.base_offset >= end:
                kept.append(batch)
        self.batches = kept

    @staticmethod
    def _clean(
        batch: ModelBatch, newest: dict[bytes, int], is_aborted: bool, is_free: bool, now_ms: int, retention_ms: int
    ) -> None:
        is_over = batch.horizon_ms is not None and batch.horizon_ms <= now_ms
        if batch.committed is not None:
            if is_free and is_over:
                batch.records = []
            elif is_free and batch.horizon_ms is None:
                batch.horizon_ms = now_ms + retention_ms
            return
        batch.records = [
            record
            for record in batch.records
            if not is_aborted
            and record.key is not None
            and record.offset >= newest.get(record.key, -1)
            and not (record.value is None and is_over)
        ]
        if batch.horizon_ms is None and any(record.value is None for record in batch.records):
            batch.horizon_ms = now_ms + retention_ms

    def _aborted_batches(self) -> set[int]:
        aborted: set[int] = set()
        ongoing: dict[int, list[int]] = {}
        for batch in self.batches:
            if batch.is_transactional and batch.committed is None:
                ongoing.setdefault(batch.producer_id, []).append(id(batch))
            elif batch.committed is not None:
                begun = ongoing.pop(batch.producer_id, [])
                aborted |= set() if batch.committed else set(begun)
        return aborted

    def _free_markers(self) -> set[int]:
        """Markers of transactions of which no batch is there, be it an empty one."""
        free, begun = set(), set()
        for batch in self.batches:
            if batch.is_transactional and batch.committed is None:
                begun.add(batch.producer_id)
            elif batch.committed is not None:
                free |= set() if batch.producer_id in begun else {id(batch)}
                begun.discard(batch.producer_id)
        return free

    def records(self) -> list[Kept]:
        return [record for batch in self.batches for record in batch.records]


@dataclass
class Writer:
    """Appends to a log and to the model alike."""

    log: Log
    model: Model = field(default_factory=Model)
    sequences: dict[int, int] = field(default_factory=dict)

    def data(
        self,
        pairs: list[tuple[bytes | None, bytes | None]],
        now_ms: int,
        *,
        codec: int = 0,
        producer_id: int = -1,
        is_transactional: bool = False,
    ) -> None:
        sequence = self.sequences.get(producer_id, 0)
        options = (
            {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        )
        records = [NewRecord(key, value, now_ms + n) for n, (key, value) in enumerate(pairs)]
        batch = build_batch(records, codec=codec, is_transactional=is_transactional, **options)
        appended = self.log.append(batch, read_header(batch), LeaderEpoch(0), now_ms)
        self.sequences[producer_id] = sequence + len(pairs)
        kept = [
            Kept(appended.base_offset + n, record.key, record.value, record.timestamp)
            for n, record in enumerate(records)
        ]
        last_offset = appended.base_offset + len(pairs) - 1
        self.model.batches.append(
            ModelBatch(appended.base_offset, kept, producer_id, is_transactional, last_offset=last_offset)
        )

    def marker(self, producer_id: int, now_ms: int, *, committed: bool) -> None:
        appended = self.log.append_marker(producer_id, 0, 0, committed, LeaderEpoch(0), now_ms)
        segment = self.log.segments[-1]
        place = segment.find(appended.base_offset, segment.size)
        assert place is not None
        batch = segment.file.read(place.position, place.size)
        assert read_marker(batch) is not None
        kept = [Kept(r.offset, r.key, r.value, r.timestamp) for r in iterate_records(batch)]
        offset = appended.base_offset
        self.model.batches.append(ModelBatch(offset, kept, producer_id, True, committed, offset))

    def last_offsets(self) -> set[int]:
        return {offset for _, offset, _ in self.log.producers.last_records() if offset >= 0}


def without_timestamps(records: list[Kept]) -> list[Kept]:
    return [replace(record, timestamp=0) for record in records]
