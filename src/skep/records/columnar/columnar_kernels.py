"""Compiled loops between record batches and columns: finding batches, reading records, writing records, murmur2.

The loops of compaction are in ``storage/compaction/kernels.py`` and have another cache. Unlike those, these are always
compiled (``records/kernel_compiler.py``): columns need numpy and pyarrow in any case, and the extra that installs them
installs numba as well.

The bytes are not trusted: no loop reads outside its area or relies on a number in them. Reading takes two loops. The
first walks over the records, checks all of them as ``record.py`` does, and notes the position and size of keys, values
and headers; the second copies them into buffers of exactly that size. Columns that are written come from Arrow, which
guarantees its offsets.

A column of bytes is a tuple of four: its bytes, the offsets into them (``int64``, one more than rows), a bitmap of the
rows that are not null, and the bit at which the bitmap begins; an empty bitmap means that no row is null.
"""

import numba  # noqa: F401  # where it is missing, the error names it
import numpy as np

from skep.records.kernel_compiler import compile_ahead, kernel

COLUMNS = 12
POSITION, SIZE, BASE_OFFSET, LAST_DELTA, ATTRIBUTES, BASE_TIMESTAMP = range(6)
MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, AREA_START, AREA_END = range(6, COLUMNS)

TOTALS = 6
ROWS, KEY_NULLS, VALUE_NULLS, HEADERS, NAME_BYTES, HEADER_BYTES = range(TOTALS)
"""The counts of the first loop."""

RESULTS = 5
NEXT, END, FIRST_TIMESTAMP, NEWEST_TIMESTAMP, LACKING = range(RESULTS)
"""What was written: rows up to NEXT, bytes up to END. LACKING is the size that the row at NEXT would have needed."""

_HEADER_SIZE = 61
_LENGTH_END = 12
_SMALLEST_RECORD = 7
_APPEND_TIME = 0x08
_LONGEST_VARINT = 10
_ONE = np.uint64(1)
_LOW_BITS = np.uint64(0x7F)
_LARGEST = (1 << 63) - 1
_LARGEST_MS = _LARGEST // 1000
_NO_RECORD = (-1, 0, 0, 0, 0, 0, 0, 0, 0)


@kernel()
def _number(raw, position, size):
    """A big endian signed number."""
    number = np.int64(raw[position])
    if number >= 128:
        number -= 256
    for i in range(1, size):
        number = (number << 8) | np.int64(raw[position + i])
    return number


@kernel()
def find_batches(raw, position, next_offset, batches):
    """Fills rows with the whole batches from ``position`` on; returns how many, and where they end.

    The number is ``-1 - how many`` when no batch follows them, or one whose offsets do not increase: the CRC does not
    cover the offset of a batch.
    """
    count = 0
    while count < len(batches) and len(raw) - position >= _HEADER_SIZE:
        size = _number(raw, position + 8, 4) + _LENGTH_END
        base = _number(raw, position, 8)
        delta = _number(raw, position + 23, 4)
        records = _number(raw, position + 57, 4)
        if raw[position + 16] != 2 or size < _HEADER_SIZE or delta < 0 or records < 0:
            return -1 - count, position
        if base < next_offset or base > _LARGEST - 1 - delta:
            return -1 - count, position
        if size > len(raw) - position:
            break
        next_offset = base + delta + 1
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
def _long_varint(data, position, end):
    """``_varint`` for any number of bytes."""
    zigzag, shift = np.uint64(0), np.uint64(0)
    while position < end and shift <= np.uint64(63):
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        if shift == np.uint64(63) and byte > _ONE:
            break
        zigzag |= (byte & _LOW_BITS) << shift
        if byte <= _LOW_BITS:
            return np.int64(zigzag >> _ONE) ^ -np.int64(zigzag & _ONE), np.int64(position)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@kernel()
