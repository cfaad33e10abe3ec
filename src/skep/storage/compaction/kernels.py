"""Compiled loops over the records of many batches at once: finding batches, mapping keys, keeping records.

This module imports numba, so only the helper process imports it, never the broker. Everything is in one file, because
numba's cache checks the file of a function and not the files of what it calls.

Batches are rows of a table (``int64``, the columns below). Their records are either in the bytes that were read
(``raw``) or, if they were compressed, in a second buffer (``unpacked``); AREA_START and AREA_END say where. The bytes
are not trusted: no loop reads outside its area or relies on a number in them, and a malformed batch is reported by the
return value ``-1 - number of the batch``.

The offset map is an open-addressing table with rows of three ``uint64``: the two halves of a key's SipHash-1-3-128, and
the newest offset of that key plus one (0: the row is free). Keys are not stored. The hash has a new random secret for
each pass, so nobody can choose two keys that collide; by chance, among 2**32 keys, it happens once in 2**65.
"""

import numpy as np
from numba import njit

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

USED, LATEST, READ, KEYLESS = range(4)
"""Fields of the state of a pass: rows of the map in use, offset up to which it is complete, records read, those removed
because they have no key."""

FULL = -(1 << 62)

_HEADER_SIZE = 61
_LENGTH_END = 12
_SMALLEST_RECORD = 7
_CODEC_MASK = 0x07
_APPEND_TIME = 0x08
_HORIZON = 0x40
_LONGEST_VARINT = 10
GROWTH_PER_RECORD = 2 * _LONGEST_VARINT
"""Bytes by which a record can grow when its timestamp is rewritten."""

_BLOCK = 256
_GOES, _STAYS, _ASK, _TOMBSTONE = 0, 1, 2, 4

_ONE = np.uint64(1)
_NO_RECORD = (0, -1, 0, 0, 0, 0, 0, 0)


@njit(cache=True)
def _number(raw, position, size):
    """A big endian signed number."""
    number = np.int64(raw[position])
    if number >= 128:
        number -= 256
    for i in range(1, size):
        number = (number << 8) | np.int64(raw[position + i])
    return number


@njit(cache=True)
def find_batches(raw, position, end, batches):
    """Fills rows with the whole batches between ``position`` and ``end``; returns how many, and where they end."""
    count = 0
    while count < len(batches) and end - position >= _HEADER_SIZE:
        length = _number(raw, position + 8, 4)
        size = length + _LENGTH_END
        delta = _number(raw, position + 23, 4)
        records = _number(raw, position + 57, 4)
        if raw[position + 16] != 2 or size < _HEADER_SIZE or delta < 0 or records < 0:
            return -1 - count, position
        if size > end - position:
            break
        row = batches[count]
        row[POSITION] = position
        row[SIZE] = size
        row[BASE_OFFSET] = _number(raw, position, 8)
        row[LAST_DELTA] = delta
        row[ATTRIBUTES] = _number(raw, position + 21, 2)
        row[BASE_TIMESTAMP] = _number(raw, position + 27, 8)
        row[MAX_TIMESTAMP] = _number(raw, position + 35, 8)
        row[PRODUCER_ID] = _number(raw, position + 43, 8)
        row[COUNT] = records
        row[CRC] = _number(raw, position + 17, 4) & 0xFFFFFFFF
        row[AREA_START] = position + _HEADER_SIZE
        row[AREA_END] = position + size
        position += size
        count += 1
    return count, position


@njit(cache=True)
def _varint(data, position, end):
    """The zigzag number at ``position`` and where it ends; -1 as the end when there is none before ``end``."""
    zigzag = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(_LONGEST_VARINT):
        if position >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[position])
        position += 1
        zigzag |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(zigzag >> _ONE) ^ -np.int64(zigzag & _ONE), np.int64(position)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(cache=True)
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
    at = key + max(key_length, np.int64(0))
    value_length, value = _varint(data, at, end)
    if value < 0 or value_length < -1 or value_length > end - value:
        return _NO_RECORD
    return body, end, timestamp_delta, timestamp_end, offset_delta, key, key_length, value_length


@njit(cache=True)
def _rotated(number, bits):
    return (number << np.uint64(bits)) | (number >> np.uint64(64 - bits))


@njit(cache=True)
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


