"""Fetch of one partition, compared with kio; and the walk over batch headers."""

from typing import Any
from uuid import UUID

import pytest

from skep.base.errors import DecodeError, ErrorCode
from skep.client.fetch.partition_fetch import fetch_body, offset_after, read_fetched
from skep.wire.apis import FETCH
from skep.wire.client_codec import decode_response
from skep.wire.codec import request_class, response_class
from skep.wire.fetch.fetch_response import HAS_TOPIC_ID
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.raw_requests import batch_of, seconds

VERSIONS = range(FETCH.oldest, FETCH.newest + 1)
TOPIC_ID = UUID("6f1b0e9c-3c0a-4f0a-9a63-2b7c1d4e5f60")
ABORTED = [{"producer_id": 7, "first_offset": 3}, {"producer_id": 1 << 40, "first_offset": 12}]


def response_of(version: int, partitions: list[dict[str, Any]], error_code: ErrorCode = ErrorCode.none) -> bytes:
    """As kio writes it."""
    name = {"topic_id": TOPIC_ID} if version >= HAS_TOPIC_ID else {"topic": "orders"}
    topics = [{**name, "partitions": partitions}] if partitions else []
    body = {"throttle_time": seconds(1), "error_code": error_code, "session_id": 0, "responses": topics}
    return response_header(FETCH.key, version, 5) + written(response_class(FETCH.key, version), body)


def partition(**others: Any) -> dict[str, Any]:
    return {
        "partition_index": 3,
        "error_code": ErrorCode.none,
        "high_watermark": 90,
        "last_stable_offset": 80,
        "log_start_offset": 10,
        "aborted_transactions": ABORTED,
        "preferred_read_replica": -1,
        "records": batch_of(b"x" * 300),
        **others,
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("others", [{}, {"aborted_transactions": None}, {"records": None}, {"records": b""}])
def test_a_response_is_read_as_kio_reads_it(version: int, others: dict[str, Any]) -> None:
    frame = response_of(version, [partition(**others)])
    _, response = decode_response(FETCH, version, frame)
    [[expected]] = [topic.partitions for topic in response.responses]
    fetched = read_fetched(version, memoryview(frame))
    assert fetched is not None
    assert fetched.error_code is expected.error_code
    assert fetched.high_watermark == expected.high_watermark
    assert fetched.last_stable_offset == expected.last_stable_offset
    aborted = [(one.producer_id, one.first_offset) for one in expected.aborted_transactions or ()]
    assert list(fetched.aborted) == aborted
    assert bytes(fetched.records) == (expected.records or b"")


def test_records_are_not_copied() -> None:
    frame = bytearray(response_of(18, [partition()]))
    fetched = read_fetched(18, memoryview(frame))
    assert fetched is not None
    assert fetched.records.obj is frame


@pytest.mark.parametrize("version", [7, 12, 18])
def test_a_refusal_of_the_whole_request_is_that_of_the_partition(version: int) -> None:
    fetched = read_fetched(version, memoryview(response_of(version, [], ErrorCode.inconsistent_topic_id)))
    assert fetched is not None
    assert fetched.error_code is ErrorCode.inconsistent_topic_id


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_without_the_partition_is_none(version: int) -> None:
    assert read_fetched(version, memoryview(response_of(version, []))) is None


def test_tagged_fields_are_passed_over() -> None:
    tags = b"\1\x09\3abc"
    plain = response_of(18, [partition(aborted_transactions=[ABORTED[0]])])
    header, entry = plain[:4], (7).to_bytes(8, "big") + (3).to_bytes(8, "big")
    assert plain.count(entry + b"\0") == 1
    tagged = header + tags + plain[5:].replace(entry + b"\0", entry + tags)
    fetched, expected = read_fetched(18, memoryview(tagged)), read_fetched(18, memoryview(plain))
    assert fetched == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_is_cut_off_before_its_records_end_is_refused(version: int) -> None:
    frame = response_of(version, [partition()])
    fetched = read_fetched(version, memoryview(frame))
    assert fetched is not None
    end = frame.index(bytes(fetched.records)) + len(fetched.records)
    for size in range(end):
        with pytest.raises(DecodeError):
            read_fetched(version, memoryview(frame)[:size])


def test_a_code_of_later_times_is_an_unknown_error() -> None:
    frame = bytearray(response_of(18, [partition()]))
    place = frame.index((3).to_bytes(4, "big") + b"\0\0" + (90).to_bytes(8, "big"))
    frame[place + 4 : place + 6] = (9999).to_bytes(2, "big")
    fetched = read_fetched(18, memoryview(frame))
    assert fetched is not None
    assert fetched.error_code is ErrorCode.unknown_server_error


@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_is_one_that_kio_reads(version: int) -> None:
    from kio.serial import entity_reader

    body = fetch_body(version, "orders", TOPIC_ID, 3, 42, max_bytes=1 << 20, committed=True)
    request, _ = entity_reader(request_class(FETCH.key, version))(body, 0)
    [topic] = request.topics
    [wanted] = topic.partitions
    assert (wanted.partition, wanted.fetch_offset, wanted.partition_max_bytes) == (3, 42, 1 << 20)
    assert (topic.topic_id == TOPIC_ID) if version >= HAS_TOPIC_ID else (topic.topic == "orders")
    assert request.isolation_level == 1
    assert request.max_wait == seconds(0.5)
    assert getattr(request, "replica_id", -1) == -1
    assert getattr(request, "session_epoch", -1) == -1


def test_the_walk_ends_after_the_last_whole_batch() -> None:
    first, second = batch_of(b"a", b"b", base_offset=10), batch_of(b"c", base_offset=30)
    both = first + second
    assert offset_after(memoryview(both), 10) == 31
    assert offset_after(memoryview(both), 11) == 31
    assert offset_after(memoryview(b""), 10) == 10
    for size in range(len(both)):
        assert offset_after(memoryview(both)[:size], 10) == (10 if size < len(first) else 12)


def test_the_walk_never_goes_back_and_ends_at_damage() -> None:
    early = batch_of(b"a", base_offset=3)
    assert offset_after(memoryview(early), 10) == 10
    damaged = bytearray(batch_of(b"a", base_offset=10) + batch_of(b"b", base_offset=11))
    half = len(damaged) // 2
    damaged[half + 8 : half + 12] = b"\xff\xff\xff\xff"
    assert offset_after(memoryview(damaged), 10) == 11
    damaged[half : half + 12] = b"\x7f" + b"\xff" * 7 + b"\0\0\0\x40"
    assert offset_after(memoryview(damaged), 10) == 11
