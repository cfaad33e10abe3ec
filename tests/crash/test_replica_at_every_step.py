"""A follower copies one leader, takes back what the next has not, copies that, begins anew: stopped at every step.

Whatever is found afterwards is the beginning of what one of the leaders had, byte for byte, with nothing of one behind
something of another; what was flushed and not truncated is there; epochs, transactions and producers are those of the
batches that are there; and the follower can go on.
"""

import uuid
from collections.abc import Sequence
from itertools import count

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import BatchHeader, is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import batches_in
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.storage.producers import producer_snapshots
from tests.crash.transaction_model import view_of
from tests.manual_clock import ManualClock
from tests.memory_files import Crashed, MemoryFiles, Survivors

PATH = "/var/data"
NAME = TopicPartition("copied", 0)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1)
NOW_MS = 1_700_000_000_000
SHARED_STEPS = 10
C_START = Offset(500)

History = list[tuple[BatchHeader, bytes]]


def opened(files: MemoryFiles) -> tuple[LogDirectory, Log]:
    directory = LogDirectory(files, PATH, ManualClock(NOW_MS), boot_id="boot")
    directory.open()
    return directory, directory.log(NAME, CONFIG, TOPIC_ID)


def batches_of(log: Log) -> History:
    found: History = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
        assert piece.file is not None, f"nothing at {offset}, the log ends at {log.log_end_offset}"
        found += batches_in(piece.file.read(piece.position, piece.size))
        offset = piece.next_offset
    return found


def lead(epochs: Sequence[int], word: str, start: int = 0) -> History:
    """What a leader has after so many steps, each in the epoch that is given for it."""
    log = opened(MemoryFiles())[1]
    log.start_over_at(Offset(start))
    sequences = {producer: count() for producer in (1, 2)}
    for step, epoch in enumerate(epochs):
        text = f"{word if step >= SHARED_STEPS else 'shared'} {step}".encode() + b"." * (step % 4 * 25)
        producer = 1 + step % 2
        if step % 5 == 4 and producer in log.producers.transactions.ongoing:
            log.append_marker(producer, 0, 1, step % 10 == 4, LeaderEpoch(epoch), NOW_MS + step)
            continue
        records = [NewRecord(b"key", text, NOW_MS + step)] * (1 if step % 3 else 1 + step % 4)
        if len(records) > 1:
            batch = build_batch(records)
        else:
            sequence = next(sequences[producer])
            batch = build_batch(
                records, producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True
            )
        log.append(batch, read_header(batch), LeaderEpoch(epoch), NOW_MS + step)
    return batches_of(log)


# The first was deposed in epoch 1; the second has batches of epoch 0 where the first has those of epoch 1.
A = lead([0] * SHARED_STEPS + [1] * 14, "first")
B = lead([0] * (SHARED_STEPS + 4) + [2] * 12, "second")
C = lead([3] * 6, "third", C_START)
DIVERGED_AT = next(a[0].base_offset for a, b in zip(A, B, strict=False) if a != b)
IN_THE_LAST_SEGMENT = A[-3][0].base_offset


class Follower:
    """``floor`` is where the log ends at the least, whatever happens."""

    def __init__(self, files: MemoryFiles, cut_at: Offset) -> None:
        self.files = files
        self.cut_at = cut_at
        self.floor = 0
        self.begins_anew = False

    def run(self) -> None:
        directory, log = opened(self.files)
        self.copy(directory, log, A)
        self.floor = min(self.floor, max(h.next_offset for h, _ in A if h.next_offset <= self.cut_at))
        end = log.truncate_to(self.cut_at)
        assert end <= self.cut_at
        self.floor = min(self.floor, DIVERGED_AT)
        log.truncate_to(DIVERGED_AT)
        directory.leftovers()()
        self.copy(directory, log, B)
        directory.close({NAME: log.log_end_offset})
        self.floor = log.log_end_offset
        directory, log = opened(self.files)
        assert batches_of(log) == B
        self.floor, self.begins_anew = 0, True
        log.start_over_at(C_START)
        self.copy(directory, log, C)
        directory.close()

    def copy(self, directory: LogDirectory, log: Log, history: History) -> None:
        for number in count():
            rest = [batch for header, batch in history if header.base_offset >= log.log_end_offset]
            if not rest:
                return
            log.append_replicated(b"".join(rest[:3]) + b"".join(rest[3:4])[:70], NOW_MS)
            if number % 2 == 1:
                log.flush()
                self.floor = log.log_end_offset
            if number % 4 == 2:
                directory.write_checkpoints({NAME: Offset(max(log.log_end_offset - 5, 0))})


