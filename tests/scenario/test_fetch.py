"""What a fetch gives: whole batches from any offset, within limits that never leave a reader stuck."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.records.batch import is_intact, read_header
from skep.records.record import batches_in, records_in
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, partitions_in

READ_COMMITTED = 1


def offsets_in(records: bytes) -> list[int]:
    return [record.offset for record in records_in(records)]


def sizes_in(response: Any) -> dict[int, int]:
    return {index: len(partition.records) for (_, index), partition in partitions_in(response).items()}


@pytest.mark.parametrize("version", range(apis.FETCH.oldest, apis.FETCH.newest + 1))
def test_every_version_gives_the_records(client: RawClient, topic: str, version: int) -> None:
    topic_id = client.create_topic(topic)
    batch = batch_of(b"hen", b"egg")
    client.append(topic, batch)
    fetched = client.fetch_one(Want(topic_id if version >= 13 else topic, 0), version=version)
    assert fetched.error_code is ErrorCode.none
    assert fetched.high_watermark == fetched.last_stable_offset == 2
    assert [record.value for record in records_in(fetched.records)] == [b"hen", b"egg"]
    assert is_intact(fetched.records)


def test_an_offset_inside_a_batch_gives_the_whole_batch(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1", b"2"))
    client.append(topic, batch_of(b"3", b"4", b"5"))
    for offset, first in ((0, 0), (1, 0), (2, 0), (3, 3), (4, 3), (5, 3)):
        assert offsets_in(client.fetch_one(Want(topic, offset)).records) == list(range(first, 6))


def test_batches_carry_their_offsets_and_the_leader_epoch(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for _ in range(3):
        client.append(topic, batch_of(b"a", b"b"))
    headers = [header for header, _ in batches_in(client.fetch_one(Want(topic, 0)).records)]
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(0, 0), (2, 0), (4, 0)]


def test_the_first_batch_comes_whole_though_larger_than_every_limit(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"x" * 10_000)
    client.append(topic, batch)
    client.append(topic, batch)
    fetched = client.fetch_one(Want(topic, 0, max_bytes=1), max_bytes=1)
    assert len(fetched.records) == len(batch)
    assert offsets_in(fetched.records) == [0]


def test_only_whole_batches_come_within_the_partitions_limit(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"x" * 100)
    for _ in range(10):
        client.append(topic, batch)
    fetched = client.fetch_one(Want(topic, 2, max_bytes=3 * len(batch) + 5))
    assert offsets_in(fetched.records) == [2, 3, 4]
    assert len(fetched.records) == 3 * len(batch)


def test_the_total_limit_goes_to_the_partitions_in_the_order_they_are_named(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 3)
    batch = batch_of(b"x" * 1000)
    for partition in range(3):
        client.append(topic, batch, partition=partition)
    response = client.fetch(*(Want(topic, 0, partition) for partition in (2, 0, 1)), max_bytes=2 * len(batch))
    assert sizes_in(response) == {2: len(batch), 0: len(batch), 1: 0}


def test_a_batch_over_the_limit_comes_only_when_it_would_be_the_first(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    small, large = batch_of(b"s"), batch_of(b"l" * 5000)
    client.append(topic, small, partition=0)
    client.append(topic, large, partition=1)
    response = client.fetch(Want(topic, 0, 0), Want(topic, 0, 1, max_bytes=100))
    assert sizes_in(response) == {0: len(small), 1: 0}
    response = client.fetch(Want(topic, 1, 0), Want(topic, 0, 1, max_bytes=100))
    assert sizes_in(response) == {0: 0, 1: len(large)}


def test_an_empty_partition_gives_no_records_and_its_marks(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    fetched = client.fetch_one(Want(topic, 0))
    assert (fetched.error_code, fetched.records) == (ErrorCode.none, b"")
    assert (fetched.high_watermark, fetched.log_start_offset) == (0, 0)


@pytest.mark.parametrize("offset", [-1, 3, 1 << 62])
def test_an_offset_outside_the_log_is_out_of_range(client: RawClient, topic: str, offset: int) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1"))
    assert client.fetch_one(Want(topic, offset)).error_code is ErrorCode.offset_out_of_range
    assert client.fetch_one(Want(topic, 2)).error_code is ErrorCode.none


def test_one_bad_partition_does_not_keep_the_others_from_being_read(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"egg"))
    response = client.fetch(
        Want(topic, 0), Want(topic, 0, 7), Want(f"{topic}-missing", 0), max_wait_s=20, min_bytes=10**6
    )
    found = partitions_in(response)
    missing = ErrorCode.unknown_topic_or_partition
    assert {key: partition.error_code for key, partition in found.items()} == {
        (topic, 0): ErrorCode.none,
        (topic, 7): missing,
        (f"{topic}-missing", 0): missing,
    }
    assert offsets_in(found[topic, 0].records) == [0]


def test_a_leader_epoch_from_the_past_or_the_future_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"egg"))
    assert client.fetch_one(Want(topic, 0), leader_epoch=0).error_code is ErrorCode.none
    assert client.fetch_one(Want(topic, 0), leader_epoch=5).error_code is ErrorCode.unknown_leader_epoch


def test_read_committed_gives_everything_where_there_are_no_transactions(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1"))
    committed = client.fetch_one(Want(topic, 0), isolation_level=READ_COMMITTED)
    uncommitted = client.fetch_one(Want(topic, 0))
    assert committed.records == uncommitted.records
    assert committed.last_stable_offset == 2
    # Null would tell librdkafka and Java that the broker does not know of aborted transactions.
    assert committed.aborted_transactions == ()
    assert uncommitted.aborted_transactions is None


def test_a_read_across_segments_finds_every_record(client: RawClient, topic: str) -> None:
    batch = batch_of(*(b"%03d" % n for n in range(10)))
    client.create_topic(topic, segment_bytes=3 * len(batch), index_interval_bytes=len(batch))
    for _ in range(20):
        client.append(topic, batch)
    for start in (0, 29, 30, 31, 95, 199):
        read: list[int] = []
        while not read or read[-1] < 199:
            records = client.fetch_one(Want(topic, read[-1] + 1 if read else start)).records
            assert records, f"a reader is stuck after {read[-1:]}"
            read += offsets_in(records)
        assert read == list(range(start - start % 10, 200))


def test_a_large_response_arrives_byte_for_byte(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 4, max_message_bytes=5_000_000)
    batches = {partition: batch_of(bytes([partition]) * 3_000_000) for partition in range(4)}
    for partition, batch in batches.items():
        client.append(topic, batch, partition=partition)
    response = client.fetch(*(Want(topic, 0, partition, 10_000_000) for partition in range(4)))
    fetched_partitions = partitions_in(response).values()
    assert len(fetched_partitions) == 4
    for fetched in fetched_partitions:
        assert is_intact(fetched.records)
        assert read_header(fetched.records).crc == read_header(batches[fetched.partition_index]).crc
