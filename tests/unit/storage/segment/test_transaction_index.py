"""The index of aborted transactions: its bytes, its lookups, and what it does when the disk refuses."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.storage.log.recovery import LogOnDisk, load_log
from skep.storage.producers.open_transactions import Transactions
from skep.storage.segment.transaction_index import AbortedTransaction, TransactionIndex, aborted_between
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

PATH = "/data/00000000000000000000.txnindex"


def entry(first: int, last: int, stable: int | None = None, producer: int = 1) -> AbortedTransaction:
    return AbortedTransaction(producer, first, last, last + 1 if stable is None else stable)


def test_entries_are_as_kafka_writes_them(kit) -> None:
    files = kit.files()
    index = TransactionIndex(files, PATH, 0)
    index.add(AbortedTransaction(9, 100, 110, 105))
    assert files.read_whole(PATH) == struct.pack(">hqqqq", 0, 9, 100, 110, 105)


def test_where_nothing_was_aborted_there_is_no_file(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=200), files)
    for sequence in range(5):
        kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        log.append_marker(1, 0, 0, True, LeaderEpoch(0), kit.now_ms)
    log.close()
    assert not [name for name in files.list_directory(kit.path) if name.endswith(".txnindex")]


def test_an_index_is_deleted_with_its_segment(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(segment_bytes=200), files)
    kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_marker(1, 0, 0, False, LeaderEpoch(0), kit.now_ms)
    kit.append(log, 1, 100)
    assert files.exists(log.segments[0].transaction_index.path)
    removal = log.detach(log.segments[:1], kit.now_ms)
    removal.mark()
    assert [name for name in files.list_directory(kit.path) if name.endswith(".txnindex.deleted")]
    removal.remove()
    assert not [name for name in files.list_directory(kit.path) if ".txnindex" in name]


def test_an_index_is_kept_up_to_the_first_entry_that_makes_no_sense(kit) -> None:
    for tail in (b"", b"\0" * 34, b"\1" * 20, struct.pack(">hqqqq", 0, 1, 3, 4, 5)):
        files = kit.files()
        index = TransactionIndex(files, PATH, 0)
        for one in (entry(0, 4), entry(5, 9), entry(10, 14)):
            index.add(one)
        index.close()
        files.write_atomically(PATH, files.read_whole(PATH)[: 2 * 34] + tail)
        again = TransactionIndex(files, PATH, 0, files.size(PATH))
        again.keep_below(100)
        assert again.transactions() == [entry(0, 4), entry(5, 9)]
        assert files.size(PATH) == 2 * 34
        again.keep_below(9)
        assert again.transactions() == [entry(0, 4)]


def test_zeros_are_no_entry(kit) -> None:
    files = kit.files()
    files.write_atomically(PATH, b"\0" * 34)
    index = TransactionIndex(files, PATH, 0, 34)
    index.keep_below(100)
    assert index.count == 0


def test_an_entry_that_the_disk_refuses_is_found_and_written_later(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    path = log.segments[0].transaction_index.path
    refusals = Refusals(files, path)
    log.append_marker(1, 0, 0, False, LeaderEpoch(0), kit.now_ms)
    assert log.aborted_transactions(0, 2) == [entry(0, 1)]
    refusals.end()
    log.flush()
    assert files.read_whole(path) == struct.pack(">hqqqq", 0, 1, 0, 1, 2)


class Refusals:
    """Refuses every write to one file."""

    def __init__(self, files, path: str) -> None:
        self._files = files
        self._step = files.step
        files.step = self._refuse
        self._path = path

    def _refuse(self, kind: str, path: str) -> None:
        if path == self._path:
            raise StorageError("no room")
        self._step(kind, path)

    def end(self) -> None:
        self._files.step = self._step


def test_entries_survive_a_failed_sync_and_are_not_lost_after_it(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    for number in range(2):
        kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=number, is_transactional=True)
        log.append_marker(1, 0, 0, False, LeaderEpoch(0), kit.now_ms)
        if number == 0:
            files.fail("sync", times=1)
            with pytest.raises(StorageError):
                log.flush()
            log.flush()
    log.flush()
    files.crash(names=Survivors.ALL, content=Survivors.SYNCED)
    again = kit.log(files=files, recovery_point=log.flushed_offset)
    assert again.aborted_transactions(0, 4) == [entry(0, 1), entry(2, 3)]
    assert files.size(again.segments[0].transaction_index.path) == 2 * 34


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["write", "abort", "commit", "plain"])), max_size=120),
    st.integers(0, 130),
    st.integers(1, 130),
    st.integers(1, 40),
)
def test_a_search_finds_every_transaction_in_the_range_and_may_stop_early(
    kit, steps: list[tuple[int, str]], first: int, length: int, per_segment: int
) -> None:
    files = kit.files()
    transactions, expected, indexes = Transactions(), [], []
    for offset, (producer, what) in enumerate(steps):
        if offset % per_segment == 0:
            indexes.append(TransactionIndex(files, f"/data/{offset:020}.txnindex", offset))
        if what == "write":
            transactions.begin(producer, offset)
        elif what != "plain":
            ended = transactions.end(producer, offset)
            if ended is not None and what == "abort":
                expected.append(ended)
                indexes[-1].add(ended)
    end = first + length
    from_segment = [index for index in indexes if index.base_offset + per_segment > first]
    found = aborted_between(from_segment, first, end)
    assert found == [one for one in expected if one.first_offset < end and one.last_offset >= first]


def test_a_large_index_is_searched_from_where_it_matters(kit) -> None:
    files = kit.files()
    index = TransactionIndex(files, PATH, 0)
    for number in range(2000):
        index.add(entry(2 * number, 2 * number + 1))
    found, is_all = index.overlapping(3000, 3004)
    assert found == [entry(3000, 3001), entry(3002, 3003)]
    assert is_all
    assert index.overlapping(5000, 6000) == ([], False)


def test_the_name_of_the_first_index_is_synced_with_its_entry(kit) -> None:
    files = MemoryFiles()
    directory = LogDirectory(files, "/data", ManualClock())
    directory.open()
    log = directory.log(kit.partition, TopicConfig(), UUID(int=1))
    kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.flush()
    log.append_marker(1, 0, 0, False, LeaderEpoch(0), kit.now_ms)
    log.flush()
    files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
    assert files.size(log.segments[0].transaction_index.path) == 34


def aborted_and_rolled(kit, files: MemoryFiles) -> Log:
    """A synced abort in the first segment, whose other indexes are written when it is sealed, and not synced yet."""
    log = kit.log(TopicConfig(segment_bytes=250, index_interval_bytes=1), files)
    kit.append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_marker(1, 0, 0, False, LeaderEpoch(0), kit.now_ms)
    log.flush()
    kit.append(log, 1, 150)
    assert len(log.segments) == 2
    return log


def test_recovery_leaves_synced_entries_alone_when_the_other_indexes_are_lost(kit) -> None:
    files = kit.files()
    log = aborted_and_rolled(kit, files)
    index = log.segments[0].transaction_index.path
    files.crash(names=Survivors.ALL, content=Survivors.SYNCED)
    assert files.size(log.segments[0].offset_index.path) == 0
    disk = LogOnDisk(files, kit.path, kit.partition, log.flushed_offset, Offset(0))
    load_log(disk, 1, kit.now_ms)
    files.crash(names=Survivors.ALL, content=Survivors.CUT)
    assert files.size(index) == 34


def test_the_index_is_synced_before_the_one_that_tells_that_a_segment_is_whole(kit) -> None:
    files = kit.files()
    log = aborted_and_rolled(kit, files)
    synced = []
    step = files.step
    files.step = lambda kind, path: (step(kind, path), synced.append(path) if kind == "sync" else None)
    log.flush()
    first = log.segments[0]
    assert synced.index(first.transaction_index.path) < synced.index(first.offset_index.path)
