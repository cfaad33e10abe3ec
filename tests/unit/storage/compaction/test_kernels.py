"""The loops, compiled and as Python: known hashes, records against the Python reader, and bytes that make no sense."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import KafkaError
from skep.records.batch import HEADER_SIZE, LENGTH_END, read_header, write_header
from skep.records.builder import NewRecord, build_batch
from skep.records.record import iterate_records
from tests.kernel_variants import COMPACTION_KERNELS

KEYS = st.one_of(st.none(), st.binary(max_size=300))


SECRET = memoryview(bytes(range(16))).cast("Q")
Kernels = ModuleType


@pytest.fixture(scope="module", params=list(COMPACTION_KERNELS))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return COMPACTION_KERNELS[request.param]


def table_of(kernels: Kernels, data: bytes) -> memoryview:
    table = kernels.signed_table(len(data) // HEADER_SIZE + 1, kernels.COLUMNS)
    count, _ = kernels.find_batches(data, 0, len(data), table)
    assert count > 0
    return table[:count]


def mapped(
    kernels: Kernels, data: bytes, table: memoryview, *, slots: int = 1024, capacity: int = 700, from_offset: int = 0
) -> tuple:
    offset_map, state = kernels.unsigned_table(slots, kernels.MAP_COLUMNS), kernels.new_state()
    state[kernels.LATEST] = -1
    modes = bytearray(len(table))
    status = kernels.map_keys(
        data, b"", table, modes, offset_map, capacity, SECRET, from_offset, state, *kernels.new_block()
    )
    return status, offset_map, state


def filtered(kernels: Kernels, data: bytes, table: memoryview, offset_map: memoryview, **options: int) -> tuple:
    state = kernels.new_state()
    state[kernels.LATEST] = 1 << 60
    counts = [row[kernels.COUNT] for row in kernels.rows_of(table)]
    out = bytearray(len(data) + 20 * sum(counts))
    results = kernels.signed_table(len(table), kernels.RESULTS)
    status = kernels.filter_records(
        data, b"", table, bytearray(len(table)), offset_map, SECRET,
        options.get("now_ms", 0), options.get("horizon_ms", 0), state, *kernels.new_block(),
        bytearray(max(counts)), out, results,
    )  # fmt: skip
    return status, kernels.rows_of(results), bytes(out)


def offsets_in(kernels: Kernels, offset_map: memoryview) -> list[int]:
    return sorted(row[2] - 1 for row in kernels.rows_of(offset_map) if row[2])


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
    hashed = COMPACTION_KERNELS["compiled"].key_hash(data, 0, len(data), memoryview(key).cast("Q"))
    assert b"".join(int(half).to_bytes(8, "little") for half in hashed) == siphash_128(data, key, 1, 3)


def test_without_a_compiler_the_hash_also_depends_on_the_secret_and_on_every_byte_of_the_key() -> None:
    key_hash = COMPACTION_KERNELS["python"].key_hash
    secrets = [memoryview(bytes([n]) * 16).cast("Q") for n in range(2)]
    data = b"..one-key.."
    places = [(2, 7), (2, 6), (3, 6), (2, 0)]
    hashes = {key_hash(data, start, length, secret) for start, length in places for secret in secrets}
    assert len(hashes) == len(places) * len(secrets)
    assert key_hash(b"one-key", 0, 7, secrets[0]) == key_hash(data, 2, 7, secrets[0])


@given(keys=st.lists(KEYS, min_size=1, max_size=40), from_offset=st.integers(0, 60))
def test_the_map_has_the_newest_offset_of_each_key(
    kernels: Kernels, keys: list[bytes | None], from_offset: int
) -> None:
    data = build_batch([NewRecord(key, b"v") for key in keys], base_offset=20)
    status, offset_map, state = mapped(kernels, data, table_of(kernels, data), from_offset=from_offset)
    newest = {key: 20 + n for n, key in enumerate(keys) if key is not None and 20 + n >= from_offset}
    assert status == 0
    assert offsets_in(kernels, offset_map) == sorted(newest.values())
    assert state[kernels.USED] == len(newest)
    assert state[kernels.LATEST] == 20 + len(keys) - 1


def test_a_full_map_says_up_to_where_it_goes_and_a_larger_one_takes_the_rest(kernels: Kernels) -> None:
    data = build_batch([NewRecord(b"key-%d" % n, b"v") for n in range(10)])
    table = table_of(kernels, data)
    status, offset_map, state = mapped(kernels, data, table, slots=16, capacity=4)
    assert status == kernels.FULL
    assert (state[kernels.USED], state[kernels.LATEST]) == (4, 3)
    larger = kernels.unsigned_table(64, kernels.MAP_COLUMNS)
    kernels.rehash(offset_map, larger)
    rest = kernels.map_keys(data, b"", table, bytearray(1), larger, 48, SECRET, 0, state, *kernels.new_block())
    assert rest == 0
    assert (state[kernels.USED], state[kernels.LATEST]) == (10, 9)
    assert offsets_in(kernels, larger) == list(range(10))


@given(pairs=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=50))), min_size=1, max_size=600))
def test_the_records_that_stay_are_written_with_their_offsets_times_and_headers(kernels: Kernels, pairs: list) -> None:
    records = [NewRecord(key, value, 1000 + n, [("h", b"x")]) for n, (key, value) in enumerate(pairs)]
    data = build_batch(records)
    table = table_of(kernels, data)
    _, offset_map, _ = mapped(kernels, data, table)
    status, results, out = filtered(kernels, data, table, offset_map, now_ms=5000, horizon_ms=9000)
    newest = {key: n for n, (key, _) in enumerate(pairs)}
    expected = [r for r in iterate_records(data) if r.key is not None and newest[r.key] == r.offset]
    assert status == 0
    verdict, kept, max_timestamp, start, end = results[0]
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
    assert list(iterate_records(write_header(header) + out[start:end])) == expected


@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_batch_are_refused_or_left(kernels: Kernels, data: bytes) -> None:
    table = kernels.signed_table(len(data) // HEADER_SIZE + 1, kernels.COLUMNS)
    count, end = kernels.find_batches(data, 0, len(data), table)
    assert 0 <= end <= len(data)
    assert count <= len(table)


@pytest.mark.parametrize("base_offset", [-1, (1 << 63) - 1])
def test_a_batch_with_an_offset_that_cannot_be_is_refused(kernels: Kernels, base_offset: int) -> None:
    """The CRC does not cover the base offset."""
    data = build_batch([NewRecord(b"k", b"v")])
    data = base_offset.to_bytes(8, "big", signed=True) + data[8:]
    assert kernels.find_batches(data, 0, len(data), kernels.signed_table(2, kernels.COLUMNS)) == (-1, 0)


@given(data=st.data())
def test_records_that_make_no_sense_are_refused_and_nothing_is_read_outside(
    kernels: Kernels, data: st.DataObject
) -> None:
    """The batch stands between two walls; a read over its end would find a wall and not a record."""
    good = build_batch([NewRecord(b"key-%d" % n, b"value", 1000 + n, [("h", None)]) for n in range(5)])
    body = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(HEADER_SIZE, len(body) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(body) + b"\x02" * 500
    table = table_of(kernels, bytes(body))
    status = mapped(kernels, whole, table)[0]
    filtered_status = filtered(kernels, whole, table, kernels.unsigned_table(64, kernels.MAP_COLUMNS))[0]
    assert status in (0, -1)
    assert filtered_status in (0, -1)
    try:
        readable = list(iterate_records(bytes(body)))
    except KafkaError:
        return  # the kernels do not look at headers, so they may take what the reader refuses
    assert (status, filtered_status) == (0, 0)
    assert len(readable) == 5


@pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 1, -1])
def test_a_batch_that_is_cut_off_is_not_taken(kernels: Kernels, size: int) -> None:
    data = build_batch([NewRecord(b"k", b"v")])[:size]
    assert kernels.find_batches(data, 0, len(data), kernels.signed_table(2, kernels.COLUMNS)) == (0, 0)
