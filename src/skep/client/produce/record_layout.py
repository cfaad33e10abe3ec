"""The mapping of a table's columns to the parts of a record, checked before the first row is written.

The names are those of Spark's Kafka connector, so that records read from a topic can be written to one. Its ``offset``
and ``timestampType`` are assigned by the broker and are ignored. Any other column is refused: it would be lost
silently.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from skep.client.errors import ClientError
from skep.records.columnar import RecordColumns

IGNORED = frozenset({"offset", "timestampType"})
_PLAIN_ROWS = 1 << 16
_JSON = "for JSON: pa.table({'value': [json.dumps(row) for row in table.to_pylist()]})"


class ColumnNames(NamedTuple):
    """Names of columns; None for a part that the table lacks, or that is not used."""

    value: str = "value"
    key: str | None = "key"
    topic: str | None = "topic"
    partition: str | None = "partition"
    headers: str | None = "headers"
    timestamp: str | None = "timestamp"


DEFAULT_NAMES = ColumnNames()


class RecordLayout(NamedTuple):
    """The columns of a table that are written, by name."""

    value: str
    key: str | None
    topic: str | None
    partition: str | None
    headers: str | None
    timestamp: str | None

    @classmethod
    def of(cls, schema: pa.Schema, names: ColumnNames = DEFAULT_NAMES) -> "RecordLayout":
        """Raises ClientError for a column that is missing, has a wrong type, or would not be written."""
        if names.value not in schema.names:
            raise ClientError(
                f"there is no column '{names.value}', only {', '.join(schema.names) or 'none at all'}; a record needs "
                f"a value: name its column with value=, or make one, {_JSON}"
            )
        for part, name, usual in zip(ColumnNames._fields, names, DEFAULT_NAMES, strict=True):
            if name is not None and name != usual and name not in schema.names:
                raise ClientError(f"there is no column '{name}' for the {part}")
        doubled = [name for name in names if name is not None and schema.names.count(name) > 1]
        if doubled:
            raise ClientError(f"there are several columns '{doubled[0]}'")
        # A part that is None is left out on purpose; for a part with another name its usual column is unused.
        left_out = {usual for name, usual in zip(names, DEFAULT_NAMES, strict=True) if name is None}
        unused = [name for name in schema.names if name not in {*names, *left_out, *IGNORED}]
        if unused:
            raise ClientError(
                f"a record has no place for {', '.join(unused)}: drop the columns, or put them in the value, {_JSON}"
            )
        layout = cls(*(name if name in schema.names else None for name in names))  # type: ignore[arg-type]
        for part, name in layout._asdict().items():
            if name is not None:
                _check_type(part, name, schema.field(name).type)
        return layout

    def plain(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the used columns without extension types, dictionaries and views; plain columns are not copied.

        Arrow cannot tell the size of a slice of those types: the slice refers to all values.
        """
        columns = [batch.column(name) for name in self.used()]
        if all(_is_plain(column.type) for column in columns):
            yield batch.select(self.used())
            return
        # Some rows at a time: a value that many rows share is copied for each.
        for start in range(0, batch.num_rows, _PLAIN_ROWS):
            piece = [_plain(column.slice(start, _PLAIN_ROWS)) for column in columns]
            yield pa.RecordBatch.from_arrays(piece, self.used())

    def records(self, batch: pa.RecordBatch) -> RecordColumns:
        """Returns the record columns of a batch from ``plain``."""
        return RecordColumns(
            key=None if self.key is None else batch.column(self.key),
            value=batch.column(self.value),
            headers=None if self.headers is None else batch.column(self.headers),
            timestamp_ms=None if self.timestamp is None else batch.column(self.timestamp),
        )

    def used(self) -> list[str]:
        return [name for name in self if name is not None]


def _check_type(part: str, name: str, kind: pa.DataType) -> None:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if part in ("key", "value", "topic"):
        inner = kind.value_type if types.is_dictionary(kind) else kind
        fits = _is_text(inner) or (part != "topic" and _is_bytes(inner)) or types.is_null(inner)
        wanted = "text" if part == "topic" else f"bytes or text; cast it, or {_JSON}"
    elif part == "partition":
        fits, wanted = types.is_integer(kind) or types.is_null(kind), "whole numbers"
    elif part == "timestamp":
        fits = types.is_timestamp(kind) or types.is_int64(kind) or types.is_null(kind)
        wanted = "timestamps, or int64 of milliseconds since 1970"
    else:
        is_list = types.is_list(kind) or types.is_large_list(kind)
        item = kind.value_type if is_list else None
        fits = types.is_null(kind) or (
            item is not None
            and types.is_struct(item)
            and item.num_fields == 2
            and (_is_text(item.field(0).type) or _is_bytes(item.field(0).type))
            and (_is_text(item.field(1).type) or _is_bytes(item.field(1).type))
        )
        wanted = "list<struct<key: string, value: binary>>"
    if not fits:
        raise ClientError(f"column '{name}' is of type {kind}; a record's {part} must be {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_plain(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return all(_is_plain(field.type) for field in kind.value_type)
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return not (is_view or pa.types.is_dictionary(kind) or pa.types.is_fixed_size_binary(kind))


def _plain(array: pa.Array) -> pa.Array:
    """Casts once, not for every partition."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if _is_plain(array.type) else array.cast(_plain_type(array.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        fields = [pa.field(field.name, _plain_type(field.type), field.nullable) for field in kind.value_type]
        return pa.large_list(pa.struct(fields))
    if _is_text(kind):
        return pa.large_string()
    return pa.large_binary() if _is_bytes(kind) else kind
