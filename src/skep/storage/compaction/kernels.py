"""Loops over the records of many batches at once: finding batches, mapping keys, keeping records.

Compiled where numba is installed, else run as Python (``records/kernel_compiler.py``), with the same results. Only the
helper process imports this module, never the broker.

Batches are rows of a table (``int64``, the columns below). Their records are either in the bytes that were read
(``raw``) or, if they were compressed, in a second buffer (``unpacked``); AREA_START and AREA_END say where. The bytes
are not trusted: no loop reads outside its area or relies on a number in them, and a malformed batch is reported by the
return value ``-1 - number of the batch``.

The offset map is an open-addressing table with rows of three ``uint64``: the two halves of a key's hash of 128 bits,
and the newest offset of that key plus one (0: the row is free). Keys are not stored. The hash has a new random secret
for each pass, so nobody can choose two keys that collide; by chance, among 2**32 keys, it happens once in 2**65.

Tables are memoryviews: numba takes them as it takes arrays of numpy, which the broker is installed without.
"""

import hashlib
import struct
from typing import Any

from skep.records.kernel_compiler import IS_COMPILED, compile_ahead, int64, kernel, uint64, wrapped

COLUMNS = 12
POSITION, SIZE, BASE_OFFSET, LAST_DELTA, ATTRIBUTES, BASE_TIMESTAMP = range(6)
MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, AREA_START, AREA_END = range(6, COLUMNS)

FILTER, DISCARD, KEEP, KEEP_MARKED = range(4)
"""What happens to the records of a batch: looked up in the map; all removed; all kept; all kept, with the delete
horizon set."""

RESULTS = 5
VERDICT, KEPT, NEW_MAX_TIMESTAMP, OUT_START, OUT_END = range(RESULTS)
COPY, EMPTY, REWRITE, REWRITE_MARKED = range(4)
"""The result for a batch: unchanged; without records; fewer records; also with the delete horizon set (KIP-534)."""

STATE = 4
USED, LATEST, READ, KEYLESS = range(STATE)
"""Fields of the state of a pass: rows of the map in use, offset up to which it is complete, records read, those removed
because they have no key."""

MAP_COLUMNS = 3
FULL = -(1 << 62)
BLOCK = 256
"""Records that are hashed before the map is asked for all of them."""

_HEADER_SIZE = 61
_LENGTH_END = 12
_SMALLEST_RECORD = 7
_CODEC_MASK = 0x07
_APPEND_TIME = 0x08
_HORIZON = 0x40
_LARGEST = (1 << 63) - 1
_LONGEST_VARINT = 10
GROWTH_PER_RECORD = 2 * _LONGEST_VARINT
"""Bytes by which a record can grow when its timestamp is rewritten."""

_GOES, _STAYS, _ASK, _TOMBSTONE = 0, 1, 2, 4

_ONE, _SEVEN, _LOW_BITS = uint64(1), uint64(7), uint64(0x7F)
_ALL_BITS = uint64((1 << 64) - 1)
_NO_RECORD = (0, -1, 0, 0, 0, 0, 0, 0)
_TWO_NUMBERS = struct.Struct("<QQ")


def signed_table(rows: int, columns: int) -> memoryview:
    """Zeros. A memoryview has at least one row."""
    return memoryview(bytearray(8 * columns * max(rows, 1))).cast("q", (max(rows, 1), columns))


def unsigned_table(rows: int, columns: int) -> memoryview:
    """Zeros. A memoryview has at least one row."""
    return memoryview(bytearray(8 * columns * max(rows, 1))).cast("Q", (max(rows, 1), columns))


def rows_of(table: memoryview) -> list[list[int]]:
    rows: Any = table.tolist()
    return rows  # type: ignore[no-any-return]  # typeshed knows views of one dimension only


def new_state() -> memoryview:
    return memoryview(bytearray(8 * STATE)).cast("q")


def new_block() -> tuple[memoryview, memoryview]:
    """The hashes of a block of records; their offsets plus one, and their timestamps."""
    return unsigned_table(BLOCK, 2), signed_table(BLOCK, 2)


@kernel()
def _number(raw, position, size):
    """A big endian signed number."""
    number = int64(raw[position])
    if number >= 128:
        number -= 256
    for i in range(1, size):
        number = (number << 8) | int64(raw[position + i])
    return number


