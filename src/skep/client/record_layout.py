"""Which columns of a table are which part of a record; refused before the first row if that makes no sense.

The names are those of Spark's Kafka connector, so that what was read from a topic can be written to one. Its ``offset``
and ``timestampType`` are the broker's to give and are left out. Any other column is refused: it would be lost without a
word.
"""

from typing import NamedTuple

import pyarrow as pa

from skep.client.errors import ClientError
from skep.records.columnar import RecordColumns

IGNORED = frozenset({"offset", "timestampType"})
_JSON = "for JSON: pa.table({'value': [json.dumps(row) for row in table.to_pylist()]})"


class ColumnNames(NamedTuple):
    """None: the table has no such column, or it is not to be used."""

    value: str = "value"
    key: str | None = "key"
    topic: str | None = "topic"
    partition: str | None = "partition"
    headers: str | None = "headers"
    timestamp: str | None = "timestamp"


DEFAULT_NAMES = ColumnNames()


class RecordLayout(NamedTuple):
    """The columns that there are, by name; what every batch of the table is read by."""

    value: str
    key: str | None
    topic: str | None
    partition: str | None
    headers: str | None
    timestamp: str | None

    @classmethod
    def of(cls, schema: pa.Schema, names: ColumnNames = DEFAULT_NAMES) -> "RecordLayout":
        """ClientError when a column is missing, of a type that it cannot have, or would not be written."""
        if names.value not in schema.names:
            raise ClientError(
                f"there is no column '{names.value}', only {', '.join(schema.names) or 'none at all'}; a record is a "
                f"value and what belongs to it: name the column with value=, or make one, {_JSON}"
            )
        for part, name, usual in zip(ColumnNames._fields, names, DEFAULT_NAMES, strict=True):
            if name is not None and name != usual and name not in schema.names:
                raise ClientError(f"there is no column '{name}', which is to be the {part}")
        unused = [name for name in schema.names if name not in {*names, *DEFAULT_NAMES, *IGNORED}]
        if unused:
            raise ClientError(
                f"a record has no place for {', '.join(unused)}: drop the columns, or put them in the value, {_JSON}"
            )
        layout = cls(*(name if name in schema.names else None for name in names))  # type: ignore[arg-type]
        for part, name in layout._asdict().items():
            if name is not None:
                _check_type(part, name, schema.field(name).type)
        return layout

    def records(self, batch: pa.RecordBatch) -> RecordColumns:
        return RecordColumns(
            key=None if self.key is None else _plain(batch.column(self.key)),
            value=_plain(batch.column(self.value)),
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
        raise ClientError(f"column '{name}' is of type {kind}; a record's {part} is {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _plain(array: pa.Array) -> pa.Array:
    """Without extension, dictionary or views: cast once here and not for every partition."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    is_plain = (
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
    )
    return array if is_plain else array.cast(pa.large_binary())
