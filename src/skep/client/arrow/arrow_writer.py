"""Writes an Arrow table or a stream of Arrow batches to a topic, also from pandas, polars and DuckDB."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import KafkaError
from skep.client.arrow_libraries import pyarrow
from skep.client.cluster_client import SHORTEST_REQUEST_S, ClusterClient
from skep.client.errors import ClientError, NotVisibleYet
from skep.client.produce.produce_queue import Written
from skep.client.security.client_security import ClientSecurity
from skep.records.compression import Codec

if TYPE_CHECKING:
    import pyarrow as pa

    from skep.client.produce.producer import Producer
    from skep.client.produce.row_writer import RowWriter

TRANSACTION_TIMEOUT_MS = 300_000


class WriteResult(NamedTuple):
    """The number of rows written; and by topic and partition the first and last offset and the number of rows."""

    rows: int
    partitions: dict[tuple[str, int], Written]


def write_arrow(
    bootstrap: str,
    topic: str | None,
    data: Any,
    *,
    value: str = "value",
    key: str | None = "key",
    headers: str | None = "headers",
    timestamp: str | None = "timestamp",
    partition: str | None = "partition",
    compression: str = "lz4",
    transactional_id: str | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    timeout_s: float = 120.0,
    client_id: str = "skep-arrow",
    config: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Writes every row of ``data`` as a record, and returns when all are acknowledged.

    ``data`` is a pyarrow Table, RecordBatch or RecordBatchReader, an iterable of batches, or anything with the Arrow
    stream interface (a DataFrame of pandas or polars). ``value``, ``key``, ``headers``, ``timestamp`` and ``partition``
    are names of columns; only the value column must exist. Without ``topic`` the column of that name has the topic of
    each row. A given partition wins, then the key decides as in Kafka's own clients; rows without either are spread.

    With a ``transactional_id`` either all rows become visible to readers of committed records, or none. Without one,
    each row is written once, also across the restart of a broker; an error leaves the rows before it written.

    ``config`` has the security settings of the client, as for ``read_arrow``.

    Raises ClientError for a table that does not fit records, RowRefused and RecordTooLarge for a row, KafkaError for a
    refusal of the brokers.
    """
    pyarrow()
    # Imported here because they need pyarrow.
    from skep.client.produce.delivery import REQUEST_TIMEOUT_S
    from skep.client.produce.producer import Producer
    from skep.client.produce.record_layout import ColumnNames, RecordLayout
    from skep.client.produce.row_writer import RowWriter

    codec = _codec_named(compression)
    schema, batches = _batches_of(data)
    if schema is None:
        return WriteResult(0, {})
    names = ColumnNames(value, key, "topic" if topic is None else None, partition, headers, timestamp)
    layout = RecordLayout.of(schema, names)
    if topic is None and layout.topic is None:
        raise ClientError("a topic is needed: give one, or a column 'topic'")
    security = ClientSecurity.of(config or {})
    with (
        ClusterClient(bootstrap, client_id=client_id, timeout_s=timeout_s, security=security) as cluster,
        Producer(
            cluster,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            codec=codec,
            request_timeout_s=min(REQUEST_TIMEOUT_S, max(SHORTEST_REQUEST_S, timeout_s / 3)),
            delivery_timeout_s=timeout_s,
            client_id=client_id,
        ) as producer,
    ):
        writer = RowWriter(cluster, producer, layout, topic)
        _write_all(producer, writer, batches, is_transactional=transactional_id is not None)
        return WriteResult(writer.rows, dict(producer.written))


def _codec_named(compression: str) -> Codec:
    try:
        return Codec.named(compression)
    except ValueError as error:
        raise ClientError(f"compression: {error}") from None


def _write_all(
    producer: "Producer", writer: "RowWriter", batches: "Iterator[pa.RecordBatch]", *, is_transactional: bool
) -> None:
    if is_transactional:
        _write_in_a_transaction(producer, writer, batches)
    else:
        _write(writer, batches)


def _write(writer: "RowWriter", batches: "Iterator[pa.RecordBatch]") -> None:
    for batch in batches:
        writer.write(batch)
    writer.flush()


def _write_in_a_transaction(producer: "Producer", writer: "RowWriter", batches: "Iterator[pa.RecordBatch]") -> None:
    producer.begin()
    try:
        _write(writer, batches)
        producer.commit(until_visible=True)
    except NotVisibleYet:
        # Committed: there is nothing to abort.
        raise
    except BaseException as error:
        try:
            producer.abort()
        except (KafkaError, ClientError) as second:
            if second is error:
                raise
            # The caller must see the first error.
            error.add_note(f"the transaction could not be aborted: {second}")
        raise


def _batches_of(data: Any) -> "tuple[pa.Schema | None, Iterator[pa.RecordBatch]]":
    """Returns the schema and the batches; no schema when there is no batch."""
    arrow = pyarrow()
    if isinstance(data, arrow.RecordBatch):
        return data.schema, iter([data])
    if isinstance(data, arrow.Table):
        return data.schema, iter(data.to_batches())
    if hasattr(data, "__arrow_c_stream__"):
        reader = arrow.RecordBatchReader.from_stream(data)
        return reader.schema, iter(reader)
    if not isinstance(data, Iterable):
        raise ClientError(f"an Arrow table or batches of one are needed, not {type(data).__name__}")
    return _checked(iter(data))


def _checked(given: Iterator[Any]) -> "tuple[pa.Schema | None, Iterator[pa.RecordBatch]]":
    """Returns the schema and the batches of an iterable; the iterator raises for a batch of another schema."""
    arrow = pyarrow()
    first = next(given, None)
    if first is None:
        return None, iter(())
    schema = getattr(first, "schema", None)

    def batches() -> "Iterator[pa.RecordBatch]":
        for number, one in enumerate(itertools.chain([first], given)):
            if not isinstance(one, arrow.RecordBatch | arrow.Table):
                raise ClientError(f"batch {number} is a {type(one).__name__}, not an Arrow batch")
            if not one.schema.equals(schema):
                raise ClientError(f"batch {number} has other columns than the first: {one.schema} and {schema}")
            yield from one.to_batches() if isinstance(one, arrow.Table) else (one,)

    if not isinstance(schema, arrow.Schema):
        raise ClientError(f"batches of an Arrow table are needed, not {type(first).__name__}")
    return schema, batches()
