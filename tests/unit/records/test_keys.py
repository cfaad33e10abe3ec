"""Whether all records of a produced batch have keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import HEADER_SIZE, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.keys import (
    BYTES_PER_LISTED,
    FEW_RECORDS,
    LITTLE_UNPACKED,
    MOST_LISTED,
    InvalidRecord,
    check_keys,
    check_keys_at_once,
    key_hashes,
)

LIMIT = 1000


def check(batch: bytes, max_records: int = LIMIT) -> None:
    check_keys(batch, read_header(batch), max_records=max_records)


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=30),
    st.sampled_from(list(Codec)),
)
def test_records_with_keys_pass(pairs: list, codec: Codec) -> None:
    check(build_batch([NewRecord(key, value, 7, [("h", None)]) for key, value in pairs], codec=codec))


@pytest.mark.parametrize("codec", list(Codec))
def test_all_records_without_a_key_are_named(codec: Codec) -> None:
    batch = build_batch([NewRecord(key, b"v") for key in (b"a", b"", None, b"b", None)], codec=codec)
    with pytest.raises(InvalidRecord, match="records 2, 4 have none") as caught:
        check(batch)
    assert (caught.value.indexes, caught.value.code) == ([2, 4], ErrorCode.invalid_record)


@pytest.mark.parametrize(("codec", "are_all_listed"), [(Codec.NONE, True), (Codec.ZSTD, False)])
def test_the_list_of_records_without_a_key_is_no_longer_than_the_batch(codec: Codec, are_all_listed: bool) -> None:
    batch = build_batch([NewRecord(None, b"v")] * LIMIT, codec=codec)
    with pytest.raises(InvalidRecord, match="records 0, 1, 2 and others have none") as caught:
        check(batch)
    assert caught.value.indexes == list(range(min(LIMIT, len(batch) // BYTES_PER_LISTED)))
    assert (len(caught.value.indexes) == LIMIT) is are_all_listed


def test_at_most_ten_thousand_records_without_a_key_are_named() -> None:
    with pytest.raises(InvalidRecord) as caught:
        check(build_batch([NewRecord(None, b"v" * 100)] * (MOST_LISTED + 1)), MOST_LISTED + 1)
    assert caught.value.indexes == list(range(MOST_LISTED))


def test_a_batch_with_too_many_records_is_refused_before_it_is_unpacked() -> None:
    batch = build_batch([NewRecord(b"a", b"v")] * 11)
    check(batch, 11)
    with pytest.raises(KafkaError) as caught:
        check(batch, 10)
    assert caught.value.code == ErrorCode.record_list_too_large


def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    batch = build_batch([NewRecord(b"a", bytes(33 << 20))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError, match="unpack to more"):
        check(batch)


@given(st.data())
def test_damaged_records_are_refused_or_harmless(data: st.DataObject) -> None:
    batch = bytearray(build_batch([NewRecord(b"key", b"value", 1000 + n) for n in range(4)]))
    batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        check(bytes(batch))
    except KafkaError as error:
        assert error.code in (ErrorCode.invalid_record, ErrorCode.corrupt_message)


def test_a_record_without_its_number_of_headers_is_refused() -> None:
    batch = build_batch([NewRecord(b"", b"")])
    assert batch[HEADER_SIZE:] == bytes([12, 0, 0, 0, 0, 0, 0])
    check(batch)
    with pytest.raises(InvalidRecord, match="do not fit"):
        check(batch[:HEADER_SIZE] + bytes([10, 0, 0, 0, 0, 0]))


def test_offset_deltas_that_do_not_count_up_are_refused() -> None:
    batch = build_batch([NewRecord(b"a", b"1"), NewRecord(b"b", b"2")])
    swapped = batch[:HEADER_SIZE] + build_batch([NewRecord(b"a", b"1")])[HEADER_SIZE:] * 2
    with pytest.raises(InvalidRecord, match="offset delta 0"):
        check(swapped)


def at_once(batch: bytes, max_records: int = 10**6) -> bool:
    return check_keys_at_once(batch, read_header(batch), max_records=max_records)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_small_batch_is_checked_at_once(codec: Codec) -> None:
    assert at_once(build_batch([NewRecord(b"k", b"v")] * FEW_RECORDS, codec=codec))
    with pytest.raises(InvalidRecord, match="record 1 has none"):
        at_once(build_batch([NewRecord(b"k", b"v"), NewRecord(None, b"v")], codec=codec))
    with pytest.raises(KafkaError):
        at_once(build_batch([NewRecord(b"k", b"v")] * 3, codec=codec), max_records=2)


@pytest.mark.parametrize("codec", list(Codec))
def test_many_records_are_left_to_a_thread(codec: Codec) -> None:
    batch = build_batch([NewRecord(b"k", b"v")] * (FEW_RECORDS + 1), codec=codec)
    assert not at_once(batch)
    check(batch, FEW_RECORDS + 1)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_what_unpacks_to_much_is_left_to_a_thread(codec: Codec) -> None:
    batch = build_batch([NewRecord(b"k", bytes(LITTLE_UNPACKED))], codec=codec)
    assert len(batch) < LITTLE_UNPACKED // 8
    assert not at_once(batch)
    check(batch)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_of_a_damaged_batch_the_thread_says_that_it_is(codec: Codec) -> None:
    batch = build_batch([NewRecord(b"k", b"v")], codec=codec)
    damaged = batch[:HEADER_SIZE] + b"\xff" * (len(batch) - HEADER_SIZE)
    assert not at_once(damaged)
    with pytest.raises(KafkaError) as caught:
        check(damaged)
    assert caught.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", list(Codec))
def test_the_hashes_of_keys_say_which_records_have_the_same_key(codec):
    keys = [b"a", None, b"b" * 200, b"a", b"", b"b" * 200]
    batch = build_batch([(key, b"v" * 300, 1_000 * number, ()) for number, key in enumerate(keys)], codec=codec)
    found = dict(key_hashes(batch))
    assert set(found) == {0, 2, 3, 4, 5}
    assert found[0] == found[3]
    assert found[2] == found[5]
    assert len(set(found.values())) == 3
    assert 0 not in found.values()


def test_damaged_records_have_no_hashes():
    batch = build_batch([(b"key", b"value", 0, ())] * 3)
    for end in range(HEADER_SIZE, len(batch)):
        with pytest.raises(KafkaError):
            key_hashes(batch[:end])
