"""Sequence numbers of idempotent producers, and the snapshots of them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import read_header
from skep.storage.producers.producers import Producers

LAST = (1 << 31) - 1


def header(kit, sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0):
    return read_header(kit.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def code_of(producers: Producers, batch) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(batch)
    return caught.value.code


def test_a_batch_that_goes_on_is_new(kit) -> None:
    producers = Producers()
    for sequence in (0, 3, 6):
        batch = header(kit, sequence, 3)
        assert producers.check(batch) is None
        producers.record(batch, 100 + sequence, kit.now_ms)


def test_a_producer_that_is_not_known_may_begin_anywhere(kit) -> None:
    assert Producers().check(header(kit, 77)) is None


def test_sequences_begin_again_after_the_last_number(kit) -> None:
    producers = Producers()
    producers.record(header(kit, LAST - 1, 2), 0, kit.now_ms)
    assert producers.check(header(kit, 0)) is None
    producers.record(header(kit, LAST, 2), 0, kit.now_ms)
    assert producers.check(header(kit, 1)) is None


def test_gaps_and_old_sequences_are_out_of_order(kit) -> None:
    producers = Producers()
    for number in range(7):
        producers.record(header(kit, number), number, kit.now_ms)
    for sequence in (8, 1, 100):
        assert code_of(producers, header(kit, sequence)) is ErrorCode.out_of_order_sequence_number
    assert code_of(producers, header(kit, 6, 2)) is ErrorCode.out_of_order_sequence_number


def test_the_last_five_batches_are_recognised(kit) -> None:
    producers = Producers()
    for number in range(7):
        producers.record(header(kit, 2 * number, 2), 1000 + 2 * number, kit.now_ms)
    for number in range(2, 7):
        found = producers.check(header(kit, 2 * number, 2))
        assert (found.base_offset, found.last_offset) == (1000 + 2 * number, 1001 + 2 * number)


def test_epochs_fence_and_begin_at_zero(kit) -> None:
    producers = Producers()
    producers.record(header(kit, 5, epoch=3), 0, kit.now_ms)
    assert code_of(producers, header(kit, 6, epoch=2)) is ErrorCode.invalid_producer_epoch
    assert code_of(producers, header(kit, 6, epoch=4)) is ErrorCode.out_of_order_sequence_number
    assert producers.check(header(kit, 0, epoch=4)) is None
    producers.record(header(kit, 0, epoch=4), 1, kit.now_ms)
    assert producers.check(header(kit, 1, epoch=4)) is None


def test_silent_producers_expire(kit) -> None:
    producers = Producers()
    producers.record(header(kit, 0, producer=1), 0, 100)
    producers.record(header(kit, 0, producer=2), 1, 200)
    producers.expire(200)
    assert len(producers) == 1
    assert producers.check(header(kit, 50, producer=1)) is None


def test_there_is_a_bound_and_the_most_silent_goes(kit) -> None:
    producers = Producers(max_producers=2)
    for producer in (1, 2, 1, 3):
        producers.record(header(kit, 0, producer=producer, epoch=producer), 0, kit.now_ms)
    assert len(producers) == 2
    assert producers.check(header(kit, 9, producer=2)) is None
    assert code_of(producers, header(kit, 9, producer=1, epoch=1)) is ErrorCode.out_of_order_sequence_number


def test_a_snapshot_is_as_kafka_writes_it(kit) -> None:
    producers = Producers()
    producers.record(header(kit, 4, 3, producer=9, epoch=2), 100, 55)
    data = producers.encode()
    assert data[:2] == b"\0\1"
    assert data[6:] == struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 6, 102, 2, 55, -1, -1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=30))
def test_a_snapshot_gives_the_same_answers(kit, batches: list[tuple[int, int]]) -> None:
    producers, sequences, offset = Producers(), {1: LAST - 3, 2: 0, 3: 0}, 0
    seen = []
    for producer, count in batches:
        batch = header(kit, sequences[producer], count, producer=producer)
        producers.record(batch, offset, kit.now_ms)
        seen.append(batch)
        offset += count
        sequences[producer] = (sequences[producer] + count) & LAST
    again = Producers.decode(producers.encode())
    for batch in seen:
        try:
            expected = producers.check(batch)
        except KafkaError:
            assert code_of(again, batch) is ErrorCode.out_of_order_sequence_number
        else:
            assert again.check(batch) == expected


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_damaged_snapshot_is_noticed(kit, position: int, flip: int) -> None:
    producers = Producers()
    for number in range(3):
        producers.record(header(kit, number), number, kit.now_ms)
    data = bytearray(producers.encode())
    data[position % len(data)] ^= flip
    with pytest.raises(ValueError, match="snapshot"):
        Producers.decode(bytes(data))
    with pytest.raises(ValueError, match="snapshot"):
        Producers.decode(producers.encode()[:-1])


def test_a_snapshot_of_many_producers_has_all_batches_of_the_recent_ones_only(kit, monkeypatch) -> None:
    monkeypatch.setattr("skep.storage.producers.producers.RECENT_PRODUCERS", 2)
    producers = Producers()
    for producer in (1, 2, 3, 4):
        for sequence in range(5):
            producers.record(header(kit, sequence, producer=producer), 10 * producer + sequence, kit.now_ms)
    again = Producers.decode(producers.encode())
    for producer in (3, 4):
        for sequence in range(5):
            assert again.check(header(kit, sequence, producer=producer)).base_offset == 10 * producer + sequence
    for producer in (1, 2):
        assert again.check(header(kit, 4, producer=producer)).base_offset == 10 * producer + 4
        assert again.check(header(kit, 5, producer=producer)) is None
        assert code_of(again, header(kit, 3, producer=producer)) is ErrorCode.out_of_order_sequence_number


def test_producers_of_a_snapshot_stay_packed_until_they_come_back(kit) -> None:
    """To unpack ten thousand of them would hold the event loop when a log is opened."""
    producers = Producers()
    for producer in range(100):
        producers.record(header(kit, 0, 3, producer=producer), producer, kit.now_ms + producer)
    again = Producers.decode(producers.encode())
    assert again.check(header(kit, 3, producer=7)) is None
    assert (len(again._producers), len(again._packed), len(again)) == (1, 99, 100)
    assert again.latest_timestamp == kit.now_ms + 99
    assert sorted(again.last_records()) == sorted(producers.last_records())
    assert again.encode() == producers.encode()
    again.expire(kit.now_ms + 50)
    assert [state.producer_id for state in again.states()] == list(range(50, 100))
    assert not again._packed


def test_the_latest_timestamp_is_that_of_all_producers_also_of_those_who_wrote_since_a_snapshot(kit) -> None:
    files = kit.files()
    log = kit.log(files=files)
    for producer_id in (1, 2):
        kit.append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0, now_ms=kit.now_ms)
    log.close()
    again = kit.log(files=files)
    kit.append(again, producer_id=1, producer_epoch=0, base_sequence=1, now_ms=kit.now_ms + 1000)
    assert again.producers.latest_timestamp == kit.now_ms + 1000
