"""Record batches that are wrong: each refused with its code, nothing written, the good ones beside them accepted."""

import struct
from collections.abc import Callable, Iterator

import pytest

from skep.base.errors import ErrorCode
from skep.records.batch import crc_of
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.wire import apis
from tests.fuzz.scene import MEBIBYTE, Scene, scene
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, now_ms, produce_body

TOPIC = "battered"
GOOD = batch_of(b"one", b"two", b"three")


@pytest.fixture(scope="module")
def the_scene() -> Iterator[Scene]:
    with scene() as found, found.client() as client:
        client.create_topic(TOPIC, partitions=2)
        yield found


def with_field(format_: str, position: int, value: int, *, right_crc: bool = True) -> bytes:
    batch = bytearray(GOOD)
    struct.pack_into(format_, batch, position, value)
    if right_crc:
        struct.pack_into(">I", batch, 17, crc_of(batch))
    return bytes(batch)


def legacy_message_set(magic: int) -> bytes:
    """One message as Kafka 0.8 (magic 0) or 0.10 (magic 1) laid it out; the CRC is nobody's concern here."""
    timestamp = struct.pack(">q", now_ms()) if magic else b""
    message = struct.pack(">Ibb", 0, magic, 0) + timestamp + struct.pack(">ii5s", -1, 5, b"value")
    return struct.pack(">qi", 0, len(message)) + message