def _varint(data, position, end):
    """The zigzag number at ``position`` and where it ends; -1 as the end when there is none before ``end``."""
    # Nearly all have one to three bytes; read without a loop, a record takes 14 ns instead of 34.
    zigzag, size = np.uint64(0), 0
    if position < end:
        zigzag = np.uint64(data[np.uint64(position)])
        if zigzag <= _LOW_BITS:
            size = 1
        elif position + 2 < end:
            second, third = np.uint64(data[np.uint64(position + 1)]), np.uint64(data[np.uint64(position + 2)])
            zigzag = zigzag & _LOW_BITS | (second & _LOW_BITS) << np.uint64(7)
            if second <= _LOW_BITS:
                size = 2
            elif third <= _LOW_BITS:
                zigzag |= third << np.uint64(14)
                size = 3
    if size == 0:
        return _long_varint(data, position, end)
    return np.int64(zigzag >> _ONE) ^ -np.int64(zigzag & _ONE), np.int64(position) + size


@kernel()
def _microseconds(timestamp_ms):
    """Returns microseconds; a time that does not fit becomes the nearest that does, because no record may be
    skipped."""
    if timestamp_ms > _LARGEST_MS:
        return np.int64(_LARGEST)
    if timestamp_ms < -_LARGEST_MS:
        return np.int64(-_LARGEST)
    return timestamp_ms * 1000


@kernel()
def _walk_headers(data, position, end, count, is_wanted, totals):
    """Returns whether the headers of a record are well formed; counts them if they are wanted."""
    if count < 0 or count > end - position:
        return False
    name_bytes = value_bytes = np.int64(0)
    for _ in range(count):
        length, position = _varint(data, position, end)
        if position < 0 or length < 0 or length > end - position:
            return False
        name_bytes += length
        length, position = _varint(data, position + length, end)
        if position < 0 or length < -1 or length > end - position:
            return False
        value_bytes += max(length, np.int64(0))
        position += max(length, np.int64(0))
    if is_wanted:
        totals[HEADERS] += count
        totals[NAME_BYTES] += name_bytes
        totals[HEADER_BYTES] += value_bytes
    return position == end


@kernel(forceinline=True)
def _record(data, position, area_end):
    """(end, time delta, offset delta, key, its length, value, its length, number of headers, where these begin)."""
    # A length of -1 is null. ``end`` is -1 when there is no whole record; headers are not looked at.
    length, body = _varint(data, position, area_end)
    if body < 0 or length < _SMALLEST_RECORD - 1 or length > area_end - body:
        return _NO_RECORD
    end = body + length
    time_delta, at = _varint(data, body + 1, end)
    if at < 0:
        return _NO_RECORD
    offset_delta, at = _varint(data, at, end)
    if at < 0:
        return _NO_RECORD
    key_length, key = _varint(data, at, end)
    if key < 0 or key_length < -1 or key_length > end - key:
        return _NO_RECORD
    value_length, value = _varint(data, key + max(key_length, np.int64(0)), end)
    if value < 0 or value_length < -1 or value_length > end - value:
        return _NO_RECORD
    header_count, headers = _varint(data, value + max(value_length, np.int64(0)), end)
    if headers < 0 or (header_count == 0 and headers != end):
        return _NO_RECORD
    return end, time_delta, offset_delta, key, key_length, value, value_length, header_count, headers


@kernel()
def _clear(bitmap, row):
    bitmap[row >> 3] &= np.uint8(0xFF ^ (1 << (row & 7)))


