"""A workload of transactions is stopped at every write and sync; what the log then says of them is what its bytes say.

The bytes that survived are read back and worked out by ``transaction_model``. The log must agree with it on which
transactions are open, where the last stable offset is, and which were aborted, whether it learned that from snapshots,
from its index, or by replaying batches; after a start, and after another one.
"""

import uuid
from itertools import count

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import BatchHeader, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import batches_in
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.storage.producers import producer_snapshots
from tests.crash.transaction_model import view_of
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles, Survivors

PATH = "/var/data"
NAME = TopicPartition("transactional", 0)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1)
NOW_MS = 1_700_000_000_000
LEFT_OPEN = 1
"""The producer whose transaction spans several segments, a clean stop and a start."""


class Workload:
    """Three producers in and out of transactions. The log is flushed now and then; nothing is deleted from it."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.sequences = {producer: count() for producer in (1, 2, 3)}

    def run(self) -> None:
        for life in range(2):
            directory = LogDirectory(self.files, PATH, self.clock)
            directory.open()
            log = directory.log(NAME, CONFIG, TOPIC_ID)
            for step in range(16):
                self.step(log, step)
                if step % 5 == 2:
                    log.flush()
                if step % 7 == 4:
                    directory.write_checkpoints()
            if life == 1:
                self.end(log, LEFT_OPEN, committed=False)
                self.write(log, 2)
            directory.close()

    def step(self, log: Log, step: int) -> None:
        if step == 1:
            self.write(log, LEFT_OPEN)
        elif step % 4 == 0:
            self.plain(log)
        elif step % 4 in (1, 2):
            self.write(log, 2 + step % 2)
        else:
            self.end(log, 2, committed=step % 3 == 0)
            self.end(log, 3, committed=step % 3 == 1)

    def write(self, log: Log, producer: int) -> None:
        batch = build_batch(
            [NewRecord(b"key", b"v" * 30, NOW_MS)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=next(self.sequences[producer]),
            is_transactional=True,
        )
        self.append(log, batch)

    def plain(self, log: Log) -> None:
        self.append(log, build_batch([NewRecord(None, b"plain", NOW_MS)] * 2))

    def append(self, log: Log, batch: bytes) -> None:
        log.append(batch, read_header(batch), LeaderEpoch(0), NOW_MS)

    def end(self, log: Log, producer: int, *, committed: bool) -> None:
        log.append_marker(producer, 0, 1, committed, LeaderEpoch(0), NOW_MS)


def batches_of(log: Log) -> list[tuple[BatchHeader, bytes]]:
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
        assert piece.file is not None
        found += batches_in(piece.file.read(piece.position, piece.size))
        offset = piece.next_offset
    return found


def check(log: Log) -> None:
    end = log.log_end_offset
    view = view_of(batches_of(log), end)
    transactions = log.producers.transactions
    transactions.high_watermark_moved(end)
    assert transactions.ongoing == view.open
    assert (end if log.first_unstable_offset is None else log.first_unstable_offset) == view.last_stable_offset
    in_indexes = [one for segment in log.segments for one in segment.transaction_index.transactions()]
    assert [tuple(one[:3]) for one in in_indexes] == view.aborted
    for first in range(0, end, 3):
        found = log.aborted_transactions(Offset(first), Offset(first + 4))
        expected = [one for one in view.aborted if one[1] < first + 4 and one[2] >= first]
        assert [tuple(one[:3]) for one in found] == expected
    ends = [*(segment.base_offset for segment in log.segments[1:]), end]
    for segment, segment_end in zip(log.segments, ends, strict=False):
        for one in segment.transaction_index.transactions():
            assert segment.base_offset <= one.last_offset < segment_end


def check_twice(workload: Workload) -> None:
    """After the start, after more work, and after a clean stop and a start."""
    for life in range(3):
        directory = LogDirectory(workload.files, PATH, workload.clock)
        directory.open()
        log = directory.log(NAME, CONFIG, TOPIC_ID)
        check(log)
        if life == 0:
            workload.plain(log)
            for producer in sorted(log.producers.transactions.ongoing):
                workload.end(log, producer, committed=producer == 2)
            check(log)
            assert log.first_unstable_offset is None
        directory.close()


def stopped_at(step: int, names: Survivors, survivors: Survivors) -> Workload:
    workload = Workload(MemoryFiles())
    workload.files.stop_at(step)
    try:
        workload.run()
    except Crashed:
        pass
    workload.files.crash(names=names, content=survivors)
    return workload


def steps_of_workload() -> int:
    files = MemoryFiles()
    Workload(files).run()
    return files.steps


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of segments, as with 64 MiB of them."""
    monkeypatch.setattr(producer_snapshots, "INTERVAL_BYTES", 300)


