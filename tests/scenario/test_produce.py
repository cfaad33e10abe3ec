"""Produce: what is accepted and how it is kept, and the right refusal for each partition that is not."""

import struct

import pytest

from skep.base.errors import ErrorCode
from skep.records.batch import crc_of, is_intact, read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, now_ms, produce_body

HOUR_MS = 3_600_000


def with_field(batch: bytes, layout: str, position: int, value: int) -> bytes:
    """The batch with one header field changed, and its CRC made right again."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc_of(changed))
    return bytes(changed)


def with_wrong_crc(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


@pytest.mark.parametrize("version", range(apis.PRODUCE.oldest, apis.PRODUCE.newest + 1))
def test_every_version_appends(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    for acks, offset in ((1, 0), (-1, 2)):
        produced = client.produce(topic, batch_of(b"hen", b"egg"), acks=acks, version=version)
        assert (produced.error_code, produced.base_offset) == (ErrorCode.none, offset)
    assert client.list_offset(topic, -1).offset == 4


@pytest.mark.parametrize("codec", Codec)
def test_records_of_any_codec_pass_through_untouched(client: RawClient, topic: str, codec: Codec) -> None:
    client.create_topic(topic)
    records = [NewRecord(b"k%d" % n, b"value %d" % n * 20, now_ms() + n, (("h", b"1"),)) for n in range(50)]
    batch = build_batch(records, codec=codec)
    client.append(topic, batch_of(b"first"))
    client.append(topic, batch)
    stored = client.fetch_one(Want(topic, 1)).records
    # Only the base offset and the leader epoch, which lie before the CRC's reach, are the broker's.
    assert stored[8:12] + stored[16:] == batch[8:12] + batch[16:]
    assert read_header(stored).base_offset == 1
    assert [record.value for record in records_in(stored)] == [record.value for record in records]


def test_each_partition_has_its_own_response(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    good, bad = batch_of(b"egg"), with_wrong_crc(batch_of(b"egg"))
    body = produce_body({(topic, 0): bad, (topic, 1): good, (topic, 2): good, (f"{topic}-none", 0): good})
    response = client.ask(apis.PRODUCE, 9, **body)
    codes = [partition.error_code for answered in response.responses for partition in answered.partition_responses]
    missing = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.corrupt_message, ErrorCode.none, missing, missing]
    assert client.list_offset(topic, -1, partition=0).offset == 0
    assert client.list_offset(topic, -1, partition=1).offset == 1


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("count", [10, 2000])  # checked on the loop, in a thread
def test_a_compacted_topic_names_all_records_without_a_key(
    client: RawClient, topic: str, version: int, count: int
) -> None:
    client.create_topic(topic, cleanup_policy="compact")
    records = [NewRecord(None if n % 2 else b"key", b"value of some length") for n in range(count)]
    refused = client.produce(topic, build_batch(records), version=version)
    assert refused.error_code is ErrorCode.invalid_record
    assert [one.batch_index for one in refused.record_errors] == list(range(1, count, 2))
    assert "records 1, 3, 5 and others have none" in refused.error_message


def test_a_topic_that_does_not_exist_is_not_created_by_a_produce(client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch_of(b"egg")).error_code is ErrorCode.unknown_topic_or_partition
    response = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    assert response.topics[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc", "a/b", "x" * 250, "space d"])
def test_an_invalid_topic_name_is_refused(skep_broker: EmbeddedBroker, client: RawClient, name: str) -> None:
    before = sorted(path.name for path in skep_broker.data_dir.parent.iterdir())
    refusals = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)
    assert client.produce(name, batch_of(b"egg")).error_code in refusals
    assert sorted(path.name for path in skep_broker.data_dir.parent.iterdir()) == before


BATCH = batch_of(b"one", b"two")

REFUSED = {
    "nothing": (b"", ErrorCode.invalid_record),
    "null": (None, ErrorCode.invalid_record),
    "torn": (BATCH[:40], ErrorCode.corrupt_message),
    "cut short": (BATCH[:-1], ErrorCode.corrupt_message),
    "wrong CRC": (with_wrong_crc(BATCH), ErrorCode.corrupt_message),
    "two batches": (BATCH + BATCH, ErrorCode.invalid_record),
    "magic 1": (BATCH[:16] + b"\1" + BATCH[17:], ErrorCode.invalid_record),
    "magic 0": (BATCH[:16] + b"\0" + BATCH[17:], ErrorCode.invalid_record),
    "count too large": (with_field(BATCH, ">i", 57, 3), ErrorCode.invalid_record),
    "count 0": (with_field(BATCH, ">i", 57, 0), ErrorCode.invalid_record),
    "last offset delta": (with_field(BATCH, ">i", 23, 5), ErrorCode.invalid_record),
    "negative delta": (with_field(BATCH, ">i", 23, -1), ErrorCode.invalid_record),
    "codec 5": (with_field(BATCH, ">h", 21, 5), ErrorCode.invalid_record),
    "control batch": (with_field(BATCH, ">h", 21, 0x20), ErrorCode.invalid_record),
    "transactional without a producer": (with_field(BATCH, ">h", 21, 0x10), ErrorCode.invalid_record),
    "base offset": (with_field(BATCH, ">q", 0, 7), ErrorCode.invalid_record),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_batch_is_refused_and_leaves_no_trace(client: RawClient, topic: str, what: str) -> None:
    batch, code = REFUSED[what]
    client.create_topic(topic)
    produced = client.produce(topic, batch)
    assert (produced.error_code, produced.base_offset) == (code, -1)
    assert produced.error_message
    assert client.list_offset(topic, -1).offset == 0
    assert client.append(topic, BATCH) == 0


@pytest.mark.parametrize("acks", [2, -2, 127])
def test_acks_that_mean_nothing_are_refused(client: RawClient, topic: str, acks: int) -> None:
    client.create_topic(topic)
    assert client.produce(topic, BATCH, acks=acks).error_code is ErrorCode.invalid_required_acks


def test_max_message_bytes_is_the_largest_batch(client: RawClient, topic: str) -> None:
    batch = batch_of(b"x" * 1000)
    client.create_topic(topic, max_message_bytes=len(batch))
    assert client.append(topic, batch) == 0
    produced = client.produce(topic, batch_of(b"x" * 1001))
    assert produced.error_code is ErrorCode.message_too_large
    # What counts is the size on the wire.
    assert client.append(topic, batch_of(b"x" * 100_000, codec=Codec.ZSTD)) == 1


def test_the_default_limit_is_a_mebibyte(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert client.produce(topic, batch_of(b"x" * (1 << 20))).error_code is ErrorCode.message_too_large
    assert client.append(topic, batch_of(b"x" * ((1 << 20) - 100))) == 0


def test_zstd_needs_version_7(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"egg", codec=Codec.ZSTD)
    assert client.produce(topic, batch, version=6).error_code is ErrorCode.unsupported_compression_type
    assert client.produce(topic, batch, version=7).error_code is ErrorCode.none


def test_log_append_time_is_the_brokers(client: RawClient, topic: str) -> None:
    client.create_topic(topic, message_timestamp_type="LogAppendTime")
    for codec in (Codec.NONE, Codec.LZ4):
        before = now_ms()
        produced = client.produce(topic, batch_of(b"a", b"b", timestamp=5, codec=codec))
        stamp = produced.log_append_time
        append_time_ms = round(stamp.timestamp() * 1000)
        assert before <= append_time_ms <= now_ms()
        stored = client.fetch_one(Want(topic, produced.base_offset)).records
        assert is_intact(stored)
        assert read_header(stored).is_append_time
        assert {record.timestamp for record in records_in(stored)} == {append_time_ms}


def test_create_time_is_the_producers(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    produced = client.produce(topic, batch_of(b"egg", timestamp=1_234_567_890_123))
    assert produced.log_append_time is None
    [record] = records_in(client.fetch_one(Want(topic, 0)).records)
    assert record.timestamp == 1_234_567_890_123


def test_timestamps_too_far_from_now_are_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic, message_timestamp_before_max_ms=HOUR_MS)
    for timestamp, code in (
        (now_ms() + 2 * HOUR_MS, ErrorCode.invalid_timestamp),
        (now_ms() - 2 * HOUR_MS, ErrorCode.invalid_timestamp),
        (now_ms(), ErrorCode.none),
    ):
        assert client.produce(topic, batch_of(b"egg", timestamp=timestamp)).error_code is code


def test_no_more_replicas_than_a_partition_has_need_be_in_sync(client: RawClient, topic: str) -> None:
    """As in Kafka, whose effective minimum is that of the option and of the number of replicas."""
    client.create_topic(topic, min_insync_replicas=2)
    assert client.produce(topic, BATCH, acks=-1).base_offset == 0


def test_a_synced_produce_is_read_only_after_the_sync_and_then_at_once(client: RawClient, topic: str) -> None:
    client.create_topic(topic, flush_messages=1)
    for n in range(5):
        assert client.append(topic, batch_of(b"egg")) == n
        assert client.fetch_one(Want(topic, n)).high_watermark == n + 1


def test_a_large_request_over_many_partitions_is_appended_whole(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 20)
    batch = batch_of(b"x" * 500_000)
    response = client.ask(apis.PRODUCE, 9, **produce_body({(topic, index): batch for index in range(20)}))
    responses = [partition for answered in response.responses for partition in answered.partition_responses]
    assert [(partition.index, partition.error_code) for partition in responses] == [
        (index, ErrorCode.none) for index in range(20)
    ]