@kernel()
def find_batches(raw, position, end, batches):
    """Fills rows with the whole batches between ``position`` and ``end``; returns how many, and where they end."""
    count = 0
    while count < len(batches) and end - position >= _HEADER_SIZE:
        size = _number(raw, position + 8, 4) + _LENGTH_END
        base = _number(raw, position, 8)
        delta = _number(raw, position + 23, 4)
        records = _number(raw, position + 57, 4)
        if raw[position + 16] != 2 or size < _HEADER_SIZE or delta < 0 or records < 0:
            return -1 - count, position
        if base < 0 or base > _LARGEST - 1 - delta:
            return -1 - count, position
        if size > end - position:
            break
        batches[count, POSITION], batches[count, SIZE] = position, size
        batches[count, BASE_OFFSET], batches[count, LAST_DELTA] = base, delta
        batches[count, ATTRIBUTES] = _number(raw, position + 21, 2)
        batches[count, BASE_TIMESTAMP] = _number(raw, position + 27, 8)
        batches[count, MAX_TIMESTAMP] = _number(raw, position + 35, 8)
        batches[count, PRODUCER_ID] = _number(raw, position + 43, 8)
        batches[count, COUNT] = records
        batches[count, CRC] = _number(raw, position + 17, 4) & 0xFFFFFFFF
        batches[count, AREA_START], batches[count, AREA_END] = position + _HEADER_SIZE, position + size
        position += size
        count += 1
    return count, position


@kernel()
def _varint(data, position, end):
    """The zigzag number at ``position`` and where it ends; -1 as the end when there is none before ``end``."""
    if position < end and data[position] < 0x80:
        # Nearly all have one byte.
        number = int64(data[position])
        return (number >> 1) ^ -(number & 1), position + 1
    zigzag, shift = uint64(0), uint64(0)
    for _ in range(_LONGEST_VARINT):
        if position >= end:
            return int64(0), int64(-1)
        byte = uint64(data[position])
        position += 1
        zigzag |= (byte & _LOW_BITS) << shift
        if byte <= _LOW_BITS:
            zigzag &= _ALL_BITS
            return int64(zigzag >> _ONE) ^ -int64(zigzag & _ONE), position
        shift += _SEVEN
    return int64(0), int64(-1)


@kernel()
def _record(data, position, area_end):
    """(body, end, timestamp delta, where that ends, offset delta, key position, key length, value length)."""
    # A length of -1 is null. ``end`` is -1 when there is no whole record.
    length, body = _varint(data, position, area_end)
    if body < 0 or length < _SMALLEST_RECORD - 1 or length > area_end - body:
        return _NO_RECORD
    end = body + length
    timestamp_delta, timestamp_end = _varint(data, body + 1, end)
    if timestamp_end < 0:
        return _NO_RECORD
    offset_delta, at = _varint(data, timestamp_end, end)
    if at < 0:
        return _NO_RECORD
    key_length, key = _varint(data, at, end)
    if key < 0 or key_length < -1 or key_length > end - key:
        return _NO_RECORD
    at = key + max(key_length, 0)
    value_length, value = _varint(data, at, end)
    if value < 0 or value_length < -1 or value_length > end - value:
        return _NO_RECORD
    return body, end, timestamp_delta, timestamp_end, offset_delta, key, key_length, value_length


@kernel()
def _rotated(number, bits):
    return (number << uint64(bits)) | (number >> uint64(64 - bits))


@kernel()
def _round(a, b, c, d):
    a += b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c += d
    d = _rotated(d, 16) ^ c
    a += d
    d = _rotated(d, 21) ^ a
    c += b
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


@kernel()
def _siphash(data, start, length, secret):
    """SipHash-1-3 with 128 bits, as two numbers. Only for compiled code: it relies on sums of 64 bits."""
    a = secret[0] ^ uint64(0x736F6D6570736575)
    b = secret[1] ^ uint64(0x646F72616E646F6D) ^ uint64(0xEE)
    c = secret[0] ^ uint64(0x6C7967656E657261)
    d = secret[1] ^ uint64(0x7465646279746573)
    whole = length & ~7
    for at in range(start, start + whole, 8):
        word = uint64(0)
        for i in range(8):
            word |= uint64(data[at + i]) << uint64(8 * i)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
    word = uint64(length & 0xFF) << uint64(56)
    for i in range(length - whole):
        word |= uint64(data[start + whole + i]) << uint64(8 * i)
    d ^= word
    a, b, c, d = _round(a, b, c, d)
    a ^= word
    c ^= uint64(0xEE)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= uint64(0xDD)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return first, a ^ b ^ c ^ d


def _blake2(data, start, length, secret):
    """BLAKE2b with 128 bits, as two numbers. It is in C: SipHash in Python would take 25 times as long."""
    hashed = hashlib.blake2b(data[start : start + length], digest_size=16, key=secret)
    return _TWO_NUMBERS.unpack(hashed.digest())


key_hash = _siphash if IS_COMPILED else _blake2


@kernel()
def _copy_bytes(data, start, end, out, written):
    # Unsigned: a signed number could be an index from the end, and numba would copy a byte at a time. Slices would take
    # it seconds to compile.
    source, target = uint64(start), uint64(written)
    for at in range(uint64(end - start)):
        out[target + at] = data[source + at]
    return written + end - start


