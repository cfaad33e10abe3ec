"""What is read by hand is what kio reads, and whatever differs from what was seen before is left to kio."""

import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.base.errors import DecodeError
from skep.wire.apis import PRODUCE
from skep.wire.codec import decode_request, request_class
from skep.wire.headers import read_request_header
from skep.wire.produce.one_batch_reader import HEADS_KEPT, LONGEST_HEAD, OneBatchReader
from tests.kio_entities import written

VERSIONS = st.integers(PRODUCE.flexible_from, PRODUCE.newest)
CLIENTS = st.text("abé-", max_size=130)
# The lengths around which a name's and a batch's own length grow by a byte.
TOPICS = st.text("abcdefghij.-é", min_size=1, max_size=20) | st.sampled_from(["n" * 126, "n" * 127])
SIZES = st.integers(0, 200) | st.sampled_from([126, 127, 16_382, 16_383, 16_384, 70_000])


def frame_of(version: int, correlation_id: int, client_id: str | None, topics: list[Any], **fields: Any) -> memoryview:
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id.encode())) + client_id.encode()
    header = struct.pack(">hhi", PRODUCE.key, version, correlation_id) + name
    body = {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=30), "topic_data": topics, **fields}
    tags = b"\0" if PRODUCE.is_flexible(version) else b""
    return memoryview(header + tags + written(request_class(PRODUCE.key, version), body))


def topic_of(name: str, *partitions: tuple[int, bytes | None]) -> dict[str, Any]:
    return {"name": name, "partition_data": [{"index": index, "records": records} for index, records in partitions]}


def read_by_kio(frame: memoryview) -> tuple[Any, ...]:
    header, position = read_request_header(frame, 1000)
    body = decode_request(header.api_key, header.api_version, frame, position)
    return (header.api_version, header.correlation_id, header.client_id, *content(body))


def content(body: Any) -> tuple[Any, ...]:
    topics = [(topic.name, [(data.index, data.records) for data in topic.partition_data]) for topic in body.topic_data]
    return body.transactional_id, body.acks, body.timeout, topics


def read_by_hand(reader: OneBatchReader, frame: memoryview) -> tuple[Any, ...] | None:
    known = reader.read(frame)
    return None if known is None else (*known[:3], *content(known.body))


def remember(reader: OneBatchReader, frame: memoryview) -> None:
    header, position = read_request_header(frame, 1000)
    reader.remember(
        header.api_version, header.client_id, decode_request(PRODUCE.key, header.api_version, frame, position)
    )


@given(
    version=VERSIONS,
    client_id=CLIENTS,
    topic=TOPICS,
    acks=st.sampled_from((-1, 0, 1, 7)),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    index=st.integers(-(2**31), 2**31 - 1),
    size=SIZES,
)
def test_a_request_like_one_before_is_read_as_kio_reads_it(
    version: int, client_id: str, topic: str, acks: int, timeout_ms: int, correlation_id: int, index: int, size: int
) -> None:
    reader, fields = OneBatchReader(), {"acks": acks, "timeout": timedelta(milliseconds=timeout_ms)}
    first = frame_of(version, 1, client_id, [topic_of(topic, (0, b"first"))], **fields)
    again = frame_of(version, correlation_id, client_id, [topic_of(topic, (index, bytes(size)))], **fields)
    assert read_by_hand(reader, again) is None
    remember(reader, first)
    known = read_by_hand(reader, again)
    assert known == (read_by_kio(again) if len(topic.encode()) <= 126 else None)


@pytest.mark.parametrize(
    "other",
    [
        frame_of(9, 2, "other", [topic_of("t", (0, b"b"))]),
        frame_of(9, 2, None, [topic_of("t", (0, b"b"))]),
        frame_of(9, 2, "c", [topic_of("u", (0, b"b"))]),
        frame_of(9, 2, "c", [topic_of("t", (0, b"b"))], acks=1),
        frame_of(9, 2, "c", [topic_of("t", (0, b"b"))], timeout=timedelta(seconds=1)),
        frame_of(9, 2, "c", [topic_of("t", (0, b"b"))], transactional_id="x"),
        frame_of(9, 2, "c", [topic_of("t", (0, None))]),
        frame_of(9, 2, "c", [topic_of("t", (0, b"b"), (1, b"b"))]),
        frame_of(9, 2, "c", [topic_of("t", (0, b"b")), topic_of("u", (0, b"b"))]),
        frame_of(9, 2, "c", []),
        frame_of(8, 2, "c", [topic_of("t", (0, b"b"))]),
        memoryview(bytes(frame_of(9, 2, "c", [topic_of("t", (0, b"b"))])) + b"\0"),
    ],
)
def test_a_request_that_differs_is_left_to_kio(other: memoryview) -> None:
    reader = OneBatchReader()
    remember(reader, frame_of(9, 1, "c", [topic_of("t", (0, b"first"))]))
    assert reader.read(other) is None


@given(place=st.integers(0, 80), byte=st.integers(0, 255), end=st.integers(0, 80))
@example(place=0, byte=0, end=0)
def test_bytes_that_were_damaged_are_never_read_as_something_else(place: int, byte: int, end: int) -> None:
    reader, whole = OneBatchReader(), bytearray(frame_of(9, 1, "client", [topic_of("topic", (3, b"a batch of bytes"))]))
    remember(reader, memoryview(bytes(whole)))
    whole[place % len(whole)] = byte
    frame = memoryview(bytes(whole[: end % (len(whole) + 1)] if byte % 2 else whole))
    try:
        known = read_by_hand(reader, frame)
    except DecodeError:
        with pytest.raises(DecodeError):
            read_by_kio(frame)
    else:
        # The key is looked at before.
        if known is not None and frame[:2] == b"\0\0":
            assert known == read_by_kio(frame)


@pytest.mark.parametrize("rest", [b"\0\0\0", b"\0\0\0\0", b"\x80\0\0\0", b"\x80\x80\0\0\0", b"\0", b""])
def test_the_end_of_a_request_is_not_taken_for_records_that_are_not_there(rest: bytes) -> None:
    reader, whole = OneBatchReader(), frame_of(9, 1, "c", [topic_of("t", (0, b"first"))])
    remember(reader, whole)
    beginning = bytes(whole)[: -len(b"first") - 4]
    assert bytes(whole) == beginning + b"\6first\0\0\0"
    assert reader.read(memoryview(beginning + rest)) is None


def test_what_is_remembered_is_bounded() -> None:
    reader = OneBatchReader()
    for number in range(HEADS_KEPT + 1):
        remember(reader, frame_of(9, 1, f"client-{number}", [topic_of("t", (0, b"b"))]))
    assert reader.read(frame_of(9, 1, "client-0", [topic_of("t", (0, b"b"))])) is None
    assert reader.read(frame_of(9, 1, f"client-{HEADS_KEPT}", [topic_of("t", (0, b"b"))])) is not None
    long_name = frame_of(9, 1, "c" * LONGEST_HEAD, [topic_of("t", (0, b"b"))])
    remember(reader, long_name)
    assert reader.read(long_name) is None
