"""Columns against kio, which has its own reader and writer of record batches; it knows no codec and whole seconds."""

import datetime
import io
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_new_batch

from skep.records.columnar import Decoder, RecordColumns, encode_batches
from skep.records.compression import Codec
from skep.records.producer_identity import ProducerIdentity

FIELDS = st.one_of(st.none(), st.binary(max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=5), FIELDS), max_size=3)
SECONDS = st.integers(0, 4_000_000_000)
ROWS = st.lists(st.tuples(FIELDS, FIELDS, SECONDS, HEADERS), min_size=1, max_size=30)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def row_of(record: KioRecord) -> tuple[Any, ...]:
    headers = [((header.key or b"").decode(), header.value) for header in record.headers]
    return record.key, record.value, int(record.timestamp.timestamp()), headers


@given(ROWS)
def test_kio_reads_what_columns_write(rows: list[tuple[Any, ...]]) -> None:
    keys, values, seconds, headers = zip(*rows, strict=True)
    columns = RecordColumns(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[{"key": k, "value": v} for k, v in pairs] for pairs in headers], HEADERS_TYPE),
        np.array(seconds) * 1000,
    )
    producer = ProducerIdentity(12, 3, True)
    (encoded,) = encode_batches(
        columns, None, codec=Codec.NONE, max_batch_bytes=1 << 20, producer=producer, base_sequence=99
    )
    batch, size = read_batch(encoded.data, 0)
    assert size == len(encoded.data)
    assert [row_of(record) for record in batch.records] == rows
    assert [record.offset for record in batch.records] == list(range(len(rows)))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (12, 3, 99)
    assert batch.max_timestamp == max(seconds) * 1000


@given(ROWS, st.integers(0, 1 << 40))
def test_columns_read_what_kio_writes(rows: list[tuple[Any, ...]], base_offset: int) -> None:
    records = tuple(
        KioRecord(
            attributes=0,  # type: ignore[arg-type]
            timestamp=datetime.datetime.fromtimestamp(seconds, datetime.UTC),  # type: ignore[arg-type]
            offset=base_offset + number,  # type: ignore[arg-type]
            key=key,
            value=value,
            headers=tuple(RecordHeader(key=name.encode(), value=header) for name, header in headers),
        )
        for number, (key, value, seconds, headers) in enumerate(rows)
    )
    buffer = io.BytesIO()
    write_new_batch(
        buffer,
        NewRecordBatch(producer_id=-1, producer_epoch=-1, base_sequence=-1, records=records, attributes=0),  # type: ignore[arg-type]
    )
    (batch,) = Decoder(buffer.getvalue(), start=0, headers=True)
    found = [
        (
            one["key"],
            one["value"],
            int(one["timestamp"].timestamp()),
            [(header["key"], header["value"]) for header in one["headers"] or ()],
        )
        for one in batch.to_pylist()
    ]
    assert found == rows
    assert batch["offset"].to_pylist() == [base_offset + number for number in range(len(rows))]
