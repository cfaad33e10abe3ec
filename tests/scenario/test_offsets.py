"""ListOffsets by mark and by time, DeleteRecords, and where a leader epoch ended."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.record import records_in
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, now_ms, seconds
from tests.waiting import wait_until

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NEWEST = apis.LIST_OFFSETS.newest


def timed(*timestamps: int, codec: int = Codec.NONE) -> bytes:
    return build_batch([NewRecord(None, b"x" * 50, timestamp) for timestamp in timestamps], codec=codec)


def delete_records(client: RawClient, topic: str, offset: int, partition: int = 0, version: int = 2) -> Any:
    response = client.ask(
        apis.DELETE_RECORDS,
        version,
        topics=[{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        timeout=seconds(30),
    )
    [[deleted]] = [answered.partitions for answered in response.topics]
    return deleted


@pytest.mark.parametrize("version", range(apis.LIST_OFFSETS.oldest, NEWEST + 1))
def test_earliest_and_latest_in_every_version(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1", b"2"))
    delete_records(client, topic, 1)
    for timestamp, offset in ((EARLIEST, 1), (LATEST, 3)):
        found = client.list_offset(topic, timestamp, version=version)
        assert (found.error_code, found.offset) == (ErrorCode.none, offset)
        assert found.timestamp in (-1, None)


def test_an_empty_partition_has_only_offset_0(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    offsets = {t: client.list_offset(topic, t, version=NEWEST).offset for t in (EARLIEST, LATEST, MAX_TIMESTAMP, 0)}
    assert offsets == {EARLIEST: 0, LATEST: 0, MAX_TIMESTAMP: -1, 0: -1}


def test_read_committed_is_answered_where_there_are_no_transactions(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1"))
    assert client.list_offset(topic, LATEST, isolation_level=1).offset == 2


def test_the_greatest_timestamp_is_found_wherever_it_is(client: RawClient, topic: str) -> None:
    now = now_ms()
    client.create_topic(topic)
    client.append(topic, timed(now - 30, now - 20))
    client.append(topic, timed(now - 15, now - 2, now - 10, codec=Codec.GZIP))
    client.append(topic, timed(now - 5, now - 4))
    found = client.list_offset(topic, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (3, now - 2)


@pytest.mark.parametrize("codec", Codec)
def test_a_time_gives_the_first_record_at_or_after_it_not_its_batch(
    client: RawClient, topic: str, codec: Codec
) -> None:
    base = now_ms() - 10_000
    client.create_topic(topic, index_interval_bytes=1)
    client.append(topic, timed(base + 10, base + 20, base + 30, codec=codec))
    client.append(topic, timed(base + 40, base + 35, base + 60, codec=codec))
    client.append(topic, timed(base + 25, base + 70, codec=codec))
    expected = {0: (0, 10), 10: (0, 10), 11: (1, 20), 30: (2, 30), 31: (3, 40), 40: (3, 40), 41: (5, 60), 61: (7, 70)}
    for time, (offset, timestamp) in expected.items():
        found = client.list_offset(topic, base + time)
        assert (found.offset, found.timestamp) == (offset, base + timestamp), f"at {time}"
    found = client.list_offset(topic, base + 71)
    assert (found.error_code, found.offset) == (ErrorCode.none, -1)


def test_a_time_is_found_in_any_segment(client: RawClient, topic: str) -> None:
    base = now_ms() - 100_000
    batch_size = len(timed(*range(base, base + 10)))
    client.create_topic(topic, segment_bytes=4 * batch_size, index_interval_bytes=batch_size)
    for start in range(0, 1000, 10):
        client.append(topic, timed(*(base + start + n for n in range(10)), codec=Codec.LZ4))
    for time in (0, 1, 9, 10, 399, 400, 401, 777, 999):
        found = client.list_offset(topic, base + time)
        assert (found.offset, found.timestamp) == (time, base + time)


def test_a_time_before_the_log_start_gives_the_log_start(client: RawClient, topic: str) -> None:
    base = now_ms() - 10_000
    client.create_topic(topic)
    client.append(topic, timed(base, base + 1, base + 2, base + 3))
    delete_records(client, topic, 2)
    found = client.list_offset(topic, base)
    assert (found.offset, found.timestamp) == (2, base + 2)


def test_nothing_is_tiered(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0"))
    assert client.list_offset(topic, EARLIEST_LOCAL, version=8).offset == 0
    assert client.list_offset(topic, LATEST_TIERED, version=9).offset == -1
    assert client.list_offset(topic, PENDING_UPLOAD, version=11).offset == -1


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (PENDING_UPLOAD, 10), (-7, NEWEST)],
)
def test_a_special_time_that_the_version_does_not_have_is_refused(
    client: RawClient, topic: str, timestamp: int, version: int
) -> None:
    client.create_topic(topic)
    found = client.list_offset(topic, timestamp, version=version)
    assert found.error_code in (ErrorCode.unsupported_version, ErrorCode.invalid_request)
    assert found.offset == -1


def test_each_partition_asked_for_is_answered_by_itself(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    client.append(topic, batch_of(b"0"), partition=1)
    wanted = [{"partition_index": index, "timestamp": LATEST} for index in (1, 5, 0)]
    response = client.ask(apis.LIST_OFFSETS, 7, topics=[{"name": topic, "partitions": wanted}])
    responses = [(found.partition_index, found.error_code, found.offset) for found in response.topics[0].partitions]
    missing = ErrorCode.unknown_topic_or_partition
    assert responses == [(1, ErrorCode.none, 1), (5, missing, -1), (0, ErrorCode.none, 0)]


def test_deleted_records_are_gone_for_readers_and_the_rest_stays(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for value in (b"0", b"1", b"2"):
        client.append(topic, batch_of(value))
    deleted = delete_records(client, topic, 2)
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 2)
    assert client.fetch_one(Want(topic, 1)).error_code is ErrorCode.offset_out_of_range
    fetched = client.fetch_one(Want(topic, 2))
    assert fetched.log_start_offset == 2
    assert [record.value for record in records_in(fetched.records)] == [b"2"]


@pytest.mark.parametrize("version", range(apis.DELETE_RECORDS.oldest, apis.DELETE_RECORDS.newest + 1))
def test_minus_1_deletes_all_there_is(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1"))
    assert delete_records(client, topic, -1, version=version).low_watermark == 2
    assert client.list_offset(topic, EARLIEST).offset == 2
    assert client.append(topic, batch_of(b"2")) == 2


def test_deleting_never_moves_the_log_start_back_or_past_the_end(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1", b"2"))
    assert delete_records(client, topic, 2).low_watermark == 2
    assert delete_records(client, topic, 1).low_watermark == 2
    assert delete_records(client, topic, 4).error_code is ErrorCode.offset_out_of_range
    assert delete_records(client, topic, -2).error_code is ErrorCode.offset_out_of_range
    missing = delete_records(client, topic, 0, partition=9)
    assert (missing.error_code, missing.low_watermark) == (ErrorCode.unknown_topic_or_partition, -1)


def test_records_of_a_topic_that_is_only_compacted_are_not_deleted_by_offset(client: RawClient, topic: str) -> None:
    for policy, code, start in (("compact", ErrorCode.policy_violation, 0), ("compact,delete", ErrorCode.none, 2)):
        name = f"{topic}-{policy.replace(',', '-')}"
        client.create_topic(name, cleanup_policy=policy)
        client.append(name, build_batch([NewRecord(b"k", b"v", now_ms())] * 3))
        deleted = delete_records(client, name, 2)
        assert (deleted.error_code, deleted.low_watermark) == (code, start if code is ErrorCode.none else -1)
        assert client.list_offset(name, EARLIEST).offset == start


def test_deleting_records_takes_whole_segments_off_the_disk(client: RawClient, topic: str, skep_broker: Any) -> None:
    batch = batch_of(b"x" * 100)
    client.create_topic(topic, segment_bytes=2 * len(batch), file_delete_delay_ms=0)
    for _ in range(9):
        client.append(topic, batch)
    delete_records(client, topic, 5)
    directory = skep_broker.data_dir / f"{topic}-0"
    wait_until(
        lambda: sorted(int(path.stem) for path in directory.glob("*.log")) == [4, 6, 8], "segments 0 and 2 are gone"
    )


def test_the_end_of_an_epoch_is_the_log_end_while_it_lasts(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"0", b"1"))
    for version in (2, 3, 4):
        partitions = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch} for epoch in (0, 7)]
        response = client.ask(
            apis.OFFSET_FOR_LEADER_EPOCH, version, topics=[{"topic": topic, "partitions": partitions}]
        )
        ends = [(end.error_code, end.leader_epoch, end.end_offset) for end in response.topics[0].partitions]
        assert ends == [(ErrorCode.none, 0, 2), (ErrorCode.none, -1, -1)]
