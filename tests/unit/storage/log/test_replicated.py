"""What a follower appends: batches as its leader sent them, and nothing that no leader sends."""

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import LeaderEpoch, Offset
from skep.records.batch import BatchHeader, prefix_for, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import batches_in
from skep.storage.file_names import OFFSET_GAPS
from tests.memory_files import Survivors

SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=60)


def placed(kit, offset: int, count: int = 1, epoch: int = 0, **options: int) -> bytes:
    """A batch as it lies in a leader's log."""
    batch = kit.batch(count, **options)
    return prefix_for(offset, read_header(batch).batch_length, epoch) + batch[16:]


def content(kit, log) -> list[bytes]:
    return [batch for _, batch in found_in(log)]


def found_in(log) -> list[tuple[BatchHeader, bytes]]:
    """Without the kit, which expects no gaps."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
        if piece.file is None:
            break
        found += batches_in(piece.file.read(piece.position, piece.size))
        offset = piece.next_offset
    return found


def refusal(log, records: bytes) -> KafkaError:
    with pytest.raises(KafkaError) as raised:
        log.append_replicated(records, 0)
    assert raised.value.code is ErrorCode.corrupt_message
    return raised.value


def test_a_copy_has_the_bytes_of_the_leader_whatever_the_segments_are(kit) -> None:
    leader = kit.log(SMALL)
    for number in range(30):
        kit.append(leader, [kit.now_ms + number] * (1 + number % 3), epoch=number // 12)
    batches = content(kit, leader)
    for config in (SMALL, TopicConfig()):
        follower = kit.log(config)
        for records in (b"".join(batches[:7]), memoryview(b"".join(batches[7:]))):
            assert follower.append_replicated(records, kit.now_ms) == len(records)
        assert content(kit, follower) == batches
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.latest_epoch == 2
        for epoch in (0, 1, 2):
            assert follower.end_offset_for_epoch(epoch) == leader.end_offset_for_epoch(epoch)
        for number in range(30):
            for log in (leader, follower):
                found = log.offset_for_timestamp(kit.now_ms + number, up_to=log.log_end_offset)
                assert found == leader.offset_for_timestamp(kit.now_ms + number, up_to=leader.log_end_offset)
    assert len(leader.segments) > 5
    assert len(follower.segments) == 1


def test_segments_are_rolled_by_the_rules_of_the_leader(kit) -> None:
    leader, follower = kit.log(SMALL), kit.log(SMALL)
    for _ in range(30):
        kit.append(leader)
    follower.append_replicated(b"".join(content(kit, leader)), kit.now_ms)
    assert [segment.base_offset for segment in follower.segments] == [s.base_offset for s in leader.segments]
    weekly = TopicConfig(segment_ms=1000)
    leader, follower = kit.log(weekly), kit.log(weekly)
    for number in range(10):
        kit.append(leader, [kit.now_ms + 400 * number])
    follower.append_replicated(b"".join(content(kit, leader)), kit.now_ms)
    assert len(leader.segments) == 4
    assert [segment.base_offset for segment in follower.segments] == [s.base_offset for s in leader.segments]


def test_all_batches_for_one_segment_are_one_write(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(), files)
    log.append_replicated(placed(kit, 0), kit.now_ms)
    before = files.steps
    log.append_replicated(b"".join(placed(kit, 1 + number) for number in range(20)), kit.now_ms)
    assert files.steps == before + 1


def test_a_batch_that_is_cut_off_is_ignored_and_comes_again(kit) -> None:
    log = kit.log()
    first, second = placed(kit, 0, 3), placed(kit, 3, 2)
    for cut in (1, 60, 61, len(second) - 1):
        assert log.append_replicated(first + second[:cut], kit.now_ms) in (len(first), 0)
        assert log.log_end_offset == 3
    assert log.append_replicated(first + second, kit.now_ms) == len(second)
    assert content(kit, log) == [first, second]
    assert log.append_replicated(b"", kit.now_ms) == 0


def test_what_no_leader_sends_is_refused_and_what_comes_before_it_is_kept(kit) -> None:
    good = placed(kit, 0, 2, epoch=3)
    flipped = bytearray(placed(kit, 2, epoch=3))
    flipped[-1] ^= 1
    next_one = placed(kit, 3, epoch=3)
    for bad, detail in [
        (bytes(flipped), "CRC32C of batch 2"),
        (b"\xff" * 80, "no record batch"),
        (placed(kit, 1, 3, epoch=3), "begins before offset 2"),
        (placed(kit, 2, epoch=2), "of epoch 2, after 3"),
        (placed(kit, 2, epoch=-1), "of epoch -1, after 3"),
    ]:
        log = kit.log()
        assert detail in refusal(log, good + bad + next_one).detail
        assert content(kit, log) == [good]
        assert log.append_replicated(placed(kit, 2, epoch=3), kit.now_ms) > 0
    log = kit.log()
    assert "without one whole batch" in refusal(log, good[:-1]).detail
    assert "without one whole batch" in refusal(log, b"x").detail
    assert log.log_end_offset == 0


def test_gaps_of_compaction_are_kept_and_are_no_damage_after_a_crash(kit) -> None:
    files = kit.files()
    log = kit.log(SMALL, files)
    batches = [placed(kit, 10 * number + 5) for number in range(12)]
    log.append_replicated(b"".join(batches), kit.now_ms)
    assert content(kit, log) == batches
    assert log.log_end_offset == 116
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    again = kit.log(SMALL, files, recovery_point=0)
    assert content(kit, again) == batches
    assert (again.log_start_offset, again.log_end_offset, again.lost_data) == (0, 116, False)
    for directory in ("/", "/data"):
        files.sync_directory(directory)
    files.crash(names=Survivors.SYNCED, content=Survivors.SYNCED)
    assert content(kit, kit.log(SMALL, files, recovery_point=0)) == batches


def test_a_log_with_gaps_can_be_cut_in_a_gap_and_goes_on_behind_it(kit) -> None:
    for offset in range(120):
        log = kit.log(SMALL)
        batches = [placed(kit, 10 * number + 5) for number in range(12)]
        log.append_replicated(b"".join(batches), kit.now_ms)
        kept = [batch for batch in batches if read_header(batch).next_offset <= offset]
        assert log.truncate_to(Offset(offset)) <= offset
        assert content(kit, log) == kept
        log.append_replicated(b"".join(batches), kit.now_ms)
        assert content(kit, log) == batches


def test_a_log_without_gaps_has_no_note_of_them(kit) -> None:
    files = kit.files()
    log = kit.log(SMALL, files)
    log.append_replicated(b"".join(placed(kit, number) for number in range(12)), kit.now_ms)
    assert OFFSET_GAPS not in files.list_directory(kit.path)


def test_a_gap_that_no_index_could_express_begins_a_segment(kit) -> None:
    log = kit.log()
    far = (1 << 31) + 7
    log.append_replicated(placed(kit, far), kit.now_ms)
    log.append_replicated(placed(kit, 3 * far), kit.now_ms)
    assert [segment.base_offset for segment in log.segments] == [0, far, 3 * far]
    assert [header.base_offset for header, _ in found_in(log)] == [far, 3 * far]


def test_a_log_start_inside_a_batch_is_followed(kit) -> None:
    """DeleteRecords on the leader up to 15: it sends [10,19] whole to whoever begins at 15."""
    log = kit.log()
    log.start_over_at(Offset(15))
    batch = placed(kit, 10, 10)
    log.append_replicated(batch, kit.now_ms)
    assert (log.log_start_offset, log.log_end_offset) == (15, 20)
    assert kit.offsets(log) == [15, 16, 17, 18, 19]
    assert [segment.base_offset for segment in log.segments] == [10]


def test_producers_and_transactions_follow(kit) -> None:
    leader, follower = kit.log(), kit.log()
    for sequence in range(3):
        batch = build_batch(
            [NewRecord(b"k", b"v", kit.now_ms)],
            producer_id=4,
            producer_epoch=1,
            base_sequence=sequence,
            is_transactional=True,
        )
        leader.append(batch, read_header(batch), LeaderEpoch(0), kit.now_ms)
    follower.append_replicated(b"".join(content(kit, leader)), kit.now_ms)
    assert follower.first_unstable_offset == 0
    assert follower.append(batch, read_header(batch), LeaderEpoch(0), kit.now_ms).is_duplicate
    leader.append_marker(4, 1, 9, False, LeaderEpoch(0), kit.now_ms)
    follower.append_replicated(content(kit, leader)[-1], kit.now_ms)
    for log in (leader, follower):
        log.producers.transactions.high_watermark_moved(Offset(4))
        assert log.first_unstable_offset is None
        assert [tuple(one) for one in log.aborted_transactions(Offset(0), Offset(4))] == [(4, 0, 3, 4)]
    assert list(leader.producers.states()) == list(follower.producers.states())


def test_a_full_disk_keeps_what_was_written_before_it(kit) -> None:
    files = kit.files()
    log = kit.log(SMALL, files)
    log.append_replicated(placed(kit, 0), kit.now_ms)
    files.fail("write", times=1)
    with pytest.raises(StorageError):
        log.append_replicated(placed(kit, 1), kit.now_ms)
    assert log.log_end_offset == 1
    log.append_replicated(placed(kit, 1), kit.now_ms)
    assert kit.offsets(log) == [0, 1]


def test_an_epoch_is_begun_without_a_batch(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    log.begin_epoch(LeaderEpoch(2))
    log.flush()
    assert not files.exists(kit.path), "there is nothing to keep"
    assert (log.latest_epoch, log.end_offset_for_epoch(2)) == (2, (2, 0))
    kit.append(log, 3, epoch=2)
    log.begin_epoch(LeaderEpoch(5))
    log.begin_epoch(LeaderEpoch(4))
    assert log.latest_epoch == 5
    assert log.end_offset_for_epoch(3) == (2, 3)
    log.flush()
    assert files.read_whole(f"{kit.path}/leader-epoch-checkpoint") == b"0\n2\n2 0\n5 3\n"
    log.truncate_to(Offset(3))
    assert log.latest_epoch == 2, "the new leader may not know it"