def _copy_slice(data, start, end, out, written):
    out[written : written + end - start] = data[start:end]
    return written + end - start


_copy = _copy_bytes if IS_COMPILED else _copy_slice


@kernel()
def _slot(table, first, second):
    """The row of the key, or the free row where it would be."""
    slots = uint64(len(table))
    slot = ((first >> uint64(32)) * slots) >> uint64(32)
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += _ONE
        if slot == slots:
            slot = uint64(0)
    return slot


@kernel()
def rehash(old, new):
    """Enters all rows of one map into another, larger one."""
    for row in range(len(old)):
        if old[row, 2] != 0:
            slot = _slot(new, old[row, 0], old[row, 1])
            for column in range(MAP_COLUMNS):
                new[slot, column] = old[row, column]


@kernel()
def map_keys(raw, unpacked, batches, modes, table, capacity, secret, from_offset, state, hashes, numbers):
    """Enters the newest offset of each key; FULL when the map cannot take the next, which LATEST is then just below.

    May be called again with the same batches and a larger map. Hashes of a block of records come first, then the map:
    a row is rarely in the cache, and the processor fetches many at once only if nothing else is between.
    """
    for number in range(len(batches)):
        base, last_delta = batches[number, BASE_OFFSET], batches[number, LAST_DELTA]
        data = unpacked if batches[number, ATTRIBUTES] & _CODEC_MASK else raw
        position, area_end = batches[number, AREA_START], batches[number, AREA_END]
        count = batches[number, COUNT] if modes[number] == FILTER and base + last_delta >= from_offset else 0
        for block in range(0, count, BLOCK):
            keyed = int64(0)
            for _ in range(block, min(block + BLOCK, count)):
                _, end, _, _, delta, key, key_length, _ = _record(data, position, area_end)
                if end < 0 or delta < 0 or delta > last_delta:
                    return -1 - number
                position = end
                if key_length >= 0 and base + delta >= from_offset:
                    hashes[keyed, 0], hashes[keyed, 1] = key_hash(data, key, key_length, secret)
                    numbers[keyed, 0] = base + delta + 1
                    keyed += 1
            entered = _enter(table, capacity, hashes, numbers, keyed, state)
            if entered < keyed:
                state[LATEST] = max(state[LATEST], numbers[entered, 0] - 2)
                return FULL
        if count and position != area_end:
            return -1 - number
        state[LATEST] = max(state[LATEST], base + last_delta)
    return 0


@kernel()
def _enter(table, capacity, hashes, numbers, count, state):
    """How many of the block were entered before the map was full."""
    for index in range(count):
        slot = _slot(table, hashes[index, 0], hashes[index, 1])
        if table[slot, 2] == 0:
            if state[USED] >= capacity:
                return index
            state[USED] += 1
            table[slot, 0] = hashes[index, 0]
            table[slot, 1] = hashes[index, 1]
        table[slot, 2] = max(table[slot, 2], uint64(numbers[index, 0]))
    return count


@kernel()
def filter_records(
    raw, unpacked, batches, modes, table, secret, now_ms, horizon_ms, state, hashes, numbers, keep, out, results
):
    """Decides about each record and writes the records of batches that lose some, or get a horizon, to ``out``.

    ``keep`` has room for the records of the largest batch, ``out`` for all of them as they are after the change.
    """
    written = int64(0)
    for number in range(len(batches)):
        mode, attributes, count = modes[number], batches[number, ATTRIBUTES], batches[number, COUNT]
        data = unpacked if attributes & _CODEC_MASK else raw
        has_horizon = (attributes & _HORIZON) != 0
        tombstones_go = has_horizon and batches[number, BASE_TIMESTAMP] <= now_ms
        position = batches[number, AREA_START]
        kept, newest, tombstones = int64(0), int64(-1), int64(0)
        for start in range(0, count, BLOCK):
            end = min(start + BLOCK, count)
            position = _look_at(
                data, batches, number, position, mode, secret, state, tombstones_go, keep, start, end, hashes, numbers
            )
            if position < 0:
                return -1 - number
            kept, newest, tombstones = _decide(table, keep, start, end, hashes, numbers, kept, newest, tombstones)
        if position != batches[number, AREA_END]:
            return -1 - number
        state[READ] += count
        is_marked = (tombstones > 0 or mode == KEEP_MARKED) and not has_horizon
        keeps_time = (attributes & _APPEND_TIME) != 0 or kept == 0
        results[number, KEPT] = kept
        results[number, NEW_MAX_TIMESTAMP] = batches[number, MAX_TIMESTAMP] if keeps_time else newest
        results[number, OUT_START] = written
        if kept == 0:
            results[number, VERDICT] = EMPTY
        elif kept == count and not is_marked:
            results[number, VERDICT] = COPY
        elif is_marked:
            results[number, VERDICT] = REWRITE_MARKED
            written = _write_marked(data, batches, number, keep, horizon_ms, out, written)
        else:
            results[number, VERDICT] = REWRITE
            written = _write_kept(data, batches, number, keep, out, written)
        results[number, OUT_END] = written
    return 0