@njit(cache=True)
def key_hash(data, start, length, secret):
    """SipHash-1-3 with 128 bits, as two numbers."""
    a = secret[0] ^ np.uint64(0x736F6D6570736575)
    b = secret[1] ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    c = secret[0] ^ np.uint64(0x6C7967656E657261)
    d = secret[1] ^ np.uint64(0x7465646279746573)
    whole = length & ~7
    for at in range(start, start + whole, 8):
        word = np.uint64(0)
        for i in range(8):
            word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for i in range(length - whole):
        word |= np.uint64(data[start + whole + i]) << np.uint64(8 * i)
    d ^= word
    a, b, c, d = _round(a, b, c, d)
    a ^= word
    c ^= np.uint64(0xEE)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= np.uint64(0xDD)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return first, a ^ b ^ c ^ d


@njit(cache=True)
def _slot(table, first, second):
    """The row of the key, or the free row where it would be."""
    slots = np.uint64(len(table))
    slot = ((first >> np.uint64(32)) * slots) >> np.uint64(32)
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += _ONE
        if slot == slots:
            slot = np.uint64(0)
    return slot


@njit(cache=True)
def rehash(old, new):
    """Enters all rows of one map into another, larger one."""
    for row in range(len(old)):
        if old[row, 2] != 0:
            slot = _slot(new, old[row, 0], old[row, 1])
            for column in range(3):
                new[slot, column] = old[row, column]


@njit(cache=True)
def map_keys(raw, unpacked, batches, modes, table, capacity, secret, from_offset, state):
    """Enters the newest offset of each key; FULL when the map cannot take the next, which LATEST is then just below.

    May be called again with the same batches and a larger map. Hashes of a block of records come first, then the map:
    a row is rarely in the cache, and the processor fetches many at once only if nothing else is between.
    """
    hashes, ends = np.empty((_BLOCK, 2), np.uint64), np.empty(_BLOCK, np.uint64)
    for number in range(len(batches)):
        batch = batches[number]
        last_offset = batch[BASE_OFFSET] + batch[LAST_DELTA]
        data = unpacked if batch[ATTRIBUTES] & _CODEC_MASK else raw
        position, area_end = batch[AREA_START], batch[AREA_END]
        count = batch[COUNT] if modes[number] == FILTER and last_offset >= from_offset else 0
        for block in range(0, count, _BLOCK):
            keyed = 0
            for _ in range(block, min(block + _BLOCK, count)):
                _, end, _, _, delta, key, key_length, _ = _record(data, position, area_end)
                if end < 0 or delta < 0 or delta > batch[LAST_DELTA]:
                    return -1 - number
                position = end
                offset = batch[BASE_OFFSET] + delta
                if key_length >= 0 and offset >= from_offset:
                    hashes[keyed, 0], hashes[keyed, 1] = key_hash(data, key, key_length, secret)
                    ends[keyed] = np.uint64(offset + 1)
                    keyed += 1
            entered = _enter(table, capacity, hashes, ends, keyed, state)
            if entered < keyed:
                state[LATEST] = max(state[LATEST], np.int64(ends[entered]) - 2)
                return FULL
        if count and position != area_end:
            return -1 - number
        state[LATEST] = max(state[LATEST], last_offset)
    return 0


@njit(cache=True)
def _enter(table, capacity, hashes, ends, count, state):
    """How many of the block were entered before the map was full."""
    for index in range(count):
        slot = _slot(table, hashes[index, 0], hashes[index, 1])
        if table[slot, 2] == 0:
            if state[USED] >= capacity:
                return index
            state[USED] += 1
            table[slot, 0] = hashes[index, 0]
            table[slot, 1] = hashes[index, 1]
        table[slot, 2] = max(table[slot, 2], ends[index])
    return count


@njit(cache=True)
def filter_records(raw, unpacked, batches, modes, table, secret, now_ms, horizon_ms, state, keep, out, results):
    """Decides about each record and writes the records of batches that lose some, or get a horizon, to ``out``.

    ``keep`` has room for the records of the largest batch, ``out`` for all of them as they are after the change.
    """
    written = 0
    block = np.empty((_BLOCK, 2), np.uint64), np.empty((_BLOCK, 2), np.int64)
    for number in range(len(batches)):
        batch, result, mode = batches[number], results[number], modes[number]
        attributes = batch[ATTRIBUTES]
        data = unpacked if attributes & _CODEC_MASK else raw
        has_horizon = (attributes & _HORIZON) != 0
        tombstones_go = has_horizon and batch[BASE_TIMESTAMP] <= now_ms
        position, area_end = batch[AREA_START], batch[AREA_END]
        kept = 0
        newest = np.int64(-1)
        has_tombstone = False
        for start in range(0, batch[COUNT], _BLOCK):
            some = keep[start : min(start + _BLOCK, batch[COUNT])]
            position = _look_at(data, batch, position, mode, secret, state, tombstones_go, some, block)
            if position < 0:
                return -1 - number
            kept, newest, has_tombstone = _decide(table, some, block, kept, newest, has_tombstone)
        if position != area_end:
            return -1 - number
        state[READ] += batch[COUNT]
        is_marked = (has_tombstone or mode == KEEP_MARKED) and not has_horizon
        result[KEPT] = kept
        result[NEW_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP] if attributes & _APPEND_TIME or kept == 0 else newest
        result[OUT_START] = written
        if kept == 0:
            result[VERDICT] = EMPTY
        elif kept == batch[COUNT] and not is_marked:
            result[VERDICT] = COPY
        elif is_marked:
            result[VERDICT] = REWRITE_MARKED
            written = _write_marked(data, batch, keep, horizon_ms, out, written)
        else:
            result[VERDICT] = REWRITE
            written = _write_kept(data, batch, keep, out, written)
        result[OUT_END] = written
    return 0


