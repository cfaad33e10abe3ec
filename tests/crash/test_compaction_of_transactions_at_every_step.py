"""Compaction of a log with transactions is stopped at every write, rename and sync; readers see the committed, and all.

The reader here does what a client does with isolation.level=read_committed: it reads up to the last stable offset and
leaves out what the log's index of aborted transactions tells it to. So a marker that goes too early, an entry that is
lost with a swap, or one that comes back, shows in what it gets.
"""

import uuid
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.end_txn_marker import read_marker
from skep.records.record import batches_in, iterate_records
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from tests.compacting import compact
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles, Survivors

PATH = "/var/data"
HOUR_MS = 3_600_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=700, index_interval_bytes=150, delete_retention_ms=HOUR_MS
)
TOPIC_ID = uuid.UUID(int=7)
TABLE = TopicPartition("table", 0)
COMMITS, ABORTS, SPANS, ONCE = 1, 2, 3, 4
"""Producers, by what becomes of their transactions. One has a transaction that reaches over several segments, one has
only one, whose record is never replaced, so that its marker is needed for ever."""

CRASHES = [
    (Survivors.SYNCED, Survivors.SYNCED),
    (Survivors.TORN, Survivors.TORN),
    (Survivors.ALL, Survivors.SYNCED),
    (Survivors.ALL, Survivors.ALL),
]


@dataclass(frozen=True)
class Written:
    """What lies at one offset: a record, of a transaction or not, or a marker."""

    key: bytes = b""
    value: bytes = b""
    producer_id: int = -1
    committed: bool | None = None
    """Of a marker."""


@dataclass
class Workload:
    files: MemoryFiles
    clock: ManualClock = field(default_factory=ManualClock)
    written: list[Written] = field(default_factory=list)
    """By offset."""
    flushed_end: int = 0

    def run(self) -> None:
        directory = self.opened()
        log = directory.log(TABLE, CONFIG, TOPIC_ID)
        self.append(log, b"once", b"committed", ONCE)
        self.end(log, ONCE, committed=True)
        for generation in range(2):
            for n in range(6):
                self.append(log, b"key-%d" % (n % 3), b"committed %d %d" % (generation, n), COMMITS)
                self.append(log, b"key-%d" % (n % 2), b"aborted %d %d" % (generation, n), ABORTS)
                if (generation, n) in ((0, 4), (1, 1)):
                    self.append(log, b"key-0", b"aborted late", SPANS)
                if n % 3 == 2:
                    self.end(log, ABORTS, committed=False)
                    self.end(log, COMMITS, committed=True)
                if n == 3:
                    self.append(log, b"plain", b"%d" % generation)
            if generation == 1:
                self.end(log, SPANS, committed=False)
                self.append(log, b"key-2", b"undecided", ABORTS)
            self.flush(log)
            self.compact(directory, log)
            self.clock.advance_ms(2 * HOUR_MS)
        self.compact(directory, log)
        self.clock.advance_ms(2 * HOUR_MS)
        self.compact(directory, log)
        directory.close()

    def opened(self) -> LogDirectory:
        directory = LogDirectory(self.files, PATH, self.clock)
        directory.open()
        return directory

    def append(self, log: Log, key: bytes, value: bytes, producer_id: int = -1) -> None:
        is_transactional = producer_id >= 0
        sequence = sum(one.producer_id == producer_id and one.committed is None for one in self.written)
        options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        record = NewRecord(key, value, self.clock.now_ms())
        batch = build_batch([record], is_transactional=is_transactional, **options if is_transactional else {})
        self.written.append(Written(key, value, producer_id))
        log.append(batch, read_header(batch), LeaderEpoch(0), self.clock.now_ms())

    def end(self, log: Log, producer_id: int, *, committed: bool) -> None:
        self.written.append(Written(producer_id=producer_id, committed=committed))
        log.append_marker(producer_id, 0, 0, committed, LeaderEpoch(0), self.clock.now_ms())
        log.producers.transactions.high_watermark_moved(log.log_end_offset)

    def flush(self, log: Log) -> None:
        log.flush()
        self.flushed_end = log.log_end_offset

    def compact(self, directory: LogDirectory, log: Log) -> None:
        before = directory.cleaned_up_to(TABLE) or log.log_start_offset
        directory.note_cleaned(TABLE, before)
        directory.write_checkpoints()
        result = compact(self.files, log, self.clock.now_ms(), cleaned_up_to=before)
        if result is not None:
            directory.note_cleaned(TABLE, result.clean_up_to)
            directory.write_checkpoints()

    def undecided(self) -> dict[int, int]:
        """Producer id -> where its transaction begins."""
        begun: dict[int, int] = {}
        for offset, one in enumerate(self.written):
            if one.committed is not None:
                begun.pop(one.producer_id, None)
            elif one.producer_id >= 0:
                begun.setdefault(one.producer_id, offset)
        return begun

    def committed_table(self) -> dict[bytes, bytes]:
        """The newest value of each key that a read_committed reader may have."""
        stable = min(self.undecided().values(), default=len(self.written))
        table: dict[bytes, bytes] = {}
        for offset, one in enumerate(self.written[:stable]):
            if one.committed is None and (one.producer_id < 0 or self._outcome(offset)):
                table[one.key] = one.value
        return table

    def _outcome(self, offset: int) -> bool:
        later = self.written[offset:]
        producer_id = later[0].producer_id
        return next(one.committed for one in later if one.producer_id == producer_id and one.committed is not None)


