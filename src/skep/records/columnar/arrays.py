"""Builds the Arrow arrays of a group of batches: the kernels fill numpy's buffers, and Arrow uses them without a copy.

The columns and their content are those of Spark's Kafka source: a record without headers has null for its list, times
are microseconds, and a time that does not fit into microseconds becomes the nearest one that does.
"""

import numpy as np
import pyarrow as pa

from skep.records.batch import APPEND_TIME_FLAG
from skep.records.columnar import columnar_kernels as kernels

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
_PLAIN_SCHEMA = pa.schema(_FIELDS)
_SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, pa.field("headers", _HEADERS)])


def record_schema(*, headers: bool) -> pa.Schema:
    """Returns the columns of a topic as Spark's Kafka source declares them, without topic and partition."""
    return _SCHEMA_WITH_HEADERS if headers else _PLAIN_SCHEMA


class BadBatch(Exception):
    """The records of the batch at this place in its group cannot be decoded."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def columns_of(
    data: np.ndarray, group: np.ndarray, *, start: int, end: int, with_headers: bool
) -> pa.RecordBatch | None:
    """Returns the records of these batches in ``data`` with offsets from ``start`` up to ``end``; None if there are
    none.

    Allocates room for as many records as the batches claim: the caller has checked that the bytes can hold so many.
    """
    claimed = int(group[:, kernels.COUNT].sum())
    places = np.empty((3, claimed), np.int32)
    ends = tuple(np.zeros(claimed + 1, np.int32) for _ in range(3))
    valid = tuple(np.full((claimed + 7) // 8, 0xFF, np.uint8) for _ in range(2))
    offsets, times = np.empty(claimed, np.int64), np.empty(claimed, np.int64)
    totals = np.zeros(kernels.TOTALS, np.int64)
    status = kernels.read_records(data, group, start, end, places, *ends, valid, offsets, times, totals)
    if status < 0:
        raise BadBatch(-1 - status)
    rows, key_nulls, value_nulls, *_ = totals.tolist()
    if rows == 0:
        return None
    key_ends, value_ends, header_ends = (column[: rows + 1] for column in ends)
    arrays = [
        _binary(data, places[0, :rows], key_ends, valid[0], key_nulls),
        _binary(data, places[1, :rows], value_ends, valid[1], value_nulls),
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets[:rows])], 0),
        pa.Array.from_buffers(_FIELDS[3].type, rows, [None, pa.py_buffer(times[:rows])], 0),
        # Not pa.array: it imports pandas, if that is installed, to see whether it was given something of it.
        pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(_time_types(group, offsets[:rows]))], 0),
    ]
    if with_headers:
        arrays.append(_header_lists(header_ends, _headers(data, places[2, :rows], header_ends, totals)))
    return pa.RecordBatch.from_arrays(arrays, schema=record_schema(headers=with_headers))


def _time_types(group: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """0 for the producer's time, 1 for the broker's; as a column, though it is one of a batch."""
    types = ((group[:, kernels.ATTRIBUTES] & APPEND_TIME_FLAG) != 0).astype(np.int32)
    if types.min() == types.max():
        return np.full(len(offsets), types[0], np.int32)
    chosen: np.ndarray = types[np.searchsorted(group[:, kernels.BASE_OFFSET], offsets, side="right") - 1]
    return chosen


def _binary(data: np.ndarray, places: np.ndarray, ends: np.ndarray, valid: np.ndarray, nulls: int) -> pa.Array:
    gathered = np.empty(int(ends[-1]), np.uint8)
    kernels.gather(data, places, ends, gathered)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(ends), pa.py_buffer(gathered)]
    return pa.Array.from_buffers(pa.binary(), len(places), buffers, nulls)


def _header_lists(ends: np.ndarray, structs: pa.Array) -> pa.Array:
    has_some = ends[1:] != ends[:-1]
    nulls = len(has_some) - int(np.count_nonzero(has_some))
    bitmap = pa.py_buffer(np.packbits(has_some, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(_HEADERS, len(has_some), [bitmap, pa.py_buffer(ends)], nulls, children=[structs])


def _headers(data: np.ndarray, places: np.ndarray, header_ends: np.ndarray, totals: np.ndarray) -> pa.Array:
    count = int(totals[kernels.HEADERS])
    name_ends, value_ends = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
    names = np.empty(int(totals[kernels.NAME_BYTES]), np.uint8)
    values = np.empty(int(totals[kernels.HEADER_BYTES]), np.uint8)
    valid = np.full((count + 7) // 8, 0xFF, np.uint8)
    nulls, is_ascii = kernels.gather_headers(data, places, header_ends, name_ends, names, value_ends, values, valid)
    keys = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)], 0)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(value_ends), pa.py_buffer(values)]
    value_array = pa.Array.from_buffers(pa.binary(), count, buffers, nulls)
    return pa.Array.from_buffers(_HEADER, count, [None], 0, children=[_strings(keys, is_ascii), value_array])


def _strings(keys: pa.Array, is_ascii: bool) -> pa.Array:
    """Returns strings; replaces what is not UTF-8, as the Java client does, because Arrow's readers rely on UTF-8."""
    strings = keys.view(pa.string())
    if not is_ascii:
        try:
            strings.validate(full=True)
        except pa.ArrowInvalid:
            return pa.array([name.decode(errors="replace") for name in keys.to_pylist()], pa.string())
    return strings
