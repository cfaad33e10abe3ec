"""Compaction over files in memory is stopped at every write, rename and sync; the log is then the old one or the new.

What a reader of the whole log makes of it, the newest value of each key, is the same before and after, whatever was
synced of the names and of the content; no record changes its offset, none comes back that was gone for good.
"""

import uuid
from dataclasses import dataclass, field

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from tests.compacting import compact, records_of
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles, Survivors

PATH = "/var/data"
HOUR_MS = 3_600_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=400, index_interval_bytes=100, delete_retention_ms=HOUR_MS
)
TOPIC_ID = uuid.UUID(int=7)
TABLE = TopicPartition("table", 0)

CRASHES = [
    (Survivors.SYNCED, Survivors.SYNCED),
    (Survivors.TORN, Survivors.TORN),
    (Survivors.ALL, Survivors.SYNCED),
    (Survivors.ALL, Survivors.ALL),
]


@dataclass
class Workload:
    files: MemoryFiles
    clock: ManualClock = field(default_factory=ManualClock)
    written: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """What was handed to the log, by offset."""
    flushed_end: int = 0

    def run(self) -> None:
        directory = LogDirectory(self.files, PATH, self.clock)
        directory.open()
        log = directory.log(TABLE, CONFIG, TOPIC_ID)
        for generation in range(2):
            self.append(log, b"once-%d" % generation, b"kept")
            for n in range(12):
                self.append(log, b"key-%d" % (n % 3), None if (generation + n) % 5 == 3 else b"%d %d" % (generation, n))
            self.flush(log)
            self.compact(directory, log)
            self.clock.advance_ms(2 * HOUR_MS)
        self.compact(directory, log)
        directory.close()

    def append(self, log: Log, key: bytes, value: bytes | None) -> None:
        batch = build_batch([NewRecord(key, value, self.clock.now_ms())], producer_id=5, producer_epoch=0,
                            base_sequence=len(self.written))  # fmt: skip
        self.written.append((key, value))
        log.append(batch, read_header(batch), LeaderEpoch(0), self.clock.now_ms())

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


def newest(records: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    """What a reader ends up with."""
    table: dict[bytes, bytes | None] = dict(records)
    return {key: value for key, value in table.items() if value is not None}


def check(workload: Workload, log: Log) -> None:
    assert log.log_end_offset >= workload.flushed_end
    found = records_of(log)
    for record in found:
        assert (record.key, record.value) == workload.written[record.offset], f"another record at {record.offset}"
    assert newest([(r.key, r.value) for r in found]) == newest(workload.written[: log.log_end_offset])
    for record in found:
        piece = log.read(record.offset, 1, up_to=log.log_end_offset, at_least_one=True)
        assert piece.file is not None
        assert read_header(piece.file.read(piece.position, piece.size)).base_offset <= record.offset


def go_on(workload: Workload) -> None:
    """Started again, checked, used, compacted, stopped, started again, checked."""
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    log = directory.log(TABLE, CONFIG, TOPIC_ID)
    check(workload, log)
    directory.leftovers()()
    names = workload.files.list_directory(log.path) if workload.files.exists(log.path) else []
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    del workload.written[log.log_end_offset :]
    for n in range(6):
        workload.append(log, b"key-%d" % n, b"after the crash %d" % n)
    workload.flush(log)
    workload.compact(directory, log)
    check(workload, log)
    directory.close()
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    check(workload, directory.log(TABLE, CONFIG, TOPIC_ID))
    directory.close()


def steps_of_workload() -> int:
    workload = Workload(MemoryFiles())
    workload.run()
    return workload.files.steps


def test_the_workload_compacts_and_keeps_its_promises() -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    assert len(records_of(directory.log(TABLE, CONFIG, TOPIC_ID))) < len(workload.written) * 0.6
    directory.close()
    go_on(workload)


@pytest.mark.parametrize(("names", "content"), CRASHES)
def test_stopped_at_every_step(names: Survivors, content: Survivors) -> None:
    total = steps_of_workload()
    assert total > 150
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


@pytest.mark.parametrize(("names", "content"), CRASHES)
def test_stopped_again_while_the_start_puts_things_right(names: Survivors, content: Survivors) -> None:
    total = steps_of_workload()
    for step in range(total // 2, total, 7):
        for again in range(1, 9, 2):
            workload = Workload(MemoryFiles())
            workload.files.stop_at(step)
            with pytest.raises(Crashed):
                workload.run()
            workload.files.crash(names=names, content=content)
            workload.files.stop_at(again)
            try:
                go_on(workload)
            except Crashed:
                pass
            workload.files.crash(names=names, content=content)
            go_on(workload)