def read_committed(workload: Workload, log: Log) -> dict[bytes, bytes]:
    """What a client ends up with that reads the log piece by piece; each record is the one that was written."""
    log.producers.transactions.high_watermark_moved(log.log_end_offset)
    end = log.first_unstable_offset
    end = log.log_end_offset if end is None else end
    table: dict[bytes, bytes] = {}
    offset, aborting = log.log_start_offset, set()
    while offset < end:
        piece = log.read(offset, 300, up_to=end, at_least_one=True)
        if piece.file is None:
            break
        coming = sorted(log.aborted_transactions(offset, piece.next_offset), key=lambda one: one.first_offset)
        for header, batch in batches_in(piece.file.read(piece.position, piece.size)):
            while coming and coming[0].first_offset <= header.last_offset:
                aborting.add(coming.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.committed:
                    aborting.discard(header.producer_id)
                continue
            for record in iterate_records(batch):
                one = workload.written[record.offset]
                assert (record.key, record.value, header.producer_id) == (one.key, one.value, one.producer_id)
                if not (header.is_transactional and header.producer_id in aborting):
                    table[one.key] = one.value
        offset = piece.next_offset
    return table


def check(workload: Workload, log: Log) -> None:
    """``workload.written`` ends where the log does."""
    assert log.producers.transactions.ongoing == workload.undecided()
    assert read_committed(workload, log) == workload.committed_table()
    ends = [Offset(1 << 62)] if log.segments else []
    ends = [*(segment.base_offset for segment in log.segments[1:]), *ends]
    for segment, end in zip(log.segments, ends, strict=True):
        markers = [aborted.last_offset for aborted in segment.transaction_index.transactions()]
        assert all(segment.base_offset <= marker < end for marker in markers)
        assert all(one < other for one, other in pairwise(markers))


def go_on(workload: Workload) -> None:
    """Started again, checked, used, compacted, stopped, started again without its snapshots, checked."""
    directory = workload.opened()
    log = directory.log(TABLE, CONFIG, TOPIC_ID)
    log.producers.transactions.high_watermark_moved(log.log_end_offset)
    assert log.log_end_offset >= workload.flushed_end
    del workload.written[log.log_end_offset :]
    check(workload, log)
    directory.leftovers()()
    names = workload.files.list_directory(log.path) if workload.files.exists(log.path) else []
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    for producer_id in workload.undecided():
        workload.end(log, producer_id, committed=producer_id == COMMITS)
    for n in range(3):
        workload.append(log, b"key-%d" % n, b"after the crash", COMMITS)
        workload.append(log, b"key-%d" % n, b"aborted after the crash", ABORTS)
    workload.end(log, ABORTS, committed=False)
    workload.end(log, COMMITS, committed=True)
    workload.append(log, b"plain", b"the last")
    workload.flush(log)
    workload.compact(directory, log)
    check(workload, log)
    directory.close()
    for name in workload.files.list_directory(log.path):
        if name.endswith(".snapshot"):
            workload.files.remove(f"{log.path}/{name}")
    # Now only the batches that are left say which transactions are open.
    directory = workload.opened()
    check(workload, directory.log(TABLE, CONFIG, TOPIC_ID))
    directory.close()


def steps_of_workload() -> int:
    workload = Workload(MemoryFiles())
    workload.run()
    return workload.files.steps


def test_the_workload_has_what_is_tested() -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    directory = workload.opened()
    log = directory.log(TABLE, CONFIG, TOPIC_ID)
    headers = [header for segment in log.segments for header, _ in batches_in(segment.file.read(0, segment.size))]
    kept = {header.base_offset for header in headers if header.is_control and header.records_count}
    markers = {offset for offset, one in enumerate(workload.written) if one.committed is not None}
    assert kept < markers, "some markers went, some are needed"
    assert len(headers) < len(workload.written) * 0.7
    assert any(segment.transaction_index.count for segment in log.segments)
    assert workload.undecided()
    directory.close()
    go_on(workload)


@pytest.mark.parametrize(("names", "content"), CRASHES)
def test_stopped_at_every_step(names: Survivors, content: Survivors) -> None:
    total = steps_of_workload()
    assert total > 200
    for step in range(1, total + 2):
        workload = Workload(MemoryFiles())
        workload.files.stop_at(step)
        try:
            workload.run()
        except Crashed:
            pass
        workload.files.crash(names=names, content=content)
        try:
            go_on(workload)
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {total}: {error}") from error