@kernel()
def read_records(data, batches, start, end, places, key_ends, value_ends, header_ends, valid, offsets, times, totals):
    """Reads all records with offsets from ``start`` up to ``end``; writes the positions of their bytes to ``places``.

    The ends begin with a 0; the bitmaps in ``valid`` are all ones before, and null becomes a zero. Returns 0, or
    ``-1 - number of the batch`` that is malformed.
    """
    row = np.int64(0)
    key_valid, value_valid = valid
    for number in range(len(batches)):
        position, area_end = batches[number, AREA_START], batches[number, AREA_END]
        base, last_delta = batches[number, BASE_OFFSET], batches[number, LAST_DELTA]
        base_time = batches[number, BASE_TIMESTAMP]
        is_append_time = (batches[number, ATTRIBUTES] & _APPEND_TIME) != 0
        append_time = _microseconds(batches[number, MAX_TIMESTAMP])
        previous = np.int64(-1)
        for _ in range(batches[number, COUNT]):
            position, time_delta, delta, key, key_length, value, value_length, header_count, headers = _record(
                data, position, area_end
            )
            if position < 0 or delta <= previous or delta > last_delta:
                return -1 - number
            previous = delta
            time = base_time + time_delta
            if not is_append_time and (time < base_time) != (time_delta < 0):
                return -1 - number
            is_wanted = start <= base + delta < end
            if header_count != 0 and not _walk_headers(data, headers, position, header_count, is_wanted, totals):
                return -1 - number
            if not is_wanted:
                continue
            if key_length < 0:
                totals[KEY_NULLS] += 1
                _clear(key_valid, row)
            if value_length < 0:
                totals[VALUE_NULLS] += 1
                _clear(value_valid, row)
            places[0, row], places[1, row], places[2, row] = key, value, headers
            offsets[row] = base + delta
            times[row] = append_time if is_append_time else _microseconds(time)
            key_ends[row + 1] = key_ends[row] + max(key_length, np.int64(0))
            value_ends[row + 1] = value_ends[row] + max(value_length, np.int64(0))
            header_ends[row + 1] = totals[HEADERS]
            row += 1
        if position != area_end:
            return -1 - number
    totals[ROWS] = row
    return 0


@kernel()
def _copy(data, start, length, out, written):
    # Unsigned: a signed number could be an index from the end, and numba would copy a byte at a time.
    start, written = np.uint64(start), np.uint64(written)
    for at in range(np.uint64(length)):
        out[written + at] = data[start + at]


@kernel()
def gather(data, places, ends, out):
    """Copies the bytes of a column together."""
    for row in range(len(places)):
        _copy(data, places[row], ends[row + 1] - ends[row], out, ends[row])


@kernel()
def gather_headers(data, places, header_ends, name_ends, names, value_ends, values, valid):
    """Copies names and values of headers together; returns how many values are null and whether names are ASCII."""
    nulls = 0
    high = np.uint8(0)
    name_end, value_end = np.int64(0), np.int64(0)
    end = np.int64(len(data))
    for row in range(len(places)):
        position = np.int64(places[row])
        for header in range(header_ends[row], header_ends[row + 1]):
            length, position = _varint(data, position, end)
            for at in range(length):
                byte = data[position + at]
                high |= byte
                names[name_end + at] = byte
            name_end += length
            length, position = _varint(data, position + length, end)
            if length < 0:
                nulls += 1
                _clear(valid, header)
                length = np.int64(0)
            _copy(data, position, length, values, value_end)
            value_end += length
            position += length
            name_ends[header + 1] = name_end
            value_ends[header + 1] = value_end
    return nulls, high < 128


@kernel()
def _length(column, row):
    """Of a row's bytes; -1 for null."""
    _, offsets, valid, bit = column
    if len(valid) > 0 and not (valid[(bit + row) >> 3] >> ((bit + row) & 7)) & 1:
        return np.int64(-1)
    return offsets[row + 1] - offsets[row]


@kernel()
def _varint_size(number):
    zigzag = np.uint64(number << 1) ^ np.uint64(number >> 63)
    size = 1
    while zigzag >= np.uint64(0x80):
        size += 1
        zigzag >>= np.uint64(7)
    return size


@kernel()
def _put_varint(number, out, written):
    zigzag = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while zigzag >= np.uint64(0x80):
        out[written] = np.uint8(zigzag & np.uint64(0x7F)) | np.uint8(0x80)
        written += 1
        zigzag >>= np.uint64(7)
    out[written] = np.uint8(zigzag)
    return written + 1


@kernel()
def _put_bytes(column, row, length, out, written):
    """The length, -1 for null, and the bytes of a row."""
    written = _put_varint(length, out, written)
    if length > 0:
        _copy(column[0], column[1][row], length, out, written)
        written += length
    return written


@kernel()
def _size_of_headers(names, values, first, last):
    """-1 when one has no name."""
    size = _varint_size(last - first)
    for header in range(first, last):
        name, value = _length(names, header), _length(values, header)
        if name < 0:
            return -1
        size += _varint_size(name) + name + _varint_size(value) + max(value, np.int64(0))
    return size


