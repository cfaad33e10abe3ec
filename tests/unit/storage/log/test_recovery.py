"""Opening logs after clean stops and crashes: torn tails, missing and damaged files, producers."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StorageError
from tests.memory_files import Survivors

CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=60)
FIRST = "00000000000000000000"


def written(kit, count: int, config: TopicConfig = CONFIG):
    """Files with a log of so many one-record batches that was stopped cleanly."""
    files = kit.files()
    files.sync_directory("/")
    log = kit.log(config, files)
    for number in range(count):
        kit.append(log, [kit.now_ms + number], producer_id=1, producer_epoch=0, base_sequence=number)
    log.close()
    return files, log


def damage(files, path: str, data: bytes) -> None:
    files.write_atomically(path, data, sync=False)


def segments(log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def indexes(log) -> list[list[tuple[int, int]]]:
    return [index.entries() for segment in log.segments for index in (segment.offset_index, segment.time_index)]


def test_a_clean_start_finds_everything_as_it_was(kit) -> None:
    files, log = written(kit, 20)
    again = kit.log(CONFIG, files)
    assert segments(again) == segments(log)
    assert indexes(again) == indexes(log)
    assert (again.log_start_offset, again.flushed_offset, again.log_end_offset) == (0, 20, 20)
    assert again.end_offset_for_epoch(0) == (0, 20)
    assert again.flush_plan() is None


def test_a_clean_start_reads_no_batch_but_those_behind_the_last_index_entry(kit, monkeypatch) -> None:
    files, _ = written(kit, 200, TopicConfig(index_interval_bytes=60))
    read = []
    real = files.open

    def open_watched(path: str, *, create: bool = False):
        file = real(path, create=create)
        if not path.endswith(".log"):
            return file

        class Watched:
            size = file.size

            def read(self, position: int, size: int) -> bytes:
                read.append(position)
                return file.read(position, size)

        return Watched()

    monkeypatch.setattr(files, "open", open_watched)
    log = kit.log(CONFIG, files)
    assert log.log_end_offset == 200
    assert min(read) > log.segments[-1].size - 300


def test_appending_goes_on_after_a_clean_start_as_if_there_had_been_none(kit) -> None:
    files, log = written(kit, 10)
    log = kit.log(CONFIG, files)
    for number in range(10, 30):
        kit.append(log, [kit.now_ms + number], producer_id=1, producer_epoch=0, base_sequence=number)
    _, without_stop = written(kit, 30)
    assert segments(log) == segments(without_stop)
    log.close()
    assert indexes(log) == indexes(without_stop)


@given(cut=st.integers(0, 5000), garbage=st.binary(max_size=200), point=st.integers(0, 20))
def test_a_torn_or_dirty_tail_is_cut_at_the_last_good_batch(kit, cut: int, garbage: bytes, point: int) -> None:
    files, log = written(kit, 20, TopicConfig(index_interval_bytes=60))
    path = f"{kit.path}/{FIRST}.log"
    whole = files.read_whole(path)
    size = len(whole) // 20
    cut = max(cut % (len(whole) + 1), point * size)
    damage(files, path, whole[:cut] + garbage)
    log = kit.log(CONFIG, files, recovery_point=point)
    good = cut // size
    assert kit.offsets(log) == list(range(good))
    assert files.size(path) == good * size
    assert kit.append(log, producer_id=1, producer_epoch=0, base_sequence=good).base_offset == good
    assert kit.offsets(log) == list(range(good + 1))


@given(position=st.integers(0, 19), byte=st.integers(0, 200))
def test_a_flipped_byte_behind_the_recovery_point_ends_the_log_there(kit, position: int, byte: int) -> None:
    files, _ = written(kit, 20, TopicConfig())
    path = f"{kit.path}/{FIRST}.log"
    data = bytearray(files.read_whole(path))
    size = len(data) // 20
    data[position * size + 16 + byte % (size - 16)] ^= 0x41
    damage(files, path, bytes(data))
    assert kit.offsets(kit.log(CONFIG, files, recovery_point=0)) == list(range(position))


def test_what_was_cut_is_reported(kit, caplog) -> None:
    files, _ = written(kit, 3, TopicConfig())
    path = f"{kit.path}/{FIRST}.log"
    whole = files.read_whole(path)
    damage(files, path, whole[:-7])
    with caplog.at_level(logging.WARNING):
        kit.log(CONFIG, files, recovery_point=0)
    assert f"orders-0: removed {len(whole) // 3 - 7} bytes after offset 2 ({FIRST}.log)" in caplog.text


def test_segments_behind_a_cut_are_removed(kit) -> None:
    files, log = written(kit, 20)
    second = segments(log)[1]
    path = f"{kit.path}/{second:020d}.log"
    damage(files, path, files.read_whole(path)[:-1])
    log = kit.log(CONFIG, files, recovery_point=0)
    assert segments(log) == [0, second]
    assert kit.offsets(log) == list(range(log.log_end_offset))
    names = files.list_directory(kit.path)
    assert [name for name in names if name.endswith(".log")] == [f"{FIRST}.log", f"{second:020d}.log"]
    assert kit.append(log, producer_id=1, producer_epoch=0, base_sequence=log.log_end_offset)


def test_segments_behind_a_hole_are_removed(kit) -> None:
    files, log = written(kit, 20)
    second = segments(log)[1]
    files.remove(f"{kit.path}/{second:020d}.log")
    log = kit.log(CONFIG, files, recovery_point=0)
    assert segments(log) == [0]
    assert log.log_end_offset == second


def test_a_recovery_point_past_the_end_is_not_believed(kit) -> None:
    files, _ = written(kit, 20, TopicConfig())
    path = f"{kit.path}/{FIRST}.log"
    data = bytearray(files.read_whole(path))
    data[len(data) // 2 + 70] ^= 1
    damage(files, path, bytes(data))
    assert kit.log(CONFIG, files, recovery_point=20).log_end_offset == 20, "below the point nothing is checked"
    assert kit.log(CONFIG, files, recovery_point=100).log_end_offset == 10


@given(batch=st.integers(0, 19), byte=st.integers(0, 7), is_below=st.booleans())
def test_a_base_offset_that_jumps_ends_the_log(kit, batch: int, byte: int, is_below: bool) -> None:
    files, _ = written(kit, 20, TopicConfig())
    path = f"{kit.path}/{FIRST}.log"
    data = bytearray(files.read_whole(path))
    data[batch * len(data) // 20 + byte] ^= 0x20
    damage(files, path, bytes(data))
    log = kit.log(CONFIG, files, recovery_point=20 if is_below else 0)
    assert log.log_end_offset == batch
    assert kit.offsets(log) == list(range(batch))


def test_missing_indexes_are_made_again(kit) -> None:
    for recovery_point in (None, 20):
        files, log = written(kit, 20)
        before = indexes(log)
        for name in files.list_directory(kit.path):
            if name.endswith("index"):
                files.remove(f"{kit.path}/{name}")
        again = kit.log(CONFIG, files, recovery_point=recovery_point)
        again.close()
        again.segments[-1].finish_indexes()
        assert indexes(again) == before


def test_indexes_with_zeros_or_a_short_time_index_are_made_again_after_a_crash(kit) -> None:
    config = TopicConfig(index_interval_bytes=60)
    for suffix, spoil in [
        (".index", lambda data: data[:16] + bytes(16) + data[32:]),
        (".index", lambda data: data[:-3]),
        (".timeindex", lambda data: data[:24]),
        (".timeindex", lambda data: data[:-12] + bytes(12)),
        (".timeindex", lambda data: b""),
    ]:
        files, log = written(kit, 20, config)
        before = indexes(log)
        path = f"{kit.path}/{FIRST}{suffix}"
        damage(files, path, spoil(files.read_whole(path)))
        again = kit.log(config, files, recovery_point=18)
        assert indexes(again) == before, suffix
        for number in range(20):
            assert again.offset_for_timestamp(kit.now_ms + number, up_to=20)[1] == number


def test_leader_epochs_are_found_again(kit) -> None:
    for is_file_lost, recovery_point in [(False, None), (True, None), (True, 0), (False, 2)]:
        files = kit.files()
        log = kit.log(files=files)
        for epoch in (0, 0, 2, 5):
            kit.append(log, 2, epoch=epoch)
        log.close()
        if is_file_lost:
            files.remove(f"{kit.path}/leader-epoch-checkpoint")
        again = kit.log(files=files, recovery_point=recovery_point)
        assert again.end_offset_for_epoch(1) == (0, 4)
        assert again.end_offset_for_epoch(2) == (2, 6)
        assert again.end_offset_for_epoch(5) == (5, 8)


def test_producers_are_found_again_whatever_became_of_the_snapshots(kit) -> None:
    for recovery_point in (None, 0, 12):
        for lost in ("none", "newest", "all", "damaged"):
            files, _ = written(kit, 20)
            snapshots = [name for name in files.list_directory(kit.path) if name.endswith(".snapshot")]
            for name in {"none": [], "newest": snapshots[-1:]}.get(lost, snapshots):
                if lost == "damaged":
                    damage(files, f"{kit.path}/{name}", files.read_whole(f"{kit.path}/{name}")[:-1])
                else:
                    files.remove(f"{kit.path}/{name}")
            log = kit.log(CONFIG, files, recovery_point=recovery_point)
            for sequence in range(15, 20):
                again = kit.append(
                    log, [kit.now_ms + sequence], producer_id=1, producer_epoch=0, base_sequence=sequence
                )
                assert again.is_duplicate
                assert again.base_offset == sequence
            assert not kit.append(log, producer_id=1, producer_epoch=0, base_sequence=20).is_duplicate


def test_the_log_start_is_kept_and_a_start_past_the_end_empties_the_log(kit) -> None:
    files, _ = written(kit, 20)
    assert kit.offsets(kit.log(CONFIG, files, log_start_offset=13)) == list(range(13, 20))
    log = kit.log(CONFIG, files, recovery_point=0, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, segments(log)) == (50, 50, [])
    assert kit.append(log).base_offset == 50


def test_leftovers_are_removed(kit) -> None:
    files, _ = written(kit, 20)
    for name in (f"{FIRST}.log.deleted", "leader-epoch-checkpoint.tmp", f"{99:020d}.index"):
        damage(files, f"{kit.path}/{name}", b"x")
    kit.log(CONFIG, files)
    names = files.list_directory(kit.path)
    assert not [name for name in names if name.endswith((".deleted", ".tmp")) or name.startswith(f"{99:020d}")]


def test_on_a_full_disk_a_recovered_log_can_be_read_and_heals_when_there_is_room(kit) -> None:
    for lost in (".index", ".timeindex", "none"):
        files, _ = written(kit, 20)
        for name in files.list_directory(kit.path):
            if name.endswith(lost):
                files.remove(f"{kit.path}/{name}")
        files.crash(names=Survivors.ALL, content=Survivors.ALL)
        real_step = files.step

        def full(kind: str, path: str, real_step=real_step) -> None:
            real_step(kind, path)
            if kind == "write" and path.endswith((".tmp", ".snapshot")):
                raise StorageError(f"{path}: No space left on device")

        files.step = full
        log = kit.log(CONFIG, files, recovery_point=3)
        assert kit.offsets(log) == list(range(20))
        assert "No space left" in log.failure
        assert log.flush_is_due(kit.now_ms)
        with pytest.raises(StorageError, match="No space left"):
            kit.append(log)
        files.step = real_step
        log.flush()
        assert log.failure is None
        assert kit.append(log).base_offset == 20
        files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
        assert kit.offsets(kit.log(CONFIG, files, recovery_point=20)) == list(range(20))
