"""A workload over files in memory is stopped at every write and every sync, and the promises are checked afterwards.

What was flushed is there, with the same bytes at the same offsets, exactly once; what was not flushed is there or not,
but never half; idempotent producers are remembered; and the log can be used as if nothing had happened.
"""

import uuid
from dataclasses import dataclass, field

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import batches_in
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.storage.log.retention import segments_to_delete
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles, Survivors

PATH = "/var/data"
CONFIG = TopicConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=-1)
TOPIC_ID = uuid.UUID(int=7)
PLAIN = TopicPartition("plain", 0)
IDEMPOTENT = TopicPartition("idempotent", 3)
NOW_MS = 1_700_000_000_000


@dataclass
class Expected:
    """What the workload did to one log, as far as it got."""

    written: dict[Offset, bytes] = field(default_factory=dict)
    """The batches that were handed to the log, by the offset that they have if they are there."""
    flushed_end: int = 0
    deleted_below: int = 0
    sequence: int = 0
    last: tuple[bytes, Offset] | None = None


@dataclass
class Workload:
    files: MemoryFiles
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    expected: dict[TopicPartition, Expected] = field(
        default_factory=lambda: {PLAIN: Expected(), IDEMPOTENT: Expected()}
    )

    def run(self) -> None:
        self.live(14)
        self.live(4)

    def live(self, steps: int) -> None:
        """From a start of the broker to its clean stop."""
        directory = LogDirectory(self.files, PATH, self.clock)
        directory.open()
        logs = {name: directory.log(name, CONFIG, TOPIC_ID) for name in self.expected}
        for step in range(steps):
            for log in logs.values():
                self.append(log, 1 + step % 3)
                if step % 3 == 0:
                    self.flush(log)
                if step in (6, 11):
                    self.delete(log, Offset(log.log_end_offset - 5))
            if step in (5, 9):
                directory.write_checkpoints()
        # One log loses all that it has: only the name of its last segment keeps the end offset.
        self.flush(logs[PLAIN])
        self.delete(logs[PLAIN], logs[PLAIN].log_end_offset)
        directory.close()
        for name, log in logs.items():
            self.expected[name].flushed_end = log.log_end_offset

    def append(self, log: Log, count: int, leader_epoch: int = 0) -> None:
        expected = self.expected[log.topic_partition]
        batch = self.batch(log.topic_partition, expected.sequence, count)
        expected.written[log.log_end_offset] = batch
        appended = log.append(batch, read_header(batch), LeaderEpoch(leader_epoch), self.clock.now_ms())
        expected.sequence += count
        expected.last = (batch, appended.base_offset)

    @staticmethod
    def batch(name: TopicPartition, sequence: int, count: int) -> bytes:
        records = [NewRecord(b"key", f"{name} {sequence + n}".encode(), NOW_MS + sequence) for n in range(count)]
        if name == PLAIN:
            return build_batch(records)
        return build_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)

    def flush(self, log: Log) -> None:
        log.flush()
        self.expected[log.topic_partition].flushed_end = log.log_end_offset

    def delete(self, log: Log, offset: Offset) -> None:
        self.expected[log.topic_partition].deleted_below = offset
        log.delete_records_before(offset)
        removal = log.detach(
            segments_to_delete(log, self.clock.now_ms(), up_to=log.log_end_offset), self.clock.now_ms()
        )
        removal.mark()
        removal.remove()


def content(log: Log) -> dict[Offset, bytes]:
    """The batches from the log start on, read as a consumer does, without what the leader writes into them."""
    batches = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1000, up_to=log.log_end_offset, at_least_one=True)
        assert piece.file is not None
        for header, batch in batches_in(piece.file.read(piece.position, piece.size)):
            assert is_intact(batch)
            assert header.base_offset == offset or not batches, "offsets are contiguous"
            batches[header.base_offset] = batch[16:]
            offset = header.next_offset
    return batches


def check(workload: Workload, log: Log) -> None:
    expected = workload.expected[log.topic_partition]
    found = content(log)
    for offset, batch in found.items():
        assert batch == expected.written[offset][16:], f"other bytes at {offset}"
    assert log.log_end_offset >= expected.flushed_end, "something flushed is missing at the end"
    assert log.log_start_offset <= expected.deleted_below
    for offset, batch in expected.written.items():
        if expected.deleted_below <= offset < expected.flushed_end:
            assert found[offset] == batch[16:]
            check_lookups(log, offset, read_header(batch).max_timestamp)
    assert log.end_offset_for_epoch(LeaderEpoch(0))[1] in (log.log_end_offset, -1)


