"""Reading: which batches a read gives, compared with a plain list of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.records.record import batches_in
from skep.storage.segment import segment as segment_module
from skep.storage.segment.segment import Segment

CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=150)


def given_by(piece) -> list[int]:
    """The base offsets of the batches in a slice."""
    if piece.file is None:
        return []
    return [header.base_offset for header, _ in batches_in(piece.file.read(piece.position, piece.size))]


@given(
    counts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), min_size=1, max_size=25),
    is_reopened=st.booleans(),
    data=st.data(),
)
def test_a_read_gives_the_batches_that_a_list_gives(kit, counts, is_reopened: bool, data) -> None:
    files = kit.files()
    log = kit.log(CONFIG, files)
    model = []
    for count, size in counts:
        appended = kit.append(log, count, size=size)
        model.append((appended.base_offset, appended.last_offset, len(kit.batch(count, size=size))))
    if is_reopened:
        log.close()
        log = kit.log(CONFIG, files)
    boundaries = [base for base, _, _ in model] + [log.log_end_offset]
    for _ in range(8):
        offset = data.draw(st.integers(0, log.log_end_offset))
        up_to = data.draw(st.sampled_from(boundaries))
        max_bytes = data.draw(st.integers(1, 1200))
        at_least_one = data.draw(st.booleans())
        if data.draw(st.booleans()):
            log.prepare(offset, max_bytes)
        piece = log.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
        bases = given_by(piece)
        allowed = [(base, last, size) for base, last, size in model if last >= offset and base < up_to]
        if offset >= up_to:
            allowed = []
        assert bases == [base for base, _, _ in allowed[: len(bases)]], (
            "a contiguous run from the batch with the offset"
        )
        if len(bases) > 1:
            assert piece.size <= max_bytes
        if allowed and allowed[0][2] <= max_bytes:
            assert bases, "the first batch fits, so it is given"
        if allowed and allowed[0][2] > max_bytes:
            assert len(bases) == (1 if at_least_one else 0)
        if bases:
            following = allowed[len(bases) - 1][1] + 1
            assert piece.next_offset == following


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=30), max_bytes=st.integers(1, 2000))
def test_reading_on_gives_every_batch_once(kit, counts: list[int], max_bytes: int) -> None:
    log = kit.log(CONFIG)
    for count in counts:
        kit.append(log, count)
    assert [header.records_count for header, _ in kit.batches(log, max_bytes)] == counts


def test_what_was_prepared_is_not_looked_for_again(kit, monkeypatch) -> None:
    log = kit.log()
    sizes = [len(kit.batch(1))] * 6
    for _ in sizes:
        kit.append(log, 1)
    log.prepare(2, 2 * sizes[0])
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "first_left_out", None)
        assert given_by(log.read(2, 2 * sizes[0], up_to=6, at_least_one=True)) == [2, 3]
    assert given_by(log.read(2, 2 * sizes[0], up_to=6, at_least_one=True)) == [2, 3], "it was for one reader"
    log.prepare(2, 2 * sizes[0])
    assert given_by(log.read(2, 2 * sizes[0], up_to=3, at_least_one=True)) == [2], "less can be read than was there"


def test_what_cannot_be_prepared_is_no_fault(kit, monkeypatch) -> None:
    log = kit.log()
    log.prepare(0, 100)
    for _ in range(9):
        kit.append(log, 1)
    log.prepare(9, 100)
    refusals = []

    def refuse(segment: Segment, start: int, fits: int, limit: int) -> None:
        refusals.append(start)
        raise StorageError("cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "first_left_out", refuse)
        log.prepare(0, 100)
    assert refusals == [0]
    assert given_by(log.read(0, 100, up_to=9, at_least_one=True)) == [0]


def test_an_offset_inside_a_batch_gives_the_whole_batch(kit) -> None:
    log = kit.log()
    kit.append(log, 5)
    kit.append(log, 5)
    assert given_by(log.read(7, 1 << 20, up_to=10, at_least_one=False)) == [5]


def test_nothing_past_the_high_watermark_is_given(kit) -> None:
    log = kit.log()
    for _ in range(4):
        kit.append(log, 2)
    assert given_by(log.read(0, 1 << 20, up_to=4, at_least_one=True)) == [0, 2]
    assert given_by(log.read(4, 1 << 20, up_to=4, at_least_one=True)) == []
    assert given_by(log.read(6, 1 << 20, up_to=4, at_least_one=True)) == []


def test_offsets_outside_the_log_are_out_of_range(kit) -> None:
    log = kit.log()
    kit.append(log, 5)
    log.delete_records_before(2)
    for offset in (1, 6, -1):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100, up_to=5, at_least_one=True)
        assert caught.value.code is ErrorCode.offset_out_of_range
    assert given_by(log.read(2, 100, up_to=5, at_least_one=True)) == [0], "a batch is never taken apart"
    assert log.read(5, 100, up_to=5, at_least_one=True).size == 0


def test_an_empty_log_gives_nothing(kit) -> None:
    assert kit.log().read(0, 100, up_to=0, at_least_one=True).size == 0


def test_an_index_that_points_into_a_batch_does_not_mislead(kit) -> None:
    files = kit.files()
    log = kit.log(TopicConfig(index_interval_bytes=100), files)
    for _ in range(50):
        kit.append(log, 2)
    log.close()
    whole = files.read_whole(f"{kit.path}/00000000000000000000.index")
    damaged = b"".join(
        whole[at : at + 4] + (int.from_bytes(whole[at + 4 : at + 8], "big") + 1).to_bytes(4, "big")
        for at in range(0, len(whole), 8)
    )
    files.write_atomically(f"{kit.path}/00000000000000000000.index", damaged)
    log = kit.log(log.config, files, recovery_point=None)
    for offset in range(0, 100, 3):
        assert given_by(log.read(offset, 300, up_to=100, at_least_one=True))[0] == offset // 2 * 2


def test_a_slice_stays_readable_when_its_segment_is_deleted(kit) -> None:
    log = kit.log(CONFIG)
    for _ in range(20):
        kit.append(log)
    piece = log.read(0, 1 << 20, up_to=20, at_least_one=True)
    before = piece.file.read(piece.position, piece.size)
    log.detach(log.segments[:1], kit.now_ms).mark()
    assert piece.file.path.endswith(".log.deleted")
    assert piece.file.read(piece.position, piece.size) == before


@pytest.fixture
def sparse(kit, monkeypatch):
    """A log of two segments with forty batches each, of which the indexes know nothing: Kafka may have written it."""
    monkeypatch.setattr(segment_module, "HOPS_AT_ONCE", 4)
    files = kit.files()
    config = TopicConfig(segment_bytes=40 * len(kit.batch()))
    log = kit.log(config, files)
    for _ in range(80):
        kit.append(log)
    assert [segment.offset_index.count for segment in log.segments] == [0, 0]
    log.close()
    return kit.log(config, files)


def times_refused(log, offset: int) -> int:
    for refused in range(100):
        try:
            piece = log.read(offset, 1, up_to=log.log_end_offset, at_least_one=True)
        except StorageError:
            continue
        assert given_by(piece) == [offset]
        return refused
    pytest.fail("it is never found")


@pytest.mark.parametrize("first", [0, 40])
def test_a_lookup_in_a_sparse_segment_goes_on_where_the_last_one_stopped(sparse, first: int) -> None:
    assert times_refused(sparse, first + 4) == 0
    assert times_refused(sparse, first + 39) == 9
    assert times_refused(sparse, first + 39) == 0
    assert [times_refused(sparse, first + offset) for offset in range(40)] == [0] * 40


def test_a_lookup_in_a_thread_walks_over_the_whole_segment(sparse) -> None:
    segment = sparse.segments[0]
    assert segment.find_in_thread(39, segment.size).base_offset == 39


def test_a_slice_of_a_sparse_segment_ends_where_the_walk_does(sparse) -> None:
    size = sparse.segments[0].size
    piece = sparse.read(0, size - 1, up_to=sparse.log_end_offset, at_least_one=True)
    assert given_by(piece) == [0, 1, 2, 3]
    assert piece.next_offset == 4


def test_what_was_walked_over_is_forgotten_when_the_segment_is_cut(sparse) -> None:
    assert times_refused(sparse, 79) == 9
    while True:
        try:
            sparse.truncate_to(50)
            break
        except StorageError:
            continue
    assert sparse.segments[1]._waypoints == []