@kernel()
def _look_at(data, batches, number, position, mode, secret, state, tombstones_go, keep, start, last, hashes, numbers):
    """What can be said of a block of records without the map; gives where it ends, -1 if it makes no sense."""
    area_end, base, last_delta = batches[number, AREA_END], batches[number, BASE_OFFSET], batches[number, LAST_DELTA]
    base_timestamp = batches[number, BASE_TIMESTAMP]
    for record in range(start, last):
        _, end, timestamp_delta, _, delta, key, key_length, value_length = _record(data, position, area_end)
        if end < 0 or delta < 0 or delta > last_delta:
            return int64(-1)
        position = end
        index = record - start
        numbers[index, 0] = base + delta + 1
        numbers[index, 1] = wrapped(base_timestamp + timestamp_delta)
        if mode != FILTER:
            keep[record] = _STAYS if mode >= KEEP else _GOES
            continue
        tombstone = _TOMBSTONE if value_length < 0 else 0
        if base + delta > state[LATEST]:
            keep[record] = _STAYS | tombstone
        elif key_length < 0 or (value_length < 0 and tombstones_go):
            keep[record] = _GOES | tombstone
            state[KEYLESS] += key_length < 0
        else:
            keep[record] = _ASK | tombstone
            hashes[index, 0], hashes[index, 1] = key_hash(data, key, key_length, secret)
    return position


@kernel()
def _decide(table, keep, start, end, hashes, numbers, kept, newest, tombstones):
    """Asks the map for those that need it; gives the three numbers with this block added to them."""
    for record in range(start, end):
        index = record - start
        flags = keep[record]
        stays = (flags & _STAYS) != 0
        if flags & _ASK:
            stays = uint64(numbers[index, 0]) >= table[_slot(table, hashes[index, 0], hashes[index, 1]), 2]
        keep[record] = stays
        if stays:
            kept += 1
            newest = max(newest, numbers[index, 1])
            tombstones += (flags & _TOMBSTONE) != 0
    return kept, newest, tombstones


@kernel()
def _write_kept(data, batches, number, keep, out, written):
    """Copies the kept records as they are; neighbours in one piece."""
    position, area_end = batches[number, AREA_START], batches[number, AREA_END]
    run = position
    for record in range(batches[number, COUNT]):
        length, body = _varint(data, position, area_end)
        if not keep[record]:
            written = _copy(data, run, position, out, written)
            run = body + length
        position = body + length
    return _copy(data, run, position, out, written)


@kernel()
def _write_marked(data, batches, number, keep, horizon_ms, out, written):
    """Copies the kept records with timestamps that count from the horizon, which takes the base timestamp's place."""
    position, area_end = batches[number, AREA_START], batches[number, AREA_END]
    from_horizon = batches[number, BASE_TIMESTAMP] - horizon_ms
    for record in range(batches[number, COUNT]):
        body, end, timestamp_delta, rest, _, _, _, _ = _record(data, position, area_end)
        position = end
        if not keep[record]:
            continue
        timestamp_delta = wrapped(from_horizon + timestamp_delta)
        written = _put_varint(1 + _varint_size(timestamp_delta) + end - rest, out, written)
        out[written] = data[body]
        written = _put_varint(timestamp_delta, out, written + 1)
        written = _copy(data, rest, end, out, written)
    return written


@kernel()
def _varint_size(number):
    zigzag = uint64(number << 1) ^ uint64(number >> 63)
    size = 1
    while zigzag > _LOW_BITS:
        size += 1
        zigzag >>= _SEVEN
    return size


@kernel()
def _put_varint(number, out, written):
    zigzag = uint64(number << 1) ^ uint64(number >> 63)
    while zigzag > _LOW_BITS:
        out[written] = zigzag & _LOW_BITS | uint64(0x80)
        written += 1
        zigzag >>= _SEVEN
    out[written] = zigzag
    return written + 1


_ROWS, _MAP, _BYTES, _HASHES = signed_table(1, COLUMNS), unsigned_table(1, MAP_COLUMNS), bytearray(1), new_block()
_SECRET = memoryview(bytes(16)).cast("Q")
compile_ahead(
    __file__,
    (find_batches, b"", 0, 0, _ROWS),
    (rehash, _MAP, _MAP),
    (map_keys, b"", b"", _ROWS, _BYTES, _MAP, 0, _SECRET, 0, new_state(), *_HASHES),
    (filter_records, b"", b"", _ROWS, _BYTES, _MAP, _SECRET, 0, 0, new_state(), *_HASHES, _BYTES, _BYTES, _ROWS),
)