def check_lookups(log: Log, offset: Offset, timestamp: int) -> None:
    piece = log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
    assert piece.file is not None
    assert read_header(piece.file.read(piece.position, piece.size)).base_offset == offset
    by_time = log.offset_for_timestamp(timestamp, up_to=log.log_end_offset)
    assert by_time is not None
    assert by_time.offset == offset


def check_producer(workload: Workload, log: Log) -> None:
    """A retry of the last batch is recognised if it is there, and is the next batch if it is not."""
    expected = workload.expected[log.topic_partition]
    if expected.last is None:
        return
    batch, offset = expected.last
    end = log.log_end_offset
    if offset < end:
        appended = log.append(batch, read_header(batch), LeaderEpoch(0), workload.clock.now_ms())
        assert appended.is_duplicate
        assert appended.base_offset == offset
        assert log.log_end_offset == end


def go_on(workload: Workload) -> None:
    """The broker is started again, checked, used, stopped cleanly, started again, checked."""
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    for name, expected in workload.expected.items():
        log = directory.log(name, CONFIG, TOPIC_ID)
        check(workload, log)
        if name == IDEMPOTENT:
            check_producer(workload, log)
        expected.written = {offset: batch for offset, batch in expected.written.items() if offset < log.log_end_offset}
        expected.sequence = log.log_end_offset
        workload.append(log, 2)
        workload.flush(log)
        check(workload, log)
    directory.close()
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    assert directory.was_clean
    for name in workload.expected:
        check(workload, directory.log(name, CONFIG, TOPIC_ID))
    directory.close()


def check_that_recovery_is_durable(workload: Workload) -> None:
    """What a reader could see after the start does not vanish in another power cut."""
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    before = {name: content(directory.log(name, CONFIG, TOPIC_ID)) for name in workload.expected}
    workload.files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    assert before == {name: content(directory.log(name, CONFIG, TOPIC_ID)) for name in workload.expected}
    workload.files.crash(names=Survivors.ALL, content=Survivors.ALL)


def steps_of_workload() -> int:
    files = MemoryFiles()
    Workload(files).run()
    return files.steps


def test_the_workload_itself_keeps_its_promises() -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    go_on(workload)


@pytest.mark.parametrize(
    ("names", "survivors"),
    [
        (Survivors.SYNCED, Survivors.SYNCED),
        (Survivors.SYNCED, Survivors.ZEROS),
        (Survivors.SYNCED, Survivors.ALL),
        (Survivors.TORN, Survivors.TORN),
        (Survivors.ALL, Survivors.SYNCED),
        (Survivors.ALL, Survivors.TORN),
        (Survivors.ALL, Survivors.ZEROS),
        (Survivors.ALL, Survivors.ALL),
    ],
)
def test_stopped_at_every_write_and_sync(names: Survivors, survivors: Survivors) -> None:
    total = steps_of_workload()
    assert total > 150
    for step in range(1, total + 2):
        workload = Workload(MemoryFiles())
        workload.files.stop_at(step)
        try:
            workload.run()
        except Crashed:
            pass
        workload.files.crash(names=names, content=survivors)
        try:
            check_that_recovery_is_durable(workload)
            go_on(workload)
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {total}: {error}") from error


@pytest.mark.parametrize("survivors", [Survivors.SYNCED, Survivors.ZEROS])
def test_stopped_again_at_every_step_of_the_recovery(survivors: Survivors) -> None:
    for step in range(1, 60):
        workload = Workload(MemoryFiles())
        workload.files.stop_at(120)
        with pytest.raises(Crashed):
            workload.run()
        workload.files.crash(names=Survivors.ALL, content=Survivors.TORN)
        workload.files.stop_at(step)
        directory = LogDirectory(workload.files, PATH, workload.clock)
        try:
            directory.open()
            for name in workload.expected:
                directory.log(name, CONFIG, TOPIC_ID)
        except Crashed:
            pass
        workload.files.crash(names=Survivors.SYNCED, content=survivors)
        go_on(workload)
