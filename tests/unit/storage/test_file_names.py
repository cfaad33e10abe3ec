"""Names and the small text files."""

import uuid

import pytest

from skep.base.ids import TopicPartition
from skep.storage.directory.checkpoint_files import decode_checkpoint, encode_checkpoint
from skep.storage.file_names import (
    away_name,
    decode_partition_metadata,
    encode_partition_metadata,
    offset_name,
    parse_offset_name,
    parse_partition_name,
)


def test_segment_names_are_read_back() -> None:
    assert offset_name(42, ".log") == "00000000000000000042.log"
    assert parse_offset_name("00000000000000000042.log") == (42, ".log")
    for other in ("42.log", "00000000000000000042.log.deleted", "partition.metadata", "x0000000000000000042.log"):
        assert parse_offset_name(other) is None


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("orders-0", ("orders", 0)),
        ("a-1-2", ("a-1", 2)),
        ("a.b_c-17", ("a.b_c", 17)),
        ("orders", None),
        ("orders-", None),
        ("orders-01", None),
        ("orders-x", None),
        (".lock", None),
        ("recovery-point-offset-checkpoint", None),
        ("orders-0.0123-delete", None),
        ("orders-0.0123-stray", None),
    ],
)
def test_partition_directories_are_told_from_others(name: str, partition: tuple[str, int] | None) -> None:
    assert parse_partition_name(name) == partition


def test_names_of_what_is_put_away_fit_and_are_no_partitions() -> None:
    for topic in ("orders", "t" * 249):
        names = {away_name(TopicPartition(topic, 12345), "-delete") for _ in range(5)}
        assert len(names) == 5
        assert all(len(name) <= 255 and parse_partition_name(name) is None for name in names)


def test_partition_metadata_is_kafkas() -> None:
    topic_id = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    data = encode_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w\n"
    assert decode_partition_metadata(data) == topic_id
    for damaged in (b"", b"version: 0\n", b"\xff\0", data[:-9]):
        assert decode_partition_metadata(damaged) is None


def test_checkpoints_are_kafkas() -> None:
    offsets = {TopicPartition("b", 1): 5, TopicPartition("a-b", 0): 77}
    assert encode_checkpoint(offsets) == b"0\n2\na-b 0 77\nb 1 5\n"
    assert decode_checkpoint(encode_checkpoint(offsets)) == offsets


@pytest.mark.parametrize("data", [b"", b"0\n", b"1\n0\n", b"0\n1\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"\xff"])
def test_damaged_checkpoints_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_checkpoint(data)