REFUSED: dict[str, tuple[Callable[[], bytes | None], ErrorCode]] = {
    "a CRC that is wrong": (lambda: with_field(">I", 17, 0, right_crc=False), ErrorCode.corrupt_message),
    "a byte of a record that was changed": (lambda: GOOD[:-1] + b"!", ErrorCode.corrupt_message),
    "a count below the records' number": (lambda: with_field(">i", 57, 2), ErrorCode.invalid_record),
    "a count above the records' number": (lambda: with_field(">i", 57, 4), ErrorCode.invalid_record),
    "a count of -1": (lambda: with_field(">i", 57, -1), ErrorCode.invalid_record),
    "no records": (lambda: with_field(">i", 57, 0), ErrorCode.invalid_record),
    "a base offset": (lambda: with_field(">q", 0, 5), ErrorCode.invalid_record),
    "a base offset below zero": (lambda: with_field(">q", 0, -1), ErrorCode.invalid_record),
    "a last offset delta below zero": (lambda: with_field(">i", 23, -1), ErrorCode.invalid_record),
    "a last offset delta that is too large": (lambda: with_field(">i", 23, 2**31 - 1), ErrorCode.invalid_record),
    "a length beyond the end": (lambda: with_field(">i", 8, len(GOOD)), ErrorCode.corrupt_message),
    "a length of 2 GiB": (lambda: with_field(">i", 8, 2**31 - 1), ErrorCode.corrupt_message),
    "a length below zero": (lambda: with_field(">i", 8, -1), ErrorCode.corrupt_message),
    "a length within the header": (lambda: with_field(">i", 8, 10), ErrorCode.corrupt_message),
    "a length that leaves bytes over": (lambda: with_field(">i", 8, len(GOOD) - 13), ErrorCode.invalid_record),
    "a batch that is cut short": (lambda: GOOD[:-1], ErrorCode.corrupt_message),
    "half a header": (lambda: GOOD[:40], ErrorCode.corrupt_message),
    "ten bytes": (lambda: GOOD[:10], ErrorCode.corrupt_message),
    "two batches": (lambda: GOOD + GOOD, ErrorCode.invalid_record),
    "a batch and a byte": (lambda: GOOD + b"\0", ErrorCode.invalid_record),
    "nothing": (lambda: b"", ErrorCode.invalid_record),
    "null": (lambda: None, ErrorCode.invalid_record),
    "magic 0": (lambda: legacy_message_set(0), ErrorCode.invalid_record),
    "magic 1": (lambda: legacy_message_set(1), ErrorCode.invalid_record),
    "magic 3": (lambda: with_field(">b", 16, 3), ErrorCode.invalid_record),
    "a codec that there is not": (lambda: with_field(">h", 21, 7), ErrorCode.invalid_record),
    "a control batch": (lambda: batch_of(b"x", is_control=True), ErrorCode.invalid_record),
    "a transaction of nobody": (
        lambda: batch_of(b"x", is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.transactional_id_authorization_failed,
    ),
    "a producer without a sequence": (lambda: batch_of(b"x", producer_id=5), ErrorCode.invalid_record),
    "a timestamp two days ahead": (
        lambda: batch_of(b"x", timestamp=now_ms() + 172_800_000),
        ErrorCode.invalid_timestamp,
    ),
    "more than max.message.bytes": (lambda: batch_of(bytes(MEBIBYTE + 100)), ErrorCode.message_too_large),
}


@pytest.mark.parametrize("version", [3, 7, 9, 11])
@pytest.mark.parametrize(("make", "code"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_batch_is_refused_and_the_one_beside_it_is_not(
    the_scene: Scene, make: Callable[[], bytes | None], code: ErrorCode, version: int
) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        ends = [end_of(client, partition) for partition in (0, 1)]
        the_scene.new_lines()
        response = client.ask(apis.PRODUCE, version, **produce_body({(TOPIC, 0): make(), (TOPIC, 1): GOOD}))
        bad, good = (one for topic in response.responses for one in topic.partition_responses)
        assert bad.error_code is code
        assert bad.base_offset == -1
        assert good.error_code is ErrorCode.none
        assert [end_of(client, partition) for partition in (0, 1)] == [ends[0], ends[1] + 3]
        assert the_scene.new_lines() == [], "a refusal that the client is told of needs no line"


def end_of(client: RawClient, partition: int) -> int:
    return int(client.list_offset(TOPIC, -1, partition=partition).offset)


def test_a_wrong_batch_without_acknowledgement_ends_the_connection_with_one_line(the_scene: Scene) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        client.send_produce(TOPIC, GOOD[:-1] + b"!", acks=0)
        the_scene.expect_hang_up(client, "acks=0 to battered-0 failed: corrupt_message")


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_acknowledgements_that_there_are_not_are_refused(the_scene: Scene, acks: int) -> None:
    with the_scene.unharmed(), the_scene.client() as client:
        assert client.produce(TOPIC, GOOD, acks=acks).error_code is ErrorCode.invalid_required_acks


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_compressed_bomb_stays_packed(the_scene: Scene, codec: Codec) -> None:
    """200 MiB of zeros in a batch that the broker stores and gives back without opening it."""
    bomb = build_batch([NewRecord(None, bytes(200 * MEBIBYTE), now_ms())], codec=codec)
    topic = f"bombed-{codec.label}"
    with the_scene.client() as client:
        client.create_topic(topic, max_message_bytes=20 * MEBIBYTE)
        with the_scene.unharmed(max_growth_bytes=16 * MEBIBYTE + 6 * len(bomb)):
            assert client.append(topic, bomb) == 0
            fetched = client.fetch_one(Want(topic, 0, max_bytes=len(bomb)))
            assert fetched.records[17:] == bomb[17:]
            assert client.list_offset(topic, -1).offset == 1


def test_looking_for_a_time_inside_a_bomb_stops_at_a_limit(the_scene: Scene) -> None:
    """ListOffsets by time is the one request that has to look into a batch; it unpacks 128 MiB at the most."""
    topic = "bombed-by-time"
    records = [NewRecord(None, bytes(300 * MEBIBYTE), 1000), NewRecord(None, b"later", 2000)]
    with the_scene.client() as client:
        client.create_topic(topic, max_message_bytes=20 * MEBIBYTE)
        client.append(topic, build_batch(records, codec=Codec.ZSTD))
        with the_scene.unharmed(max_growth_bytes=160 * MEBIBYTE):
            assert client.list_offset(topic, 1500).error_code is ErrorCode.none
