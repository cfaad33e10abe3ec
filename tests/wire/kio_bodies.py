"""Random bodies for a class of kio: mappings as a handler could give them, complete or not, plain or out of the way."""

import dataclasses
import datetime
import functools
import types
import typing
from typing import Any

from hypothesis import strategies as st

from skep.base.errors import ErrorCode


def integers(bits: int) -> st.SearchStrategy[int]:
    half = 1 << (bits - 1)
    return st.sampled_from((0, 1, -1, -half, half - 1)) | st.integers(-half, half - 1)


# Around 127 the compact length grows to two bytes.
lengths = st.sampled_from((0, 1, 2, 126, 127, 128, 300))
texts = st.text(max_size=8) | lengths.map("é".__mul__) | lengths.map("x".__mul__)
contents = st.binary(max_size=8) | lengths.map(bytes)

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": integers(8),
    "int16": integers(16),
    "uint16": st.sampled_from((0, 9092, 65535)),
    "int32": integers(32),
    "int64": integers(64),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": integers(32).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": integers(40).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 4_000_000_000_000).map(
        lambda ms: datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    ),
    "string": texts,
    "bytes": contents | contents.map(memoryview),
    "records": contents | contents.map(memoryview),
    "uuid": st.none() | st.uuids(),
}


@functools.cache
def bodies(entity: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the fields, and sometimes one that the class does not have."""
    fields = {field.name: _values(field) for field in dataclasses.fields(entity)}
    # The odds of every field being there fall with their number, so complete bodies are made as well.
    return st.fixed_dictionaries({}, optional={**fields, "not_a_field": st.just(1)}) | st.fixed_dictionaries(fields)


def _values(field: "dataclasses.Field[Any]") -> st.SearchStrategy[Any]:
    hint, is_nullable = _without_none(field.type)
    is_array = typing.get_origin(hint) is tuple
    element = _without_none(typing.get_args(hint)[0])[0] if is_array else hint
    values = bodies(element) if dataclasses.is_dataclass(element) else PRIMITIVES[field.metadata["kafka_type"]]
    if is_array:
        values = _arrays(values, may_be_long=not _has_arrays(element))
    if is_nullable:
        values = st.none() | values
    if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
        # A tagged field with its default is left out, also when it is said.
        values = st.just(field.default) | values
    return values


def _arrays(values: st.SearchStrategy[Any], *, may_be_long: bool) -> st.SearchStrategy[Any]:
    short = st.lists(values, max_size=2)
    # Long ones of equal elements: made quickly, and what differs is only the length.
    long = st.tuples(values, lengths).map(lambda drawn: [drawn[0]] * drawn[1])
    return short | short.map(tuple) | (long if may_be_long else st.nothing())


def _has_arrays(entity: Any) -> bool:
    """Long arrays of long arrays would take kio minutes."""
    if not dataclasses.is_dataclass(entity):
        return False
    return any(typing.get_origin(_without_none(field.type)[0]) is tuple for field in dataclasses.fields(entity))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    [other] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return other, True
