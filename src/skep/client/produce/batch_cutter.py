"""Record batches out of columns: large enough to be cheap, small enough that encoding and sending overlap.

A larger row gets a batch of its own, up to the limit of the topic.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from skep.records.columnar import MAX_BATCH_RECORDS, BadRow, EncodedBatch, RecordColumns, RecordTooLarge, encode_batches
from skep.records.compression import Codec
from skep.records.producer_identity import ProducerIdentity

Rows = np.ndarray[Any, np.dtype[np.int64]]


def batches_of(
    columns: RecordColumns,
    rows: Rows | None,
    *,
    codec: Codec,
    usual_bytes: int,
    largest_bytes: int,
    producer: ProducerIdentity,
    next_sequence: Callable[[], int],
) -> Iterator[EncodedBatch]:
    """Yields one batch at a time; ``next_sequence`` is called after the caller has counted the batches before.

    Raises RecordTooLarge for the first row that fits into no batch, BadRow for one that is no record; both have the row
    by its place in the columns.
    """
    total = len(columns.value) if rows is None else len(rows)
    usual = min(usual_bytes, largest_bytes)
    done, limit, most = 0, usual, MAX_BATCH_RECORDS
    while done < total:
        start = done
        try:
            for batch in encode_batches(
                *_slice(columns, rows, start, min(start + most, total)),
                codec=codec,
                max_batch_bytes=limit,
                producer=producer,
                base_sequence=next_sequence(),
            ):
                yield batch
                done += batch.count
            limit, most = usual, MAX_BATCH_RECORDS
        except RecordTooLarge as error:
            if limit == largest_bytes:
                raise error.with_row(error.row if rows is not None else start + error.row) from None
            limit, most = largest_bytes, 1
        except BadRow as error:
            raise BadRow(error.row if rows is not None else start + error.row, error.reason) from None


def _slice(columns: RecordColumns, rows: Rows | None, start: int, end: int) -> tuple[RecordColumns, Rows | None]:
    if rows is not None:
        return columns, rows[start:end]
    if start == 0 and end == len(columns.value):
        return columns, None
    return RecordColumns(*(None if column is None else column[start:end] for column in columns)), None