def test_the_workload_has_what_is_tested() -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    directory = LogDirectory(workload.files, PATH, workload.clock)
    directory.open()
    log = directory.log(NAME, CONFIG, TOPIC_ID)
    view = view_of(batches_of(log), log.log_end_offset)
    assert len(log.segments) > 4
    assert len(view.aborted) > 4
    assert view.open
    [spanning] = [last - first for producer, first, last in view.aborted if producer == LEFT_OPEN]
    assert spanning > 20
    directory.close()
    check_twice(workload)


@pytest.mark.parametrize(
    ("names", "survivors"),
    [
        (Survivors.SYNCED, Survivors.SYNCED),
        (Survivors.SYNCED, Survivors.ZEROS),
        (Survivors.TORN, Survivors.TORN),
        (Survivors.ALL, Survivors.SYNCED),
        (Survivors.ALL, Survivors.TORN),
        (Survivors.ALL, Survivors.ZEROS),
        (Survivors.ALL, Survivors.CUT),
        (Survivors.ALL, Survivors.ALL),
    ],
)
def test_stopped_at_every_write_and_sync(names: Survivors, survivors: Survivors) -> None:
    total = steps_of_workload()
    assert total > 120
    for step in range(1, total + 2):
        workload = stopped_at(step, names, survivors)
        try:
            check_twice(workload)
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step} of {total}: {error}") from error


@pytest.mark.parametrize("first", [60, 100, 107, 180, 240, 300])
@pytest.mark.parametrize("first_survivors", [Survivors.TORN, Survivors.SYNCED])
@pytest.mark.parametrize(
    ("names", "survivors"),
    [
        (Survivors.SYNCED, Survivors.SYNCED),
        (Survivors.SYNCED, Survivors.ZEROS),
        (Survivors.ALL, Survivors.CUT),
    ],
)
def test_stopped_again_at_every_step_of_the_recovery(
    first: int, first_survivors: Survivors, names: Survivors, survivors: Survivors
) -> None:
    for step in count(1):
        workload = stopped_at(first, Survivors.ALL, first_survivors)
        workload.files.stop_at(step)
        directory = LogDirectory(workload.files, PATH, workload.clock)
        try:
            directory.open()
            directory.log(NAME, CONFIG, TOPIC_ID)
        except Crashed:
            workload.files.crash(names=names, content=survivors)
            check_twice(workload)
        else:
            assert step > 5
            return


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_missing_side_files_are_made_again_after_an_unclean_stop(kind: str) -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    workload.files.remove(f"{PATH}/.kafka_cleanshutdown")
    workload.files.remove(f"{PATH}/recovery-point-offset-checkpoint")
    directory = f"{PATH}/{NAME}"
    gone = [name for name in workload.files.list_directory(directory) if name.endswith(kind)]
    assert gone
    for name in gone:
        workload.files.remove(f"{directory}/{name}")
    check_twice(workload)


def test_a_sealed_segment_that_lost_its_indexes_gets_all_of_them_again_after_a_clean_stop() -> None:
    workload = Workload(MemoryFiles())
    workload.run()
    directory = f"{PATH}/{NAME}"
    name = next(name for name in workload.files.list_directory(directory) if name.endswith(".txnindex"))
    for kind in (".txnindex", ".index"):
        workload.files.remove(f"{directory}/{name.replace('.txnindex', kind)}")
    check_twice(workload)
