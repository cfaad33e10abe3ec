"""What a pass of compaction leaves of a log, against a model that was written from Kafka's rules."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import LeaderEpoch
from skep.records.batch import DELETE_HORIZON_FLAG, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.record import batches_in
from skep.storage.compaction.compaction_plan import cleanable
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from tests.compacting import Writer, compact, records_of
from tests.manual_clock import ManualClock
from tests.memory_files import Survivors

pytestmark = pytest.mark.usefixtures("each_variant")

HOUR_MS = 3_600_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=100, delete_retention_ms=10 * HOUR_MS
)


def seal(log: Log) -> None:
    """Begins a new segment and syncs, so that all before it can be compacted."""
    if log.segments:
        log.roll_if_due(log.segments[-1].created_ms + log.config.roll_ms + 1)
        log.flush()


def headers_of(log: Log) -> list:
    return [header for segment in log.segments for header, _ in batches_in(segment.file.read(0, segment.size))]


def offsets_of(log: Log) -> list[int]:
    return [record.offset for record in records_of(log)]


def check_lookups(kit, log: Log) -> None:
    """A read from any offset, also one that is gone, begins with the first batch that is not before it."""
    headers = headers_of(log)
    for offset in range(log.log_start_offset, log.log_end_offset):
        expected = next((header.base_offset for header in headers if header.last_offset >= offset), None)
        piece = log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
        found = None if piece.file is None else read_header(piece.file.read(piece.position, piece.size)).base_offset
        assert found == expected
    for record in records_of(log):
        by_time = log.offset_for_timestamp(record.timestamp, up_to=log.log_end_offset)
        assert by_time is not None
        assert by_time.timestamp >= record.timestamp
        assert by_time.offset <= record.offset


def test_the_newest_record_of_each_key_stays_at_its_offset(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(20):
        writer.data([(f"key-{n % 3}".encode(), f"value {n}".encode())], kit.now_ms + n)
    seal(writer.log)
    result = compact(files, writer.log, kit.now_ms)
    assert [(r.offset, r.key, r.value) for r in records_of(writer.log)] == [
        (17, b"key-2", b"value 17"),
        (18, b"key-0", b"value 18"),
        (19, b"key-1", b"value 19"),
    ]
    assert result is not None
    assert (result.records_before, result.records_after, result.clean_up_to) == (20, 3, 20)
    check_lookups(kit, writer.log)


def test_the_active_segment_and_what_is_not_synced_are_left_alone(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(12):
        writer.data([(b"key-%d" % n, b"value")], kit.now_ms)
    for n in range(12):
        writer.data([(b"key-%d" % n, b"value")], kit.now_ms)
    active = writer.log.segments[-1].base_offset
    assert active > 12
    assert not cleanable(writer.log, None, writer.log.log_end_offset, kit.now_ms).segments
    writer.log.flush()
    compact(files, writer.log, kit.now_ms)
    assert offsets_of(writer.log) == [*range(active - 12, 12), *range(12, 24)]


def test_a_batch_that_loses_records_keeps_its_offsets_and_its_codec(kit) -> None:
    for codec in Codec:
        files = kit.files()
        writer = Writer(kit.log(CONFIG, files))
        writer.data([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], kit.now_ms, codec=codec)
        writer.data([(b"b", b"4")], kit.now_ms + 10, codec=codec)
        seal(writer.log)
        compact(files, writer.log, kit.now_ms)
        first, second = headers_of(writer.log)
        assert (first.base_offset, first.last_offset, first.records_count, first.codec) == (0, 2, 1, codec)
        assert first.max_timestamp == kit.now_ms + 2
        assert second.base_offset == 3
        assert offsets_of(writer.log) == [2, 3]


def test_a_tombstone_stays_until_the_horizon_that_the_first_pass_sets(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    writer.data([(b"a", b"1"), (b"b", b"1")], kit.now_ms)
    writer.data([(b"a", None)], kit.now_ms + 5)
    seal(writer.log)
    compact(files, writer.log, kit.now_ms)
    assert offsets_of(writer.log) == [1, 2]
    marked = headers_of(writer.log)[-1]
    assert marked.attributes & DELETE_HORIZON_FLAG
    assert marked.base_timestamp == kit.now_ms + 10 * HOUR_MS
    assert records_of(writer.log)[-1].timestamp == kit.now_ms + 5, "readers see the record's own time"
    for hours, expected in ((9, [1, 2]), (10, [1])):
        compact(files, writer.log, kit.now_ms + hours * HOUR_MS, cleaned_up_to=3)
        assert offsets_of(writer.log) == expected


def test_records_of_an_aborted_transaction_go_and_its_marker_when_they_are_gone(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(replace(CONFIG, segment_bytes=10_000), files))
    writer.data([(b"a", b"good")], kit.now_ms)
    writer.data([(b"a", b"bad")], kit.now_ms, producer_id=7, is_transactional=True)
    writer.marker(7, kit.now_ms, committed=False)
    writer.data([(b"other", b"1")], kit.now_ms, producer_id=7)
    writer.log.producers.transactions.high_watermark_moved(writer.log.log_end_offset)
    seal(writer.log)
    compact(files, writer.log, kit.now_ms)
    assert offsets_of(writer.log) == [0, 2, 3], "the value before the aborted one is the newest"
    assert len(writer.log.aborted_transactions(0, writer.log.log_end_offset)) == 1
    for hours, expected in ((0, [0, 2, 3]), (9, [0, 2, 3]), (10, [0, 3])):
        compact(files, writer.log, kit.now_ms + hours * HOUR_MS, cleaned_up_to=4)
        assert offsets_of(writer.log) == expected
    assert writer.log.aborted_transactions(0, writer.log.log_end_offset) == []


def test_nothing_from_the_first_undecided_transaction_on_is_touched(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(6):
        writer.data([(b"a", b"%d" % n)], kit.now_ms)
    seal(writer.log)
    writer.data([(b"a", b"open")], kit.now_ms, producer_id=7, is_transactional=True)
    writer.data([(b"a", b"later")], kit.now_ms)
    seal(writer.log)
    compact(files, writer.log, kit.now_ms)
    assert offsets_of(writer.log) == [5, 6, 7]


def test_the_last_batch_of_a_producer_stays_without_records_for_its_sequence(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    writer.data([(b"a", b"1")], kit.now_ms, producer_id=7)
    writer.data([(b"a", b"2"), (b"a", b"3")], kit.now_ms, producer_id=7)
    writer.data([(b"a", b"4")], kit.now_ms)
    seal(writer.log)
    compact(files, writer.log, kit.now_ms)
    empty, last = headers_of(writer.log)
    assert (empty.base_offset, empty.last_offset, empty.records_count, empty.producer_id) == (1, 2, 0, 7)
    assert last.base_offset == 3
    check_lookups(kit, writer.log)
    writer.log.close()
    for name in files.list_directory(kit.path):
        if name.endswith(".snapshot"):
            files.remove(f"{kit.path}/{name}")
    again = kit.log(CONFIG, files)
    repeated = build_batch(
        [NewRecord(b"a", b"2"), NewRecord(b"a", b"3")], producer_id=7, producer_epoch=0, base_sequence=1
    )
    assert again.append(repeated, read_header(repeated), LeaderEpoch(0), kit.now_ms).is_duplicate


def test_records_without_a_key_go_and_are_counted(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    writer.data([(None, b"1"), (b"a", b"2"), (None, b"3")], kit.now_ms)
    seal(writer.log)
    result = compact(files, writer.log, kit.now_ms)
    assert result is not None
    assert result.keyless_records == 2
    assert offsets_of(writer.log) == [1]


def test_small_neighbours_become_one_segment(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(60):
        writer.data([(b"key-%d" % (n % 3), b"%d" % n)], kit.now_ms)
    seal(writer.log)
    assert len(writer.log.segments) > 5
    compact(files, writer.log, kit.now_ms)
    compact(files, writer.log, kit.now_ms, cleaned_up_to=60)
    assert [segment.base_offset for segment in writer.log.segments] == [0, 60]
    names = files.list_directory(kit.path)
    assert [name for name in names if name.endswith((".log", ".cleaned", ".swap"))] == [
        "00000000000000000000.log",
        "00000000000000000060.log",
    ]
    check_lookups(kit, writer.log)


def test_a_pass_that_changes_nothing_leaves_the_files(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(5):
        writer.data([(b"key-%d" % n, b"v")], kit.now_ms)
    seal(writer.log)
    before = writer.log.segments
    compact(files, writer.log, kit.now_ms)
    assert writer.log.segments == before
    assert not [name for name in files.list_directory(kit.path) if name.endswith(".cleaned")]


@pytest.mark.parametrize(("lag_ms", "expected"), [(0, [7]), (10, [3, 4, 5, 6, 7]), (50, list(range(8)))])
def test_young_records_wait_for_the_lag(kit, lag_ms: int, expected: list[int]) -> None:
    files = kit.files()
    writer = Writer(kit.log(replace(CONFIG, min_compaction_lag_ms=lag_ms), files))
    for age_ms in (30, 5):
        for _ in range(4):
            writer.data([(b"a", b"1")], kit.now_ms - age_ms)
        seal(writer.log)
    compact(files, writer.log, kit.now_ms)
    assert offsets_of(writer.log) == expected


def test_a_log_is_due_by_its_dirty_part_or_by_its_oldest_record(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(40):
        writer.data([(b"key-%d" % n, b"v")], kit.now_ms)
    seal(writer.log)
    log = writer.log

    def is_due(cleaned_up_to: int, now_ms: int = kit.now_ms, **config: int) -> bool:
        return cleanable(log, cleaned_up_to, log.log_end_offset, now_ms).is_due(replace(CONFIG, **config))

    assert is_due(10)
    assert not is_due(30)
    assert not is_due(40)
    log.configure(replace(CONFIG, max_compaction_lag_ms=1000))
    assert not is_due(30, kit.now_ms + 900)
    assert is_due(30, kit.now_ms + 1100)
    assert not is_due(40, kit.now_ms + 1100)


keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"long key " * 9]))
values = st.one_of(st.none(), st.binary(max_size=40))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("data"),
            st.lists(st.tuples(keys, values), min_size=1, max_size=6),
            st.sampled_from(list(Codec)),
            st.sampled_from([-1, -1, 4, 5, 6]),
            st.booleans(),
        ),
        st.tuples(st.just("end"), st.sampled_from([4, 5, 6]), st.booleans()),
        st.tuples(st.just("compact"), st.integers(0, 12), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(steps=steps, segment_bytes=st.integers(700, 3000))
def test_any_log_after_any_passes_is_what_the_rules_say(kit, steps: list, segment_bytes: int) -> None:
    files = kit.files()
    config = replace(CONFIG, segment_bytes=segment_bytes)
    writer = Writer(kit.log(config, files))
    open_transactions: set[int] = set()
    now_ms, clean = kit.now_ms, 0
    for step in [*steps, ("compact", 1, False), ("compact", 0, True)]:
        now_ms += 1000
        if step[0] == "data":
            _, pairs, codec, producer, is_transactional = step
            is_transactional = producer >= 0 and (is_transactional or producer in open_transactions)
            if is_transactional:
                open_transactions.add(producer)
            writer.data(pairs, now_ms, codec=codec, producer_id=producer, is_transactional=is_transactional)
        elif step[0] == "end":
            writer.marker(step[1], now_ms, committed=step[2])
            open_transactions.discard(step[1])
        else:
            _, hours, reopen = step
            now_ms += hours * HOUR_MS
            clean = compact_both(kit, files, writer, clean, now_ms)
            if reopen:
                writer.log.close()
                writer.log = kit.log(config, files)
            assert records_of(writer.log) == writer.model.records()
            check_lookups(kit, writer.log)
    before = records_of(writer.log)
    compact(files, writer.log, now_ms, cleaned_up_to=clean)
    assert records_of(writer.log) == before, "a second pass at the same time changes nothing"


def compact_both(kit, files, writer: Writer, clean: int, now_ms: int) -> int:
    """A pass over the log and the same over the model."""
    log = writer.log
    log.producers.transactions.high_watermark_moved(log.log_end_offset)
    seal(log)
    stable = log.first_unstable_offset
    what = cleanable(log, clean, log.log_end_offset if stable is None else stable, now_ms)
    result = compact(files, log, now_ms, cleaned_up_to=clean)
    if result is None:
        return clean
    writer.model.compact(clean, what.end_offset, now_ms, CONFIG.delete_retention_ms, writer.last_offsets())
    return result.clean_up_to


def compacted_directory(kit) -> tuple:
    """A directory with one log whose sealed segments have holes, as a crash right after a pass leaves it."""
    files, clock = kit.files(), ManualClock(kit.now_ms)
    directory = LogDirectory(files, "/data", clock)
    directory.open()
    log = directory.log(kit.partition, CONFIG, uuid.UUID(int=1))
    writer = Writer(log)
    for n in range(30):
        writer.data([(b"key-%d" % (n % 7), b"%d" % n)], kit.now_ms)
    seal(log)
    directory.note_cleaned(kit.partition, 0)
    directory.write_checkpoints()
    result = compact(files, log, kit.now_ms)
    assert result is not None
    directory.note_cleaned(kit.partition, result.clean_up_to)
    directory.write_checkpoints()
    return files, clock, records_of(log)


@pytest.mark.parametrize(
    "lost",
    [
        (),
        ("recovery-point-offset-checkpoint",),
        ("cleaner-offset-checkpoint",),
        ("recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"),
    ],
)
def test_after_a_crash_holes_are_no_damage_whichever_checkpoint_is_lost(kit, lost: tuple[str, ...]) -> None:
    files, clock, before = compacted_directory(kit)
    for name in lost:
        files.remove(f"/data/{name}")
    again = LogDirectory(files, "/data", clock)
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    again.open()
    assert not again.was_clean
    log = again.log(kit.partition, CONFIG, uuid.UUID(int=1))
    assert records_of(log) == before
    assert log.log_end_offset == 30


def test_a_hole_above_what_was_compacted_is_damage(kit) -> None:
    files, clock, before = compacted_directory(kit)
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    again = LogDirectory(files, "/data", clock)
    again.open()
    log = again.log(kit.partition, CONFIG, uuid.UUID(int=1))
    writer = Writer(log)
    for _ in range(3):
        for n in range(4):
            writer.data([(b"new-%d" % n, b"v" * 40)], kit.now_ms)
        seal(log)
    middle = log.segments[-3]
    assert middle.base_offset > 30
    files.remove(middle.file.path)
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    once_more = LogDirectory(files, "/data", clock)
    once_more.open()
    found = once_more.log(kit.partition, CONFIG, uuid.UUID(int=1))
    assert found.log_end_offset <= middle.base_offset
    assert records_of(found)[: len(before)] == before