@njit(cache=True)
def _look_at(data, batch, position, mode, secret, state, tombstones_go, keep, block):
    """What can be said of a block of records without the map; gives where it ends, -1 if it makes no sense."""
    hashes, numbers = block
    for index in range(len(keep)):
        _, end, timestamp_delta, _, delta, key, key_length, value_length = _record(data, position, batch[AREA_END])
        if end < 0 or delta < 0 or delta > batch[LAST_DELTA]:
            return np.int64(-1)
        position = end
        offset = batch[BASE_OFFSET] + delta
        numbers[index, 0] = offset + 1
        numbers[index, 1] = batch[BASE_TIMESTAMP] + timestamp_delta
        if mode != FILTER:
            keep[index] = _STAYS if mode >= KEEP else _GOES
            continue
        if offset > state[LATEST]:
            keep[index] = _STAYS
        elif key_length < 0 or (value_length < 0 and tombstones_go):
            keep[index] = _GOES
            state[KEYLESS] += key_length < 0
        else:
            keep[index] = _ASK
            hashes[index, 0], hashes[index, 1] = key_hash(data, key, key_length, secret)
        if value_length < 0:
            keep[index] |= _TOMBSTONE
    return position


@njit(cache=True)
def _decide(table, keep, block, kept, newest, has_tombstone):
    """Asks the map for those that need it; gives the three numbers with this block added to them."""
    hashes, numbers = block
    for index in range(len(keep)):
        flags = keep[index]
        stays = (flags & _STAYS) != 0
        if flags & _ASK:
            stays = np.uint64(numbers[index, 0]) >= table[_slot(table, hashes[index, 0], hashes[index, 1]), 2]
        keep[index] = stays
        if stays:
            kept += 1
            newest = max(newest, numbers[index, 1])
            has_tombstone |= (flags & _TOMBSTONE) != 0
    return kept, newest, has_tombstone


@njit(cache=True)
def _write_kept(data, batch, keep, out, written):
    """Copies the kept records as they are; neighbours in one piece."""
    position, area_end = batch[AREA_START], batch[AREA_END]
    run = position
    for index in range(batch[COUNT]):
        length, body = _varint(data, position, area_end)
        if not keep[index]:
            written = _copy(data, run, position, out, written)
            run = body + length
        position = body + length
    return _copy(data, run, position, out, written)


@njit(cache=True)
def _copy(data, start, end, out, written):
    # The one place with slices: a sixth faster than a loop, but each takes numba seconds to compile.
    out[written : written + end - start] = data[start:end]
    return written + end - start


@njit(cache=True)
def _write_marked(data, batch, keep, horizon_ms, out, written):
    """Copies the kept records with timestamps that count from the horizon, which takes the base timestamp's place."""
    position, area_end = batch[AREA_START], batch[AREA_END]
    field = np.empty(_LONGEST_VARINT, np.uint8)
    for index in range(batch[COUNT]):
        body, end, timestamp_delta, rest, _, _, _, _ = _record(data, position, area_end)
        position = end
        if not keep[index]:
            continue
        size = _put_varint(batch[BASE_TIMESTAMP] + timestamp_delta - horizon_ms, field, 0)
        written = _put_varint(1 + size + end - rest, out, written)
        written = _copy(data, body, body + 1, out, written)
        written = _copy(field, 0, size, out, written)
        written = _copy(data, rest, end, out, written)
    return written


@njit(cache=True)
def _put_varint(number, out, written):
    zigzag = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while zigzag >= np.uint64(0x80):
        out[written] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        written += 1
        zigzag >>= np.uint64(7)
    out[written] = np.uint8(zigzag)
    return written + 1
