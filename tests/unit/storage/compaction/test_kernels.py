"""The compiled loops: known hashes, records against the Python reader, and bytes that make no sense."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import KafkaError
from skep.records.batch import HEADER_SIZE, LENGTH_END, read_header, write_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import iterate_records
from skep.storage.compaction import kernels

KEYS = st.one_of(st.none(), st.binary(max_size=300))


def rows_of(data: bytes) -> np.ndarray:
    rows = np.zeros((len(data) // HEADER_SIZE + 1, kernels.COLUMNS), np.int64)
    count, _ = kernels.find_batches(np.frombuffer(data, np.uint8), 0, len(data), rows)
    assert count >= 0
    return rows[:count]


def new_state(latest: int = -1) -> np.ndarray:
    state = np.zeros(4, np.int64)
    state[kernels.LATEST] = latest
    return state


SECRET = np.frombuffer(bytes(range(16)), np.uint64)
NOTHING = np.frombuffer(b"", np.uint8)


def mapped(data: bytes, rows: np.ndarray, *, slots: int = 1024, capacity: int = 700, from_offset: int = 0) -> tuple:
    table, state = np.zeros((slots, 3), np.uint64), new_state()
    modes = np.zeros(len(rows), np.uint8)
    raw = np.frombuffer(data, np.uint8)
    status = kernels.map_keys(raw, NOTHING, rows, modes, table, capacity, SECRET, from_offset, state)
    return status, table, state


def filtered(data: bytes, rows: np.ndarray, table: np.ndarray, mode: int = kernels.FILTER, **options: int) -> tuple:
    state = new_state(options.get("latest", 1 << 60))
    out = np.zeros(len(data) + 20 * int(rows[:, kernels.COUNT].sum()), np.uint8)
    results = np.zeros((len(rows), kernels.RESULTS), np.int64)
    keep = np.zeros(int(rows[:, kernels.COUNT].max(initial=0)), np.uint8)
    status = kernels.filter_records(
        np.frombuffer(data, np.uint8), NOTHING, rows, np.full(len(rows), mode, np.uint8), table, SECRET,
        options.get("now_ms", 0), options.get("horizon_ms", 0), state, keep, out, results,
    )  # fmt: skip
    return status, results, out


def siphash_128(data: bytes, key: bytes, rounds: int, last_rounds: int) -> bytes:
    """The algorithm as its authors describe it, once more and slowly."""
    mask = (1 << 64) - 1
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(number: int, bits: int) -> int:
        return ((number << bits) | (number >> (64 - bits))) & mask

    def mix(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    mix(last_rounds)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(last_rounds)
    return first.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def test_the_slow_hash_gives_the_vectors_of_its_authors() -> None:
    key = bytes(range(16))
    assert siphash_128(b"", key, 2, 4).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash_128(b"\0", key, 2, 4).hex() == "da87c1d86b99af44347659119b22fc45"


@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_a_key_is_hashed_as_the_slow_hash_does(data: bytes, key: bytes) -> None:
    hashed = kernels.key_hash(np.frombuffer(data, np.uint8), 0, len(data), np.frombuffer(key, np.uint64))
    assert b"".join(int(half).to_bytes(8, "little") for half in hashed) == siphash_128(data, key, 1, 3)


@given(st.lists(KEYS, min_size=1, max_size=40), st.integers(0, 60))
def test_the_map_has_the_newest_offset_of_each_key(keys: list[bytes | None], from_offset: int) -> None:
    data = build_batch([NewRecord(key, b"v") for key in keys], base_offset=20)
    status, table, state = mapped(data, rows_of(data), from_offset=from_offset)
    newest = {key: 20 + n for n, key in enumerate(keys) if key is not None and 20 + n >= from_offset}
    assert status == 0
    assert sorted(int(row[2]) - 1 for row in table if row[2]) == sorted(newest.values())
    assert state[kernels.USED] == len(newest)
    assert state[kernels.LATEST] == 20 + len(keys) - 1


def test_a_full_map_says_up_to_where_it_goes_and_a_larger_one_takes_the_rest() -> None:
    data = build_batch([NewRecord(b"key-%d" % n, b"v") for n in range(10)])
    rows = rows_of(data)
    status, table, state = mapped(data, rows, slots=16, capacity=4)
    assert status == kernels.FULL
    assert (state[kernels.USED], state[kernels.LATEST]) == (4, 3)
    larger = np.zeros((64, 3), np.uint64)
    kernels.rehash(table, larger)
    raw, modes = np.frombuffer(data, np.uint8), np.zeros(1, np.uint8)
    assert kernels.map_keys(raw, NOTHING, rows, modes, larger, 48, SECRET, 0, state) == 0
    assert (state[kernels.USED], state[kernels.LATEST]) == (10, 9)
    assert sorted(int(row[2]) for row in larger if row[2]) == list(range(1, 11))


@given(st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=50))), min_size=1, max_size=600))
def test_the_records_that_stay_are_written_with_their_offsets_times_and_headers(pairs: list) -> None:
    records = [NewRecord(key, value, 1000 + n, [("h", b"x")]) for n, (key, value) in enumerate(pairs)]
    data = build_batch(records)
    rows = rows_of(data)
    _, table, _ = mapped(data, rows)
    status, results, out = filtered(data, rows, table, now_ms=5000, horizon_ms=9000)
    newest = {key: n for n, (key, _) in enumerate(pairs)}
    expected = [r for r in iterate_records(data) if r.key is not None and newest[r.key] == r.offset]
    assert status == 0
    verdict, kept, max_timestamp, start, end = results[0].tolist()
    assert kept == len(expected)
    if not expected:
        assert verdict == kernels.EMPTY
        return
    assert max_timestamp == max(record.timestamp for record in expected)
    has_tombstone = any(record.value is None for record in expected)
    if len(expected) == len(pairs) and not has_tombstone:
        assert verdict == kernels.COPY
        return
    assert verdict == (kernels.REWRITE_MARKED if has_tombstone else kernels.REWRITE)
    header = read_header(data)._replace(batch_length=HEADER_SIZE - LENGTH_END + end - start, records_count=kept)
    if has_tombstone:
        header = header._replace(base_timestamp=9000)
    assert list(iterate_records(write_header(header) + out[start:end].tobytes())) == expected


@given(st.binary(max_size=400))
def test_bytes_that_are_no_batch_are_refused_or_left(data: bytes) -> None:
    rows = np.zeros((len(data) // HEADER_SIZE + 1, kernels.COLUMNS), np.int64)
    count, end = kernels.find_batches(np.frombuffer(data, np.uint8), 0, len(data), rows)
    assert 0 <= end <= len(data)
    assert count <= len(rows)


@given(st.data())
def test_records_that_make_no_sense_are_refused_and_nothing_is_read_outside(data: st.DataObject) -> None:
    """The batch stands between two walls; a read over its end would find a wall and not a record."""
    good = build_batch([NewRecord(b"key-%d" % n, b"value", 1000 + n, [("h", None)]) for n in range(5)])
    body = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(HEADER_SIZE, len(body) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(body) + b"\x02" * 500
    rows = rows_of(bytes(body))
    table = np.zeros((64, 3), np.uint64)
    status = mapped(whole, rows)[0]
    filtered_status = filtered(whole, rows, table)[0]
    assert status in (0, -1)
    assert filtered_status in (0, -1)
    try:
        readable = list(iterate_records(bytes(body)))
    except KafkaError:
        return  # the kernels do not look at headers, so they may take what the reader refuses
    assert (status, filtered_status) == (0, 0)
    assert len(readable) == 5


@pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 1, -1])
def test_a_batch_that_is_cut_off_is_not_taken(size: int) -> None:
    data = build_batch([NewRecord(b"k", b"v")])
    rows = np.zeros((2, kernels.COLUMNS), np.int64)
    assert kernels.find_batches(np.frombuffer(data, np.uint8)[:size], 0, len(data[:size]), rows) == (0, 0)
