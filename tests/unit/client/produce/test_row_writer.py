"""Rows of batches to partitions: which go where, and which row is named when one cannot be written."""

from typing import Any

import pyarrow as pa
import pytest

from skep.client.errors import RowRefused
from skep.client.produce.batch_cutter import batches_of
from skep.client.produce.partitioner import Partitioner
from skep.client.produce.record_layout import RecordLayout
from skep.client.produce.row_writer import RowWriter
from skep.records.columnar import RecordColumns
from skep.records.compression import Codec
from skep.records.producer_identity import NO_PRODUCER

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Encoding:
    """In place of a producer: encodes what it is given and keeps the values, by topic and partition."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], list[Any]] = {}
        self.sends = 0

    def send(self, topic: str, partition: int, columns: RecordColumns) -> None:
        self.sends += 1
        self.values.setdefault((topic, partition), []).extend(columns.value.to_pylist())
        for _ in batches_of(
            columns,
            None,
            codec=Codec.NONE,
            usual_bytes=1 << 20,
            largest_bytes=1 << 20,
            producer=NO_PRODUCER,
            next_sequence=lambda: -1,
        ):
            pass

    def flush(self) -> None:
        pass


def writer_of(batch: pa.RecordBatch, topic: str | None = "t", partitions: int = 4) -> tuple[RowWriter, Encoding]:
    producer = Encoding()
    writer = RowWriter(None, producer, RecordLayout.of(batch.schema), topic)  # type: ignore[arg-type]
    for name in ("t", "a", "b"):
        writer._partitioners[name] = Partitioner(name, partitions)
    return writer, producer


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_header_without_a_name_is_refused_with_the_number_of_its_row(partitions: int) -> None:
    headers: list[Any] = [[{"key": "k", "value": b""}]] * 1000
    headers[901] = [{"key": None, "value": b""}]
    numbers = pa.array([row % partitions for row in range(1000)])
    batch = pa.record_batch({"value": ["v"] * 1000, "partition": numbers, "headers": pa.array(headers, HEADERS)})
    writer, _ = writer_of(batch, partitions=partitions)
    writer.write(batch.slice(0, 500))
    writer.flush()
    with pytest.raises(RowRefused, match="row 901: it has a header without a name"):
        writer.write(batch.slice(500))
        writer.flush()


def test_a_timestamp_out_of_range_is_refused_with_the_number_of_its_row() -> None:
    times = pa.array([0, 1, 2, 1 << 60], pa.timestamp("s"))
    batch = pa.record_batch({"value": list("abcd"), "partition": [0, 1, 0, 1], "timestamp": times})
    writer, _ = writer_of(batch)
    with pytest.raises(RowRefused, match="row 3: its timestamp"):
        writer.write(batch)
        writer.flush()


def test_topics_that_a_dictionary_names_twice_keep_the_order_of_their_rows() -> None:
    topics = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, 0, 1]), pa.array(["a", "a", "b"]))
    batch = pa.record_batch({"topic": topics, "value": list("12345")})
    writer, producer = writer_of(batch, topic=None, partitions=1)
    writer.write(batch)
    writer.flush()
    assert producer.values == {("a", 0): ["1", "2", "4", "5"], ("b", 0): ["3"]}


def test_a_topic_that_is_null_in_the_dictionary_is_no_topic() -> None:
    topics = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    batch = pa.record_batch({"topic": topics, "value": list("12")})
    writer, _ = writer_of(batch, topic=None)
    with pytest.raises(RowRefused, match="row 1: it has no topic"):
        writer.write(batch)
        writer.flush()


@pytest.mark.parametrize("kind", ["string", "string_view", "dictionary"])
def test_large_batches_are_cut_by_the_size_of_their_rows_whatever_their_type(kind: str) -> None:
    values = pa.array([f"{row:0>200}" for row in range(150_000)])
    if kind == "string_view":
        values = values.cast(pa.string_view())
    elif kind == "dictionary":
        values = values.dictionary_encode()
    batch = pa.record_batch({"value": values})
    writer, producer = writer_of(batch, partitions=1)
    writer.write(batch)
    writer.flush()
    assert producer.values["t", 0] == [f"{row:0>200}" for row in range(150_000)]
    assert producer.sends <= 6