def check(log: Log) -> History:
    """The leader whose history it is."""
    found = batches_of(log)
    assert all(is_intact(batch) for _, batch in found)
    known = [history for history in (A, B, C) if found == history[: len(found)]]
    assert known, [header.base_offset for header, _ in found]
    if found:
        assert log.log_end_offset == found[-1][0].next_offset
    view = view_of(found, log.log_end_offset)
    log.producers.transactions.high_watermark_moved(log.log_end_offset)
    assert log.producers.transactions.ongoing == view.open
    in_indexes = [one for segment in log.segments for one in segment.transaction_index.transactions()]
    assert [tuple(one[:3]) for one in in_indexes] == view.aborted
    epochs: list[int] = []
    for header, _ in found:
        if header.partition_leader_epoch not in epochs:
            epochs.append(header.partition_leader_epoch)
            before = [h.partition_leader_epoch for h, _ in found if h.base_offset < header.base_offset]
            if before:
                assert log.end_offset_for_epoch(LeaderEpoch(before[-1])) == (before[-1], header.base_offset)
    assert log.latest_epoch == (epochs[-1] if epochs else -1)
    for header, _ in found:
        piece = log.read(header.base_offset, 1, up_to=log.log_end_offset, at_least_one=True)
        assert piece.file is not None
        assert read_header(piece.file.read(piece.position, 61)) == header
        by_time = log.offset_for_timestamp(header.max_timestamp, up_to=log.log_end_offset)
        assert by_time is not None
        assert by_time.offset == header.base_offset
    return known[-1]


def check_and_go_on(follower: Follower, *, is_killed: bool) -> None:
    directory, log = opened(follower.files)
    check(log)
    assert log.log_end_offset >= follower.floor
    assert directory.high_watermarks.get(NAME, 0) <= log.log_end_offset or not batches_of(log)
    if is_killed and not follower.begins_anew:
        assert not log.lost_data
    # Whatever it has, it follows the second leader from here on.
    if log.log_start_offset or batches_of(log) != B[: len(batches_of(log))]:
        log.truncate_to(Offset(0) if log.log_start_offset else DIVERGED_AT)
    follower.copy(directory, log, B)
    assert check(log) is B
    directory.close()
    directory, log = opened(follower.files)
    assert directory.was_clean
    assert batches_of(log) == B
    assert check(log) is B
    directory.close()


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshots, "INTERVAL_BYTES", 300)


def test_the_workload_has_what_is_tested() -> None:
    assert A[0] == B[0]
    assert len([1 for a, b in zip(A, B, strict=False) if a == b]) == SHARED_STEPS
    assert view_of(A, A[-1][0].next_offset).aborted
    files = MemoryFiles()
    Follower(files, Offset(DIVERGED_AT + 1)).run()
    directory, log = opened(files)
    assert check(log) is C
    assert (log.log_start_offset, log.log_end_offset) == (C_START, C[-1][0].next_offset)
    directory.leftovers()()
    assert [name for name in files.list_directory(PATH) if name.endswith("-delete")] == []


@pytest.mark.parametrize(
    ("names", "survivors", "cut_at"),
    [
        (Survivors.SYNCED, Survivors.SYNCED, IN_THE_LAST_SEGMENT),
        (Survivors.SYNCED, Survivors.ZEROS, DIVERGED_AT),
        (Survivors.TORN, Survivors.TORN, IN_THE_LAST_SEGMENT),
        (Survivors.ALL, Survivors.SYNCED, DIVERGED_AT),
        (Survivors.ALL, Survivors.TORN, IN_THE_LAST_SEGMENT),
        (Survivors.ALL, Survivors.CUT, DIVERGED_AT),
        (Survivors.ALL, Survivors.ALL, IN_THE_LAST_SEGMENT),
    ],
)
def test_stopped_at_every_write_and_sync(names: Survivors, survivors: Survivors, cut_at: Offset) -> None:
    for step in count(1):
        follower = Follower(MemoryFiles(), cut_at)
        follower.files.stop_at(step)
        try:
            follower.run()
        except Crashed:
            pass
        else:
            assert step > 200
            return
        follower.files.crash(names=names, content=survivors)
        try:
            check_and_go_on(follower, is_killed=(names, survivors) == (Survivors.ALL, Survivors.ALL))
        except AssertionError as error:
            raise AssertionError(f"stopped at step {step}: {error}") from error
