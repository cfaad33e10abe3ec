"""The control batch that ends a transaction, byte for byte."""

import struct

import pytest

from skep.records.batch import is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.end_txn_marker import MARKER_SIZE, EndTxnMarker, build_marker, read_marker
from skep.records.record import iterate_records


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_laid_out_as_kafka_writes_it(committed: bool) -> None:
    batch = build_marker(EndTxnMarker(committed, 7), producer_id=9, producer_epoch=3, timestamp=55)
    header = read_header(batch)
    assert is_intact(batch)
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    assert (header.records_count, header.last_offset_delta, header.max_timestamp) == (1, 0, 55)
    [record] = iterate_records(batch)
    assert record.key == struct.pack(">hh", 0, 1 if committed else 0)
    assert record.value == struct.pack(">hi", 0, 7)
    assert len(batch) == MARKER_SIZE == 78


@pytest.mark.parametrize("committed", [True, False])
def test_what_was_written_is_read_back(committed: bool) -> None:
    marker = EndTxnMarker(committed, 123_456)
    assert read_marker(build_marker(marker, producer_id=1, producer_epoch=0, timestamp=-1)) == marker


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (struct.pack(">hh", 0, 2), struct.pack(">hi", 0, 7)),
        (struct.pack(">h", 0), struct.pack(">hi", 0, 7)),
        (struct.pack(">hh", 0, 1), b"\0"),
        (None, None),
    ],
    ids=["leader change", "short key", "short value", "nothing"],
)
def test_other_control_records_end_no_transaction(key: bytes | None, value: bytes | None) -> None:
    assert read_marker(build_batch([NewRecord(key, value)], is_control=True)) is None


def test_a_longer_version_of_a_marker_is_understood() -> None:
    batch = build_batch([NewRecord(struct.pack(">hhq", 1, 1, 5), struct.pack(">hiq", 1, 7, 5))], is_control=True)
    assert read_marker(batch) == EndTxnMarker(True, 7)