@kernel()
def write_records(keys, values, headers, header_names, header_values, times, rows, next_row, out, results):
    """Writes ``rows`` from ``next_row`` on as records to ``out``, until it is full or all are written.

    Returns 0, or -1 when a header of the row at NEXT has no name. Stops also where a time is too far from the first.
    """
    count = written = np.int64(0)
    status = 0
    base_time = newest = np.int64(0)
    results[LACKING] = 0
    for index in range(next_row, len(rows)):
        row = rows[index]
        time = times[row]
        if count == 0:
            base_time = newest = time
        time_delta = time - base_time
        if (time_delta < 0) != (time < base_time):
            break
        key_length, value_length = _length(keys, row), _length(values, row)
        size = 1 + _varint_size(time_delta) + _varint_size(count)
        size += _varint_size(key_length) + max(key_length, np.int64(0))
        size += _varint_size(value_length) + max(value_length, np.int64(0))
        header_count = max(_length(headers, row), np.int64(0))
        first_header = headers[1][row]
        if header_count == 0:
            size += 1
        else:
            header_size = _size_of_headers(header_names, header_values, first_header, first_header + header_count)
            if header_size < 0:
                status = -1
                break
            size += header_size
        if _varint_size(size) + size > len(out) - written:
            results[LACKING] = _varint_size(size) + size
            break
        written = _put_varint(size, out, written)
        out[written] = 0
        written = _put_varint(time_delta, out, written + 1)
        written = _put_varint(count, out, written)
        written = _put_bytes(keys, row, key_length, out, written)
        written = _put_bytes(values, row, value_length, out, written)
        written = _put_varint(header_count, out, written)
        for header in range(first_header, first_header + header_count):
            written = _put_bytes(header_names, header, _length(header_names, header), out, written)
            written = _put_bytes(header_values, header, _length(header_values, header), out, written)
        newest = max(newest, time)
        count += 1
    results[NEXT] = next_row + count
    results[END] = written
    results[FIRST_TIMESTAMP] = base_time
    results[NEWEST_TIMESTAMP] = newest
    return status


@kernel()
def _murmur2(data, start, length):
    """The 32-bit hash that Kafka's Java client chooses partitions by."""
    mask, factor = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
    number = np.uint64(0x9747B28C) ^ np.uint64(length)
    whole = length & ~3
    for at in range(start, start + whole, 4):
        word = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        word |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        word = word * factor & mask
        word = (word ^ word >> np.uint64(24)) * factor & mask
        number = (number * factor & mask) ^ word
    if length > whole:
        for i in range(length - whole):
            number ^= np.uint64(data[start + whole + i]) << np.uint64(8 * i)
        number = number * factor & mask
    number = (number ^ number >> np.uint64(13)) * factor & mask
    return number ^ number >> np.uint64(15)


@kernel()
def choose_partitions(keys, partition_count, out):
    """The partition of each key; -1 where it is null."""
    for row in range(len(out)):
        length = _length(keys, row)
        if length < 0:
            out[row] = -1
        else:
            positive = _murmur2(keys[0], keys[1][row], length) & np.uint64(0x7FFFFFFF)
            out[row] = positive % np.uint64(partition_count)


def _compile_all() -> None:
    """For the arguments that ``decoder.py``, ``arrays.py`` and ``encoder.py`` pass. Those of other types, such as an
    array that is read-only here and is not there, are compiled when they are first passed."""
    small, large = np.zeros(1, np.int32), np.zeros(1, np.int64)
    table, places, out = np.zeros((1, COLUMNS), np.int64), np.zeros((3, 1), np.int32), np.zeros(1, np.uint8)
    data = np.frombuffer(b"\0", np.uint8)
    column = (data, large, data, 0)
    compile_ahead(
        __file__,
        (find_batches, data, 0, 0, table),
        (read_records, data, table, 0, 0, places, small, small, small, (out, out), large, large, large),
        (gather, data, small, small, out),
        (gather_headers, data, small, small, small, out, small, out, out),
        (write_records, column, column, column, column, column, large, large, 0, out, large),
        (choose_partitions, column, 0, small),
    )


_compile_all()
