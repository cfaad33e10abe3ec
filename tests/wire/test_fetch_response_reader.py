"""The hand-written reader of Fetch responses reads what kio wrote, without copying records; damage is refused."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import DecodeError, ErrorCode
from skep.wire.apis import FETCH
from skep.wire.codec import response_class
from skep.wire.fetch.fetch_response import HAS_LOG_START_OFFSET, HAS_SESSION, HAS_TOPIC_ID
from skep.wire.fetch.fetch_response_reader import FetchResponse, read_fetch_response
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.wire.kio_bodies import integers

VERSIONS = range(FETCH.oldest, FETCH.newest + 1)
NO_ID = UUID(int=0)
CODES = st.sampled_from(ErrorCode)
NATURAL = st.integers(0, 1 << 30)

partitions = st.fixed_dictionaries(
    {
        "partition_index": integers(32),
        "error_code": CODES,
        "high_watermark": integers(64),
        "last_stable_offset": integers(64),
        "log_start_offset": integers(64),
        "aborted_transactions": st.none() | st.lists(st.just({"producer_id": 5, "first_offset": 6}), max_size=2),
        "preferred_read_replica": integers(32),
        "records": st.none() | st.binary(max_size=300),
    },
    optional={
        "diverging_epoch": st.fixed_dictionaries({"epoch": NATURAL, "end_offset": NATURAL}),
        "current_leader": st.fixed_dictionaries({"leader_id": NATURAL, "leader_epoch": NATURAL}),
        "snapshot_id": st.fixed_dictionaries({"epoch": NATURAL, "end_offset": NATURAL}),
    },
)
topics = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=10),
        "topic_id": st.uuids().filter(lambda topic_id: topic_id.int != 0),
        "partitions": st.lists(partitions, max_size=4),
    }
)
endpoints = st.lists(st.just({"node_id": 3, "host": "b3", "port": 9092, "rack": None}), max_size=1)
responses = st.fixed_dictionaries(
    {"error_code": CODES, "session_id": integers(32), "responses": st.lists(topics, max_size=3)},
    optional={"node_endpoints": endpoints},
)


def frame_of(version: int, body: dict[str, Any]) -> bytes:
    return response_header(FETCH.key, version, 7) + written(response_class(FETCH.key, version), body)


def read(frame: bytes, version: int = 17) -> FetchResponse:
    return read_fetch_response(version, memoryview(frame))


def pair(said: dict[str, int] | None, *names: str) -> tuple[int, ...] | None:
    return None if said is None else tuple(said[name] for name in names)


@pytest.mark.parametrize("version", VERSIONS)
@given(body=responses)
def test_all_that_kio_wrote_is_read(version: int, body: dict[str, Any]) -> None:
    response = read(frame_of(version, body), version)
    has_session = version >= HAS_SESSION
    assert response[:3] == ((0, body["error_code"], body["session_id"]) if has_session else (0, ErrorCode.none, 0))
    found = [(*piece[:6], bytes(piece.records), *piece[7:9], list(piece.aborted)) for piece in response.partitions]
    has_tags = FETCH.is_flexible(version)
    assert found == [
        (
            topic["topic_id"] if version >= HAS_TOPIC_ID else NO_ID,
            piece["partition_index"],
            piece["error_code"],
            piece["high_watermark"],
            piece["last_stable_offset"],
            piece["log_start_offset"] if version >= HAS_LOG_START_OFFSET else -1,
            piece["records"] or b"",
            pair(piece.get("diverging_epoch"), "epoch", "end_offset") if has_tags else None,
            pair(piece.get("current_leader"), "leader_id", "leader_epoch") if has_tags else None,
            [(5, 6)] * len(piece["aborted_transactions"] or ()),
        )
        for topic in body["responses"]
        for piece in topic["partitions"]
    ]


PIECE = {
    "partition_index": 3,
    "high_watermark": 90,
    "records": b"r" * 300,
    "aborted_transactions": [{"producer_id": 7, "first_offset": 3}],
    "diverging_epoch": {"epoch": 4, "end_offset": 50},
    "current_leader": {"leader_id": 2, "leader_epoch": 5},
}
BODY = {"session_id": 11, "responses": [{"topic": "orders", "topic_id": UUID(int=9), "partitions": [PIECE, PIECE]}]}


def test_records_are_not_copied() -> None:
    frame = bytearray(frame_of(17, BODY))
    assert all(piece.records.obj is frame for piece in read_fetch_response(17, memoryview(frame)).partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_is_cut_off_anywhere_is_refused(version: int) -> None:
    frame = frame_of(version, BODY)
    for size in range(len(frame)):
        with pytest.raises(DecodeError):
            read(frame[:size], version)


@given(st.data())
def test_damaged_bytes_give_a_response_or_a_decode_error(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from((11, 17)))
    frame = bytearray(frame_of(version, BODY))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
    try:
        response = read_fetch_response(version, memoryview(frame))
    except DecodeError:
        return
    assert sum(len(piece.records) for piece in response.partitions) <= len(frame)


@given(st.binary(max_size=200), st.sampled_from((4, 11, 12, 17)))
def test_any_bytes_give_a_response_or_a_decode_error(content: bytes, version: int) -> None:
    try:
        read(content, version)
    except DecodeError:
        pass


def test_an_overlong_null_does_not_lead_backwards() -> None:
    # Records whose length is written as 80 00, a zero in two bytes.
    plain = frame_of(17, {"responses": [{"topic_id": UUID(int=9), "partitions": [{"partition_index": 3}]}]})
    assert plain.endswith(b"\xff\xff\xff\xff" + b"\0" * 4)
    odd = plain[:-4] + b"\x80\0" + b"\0" * 3
    [piece] = read(odd).partitions
    assert piece.records == b""


def test_a_code_of_later_times_is_an_unknown_error() -> None:
    frame = bytearray(frame_of(17, {}))
    frame[9:11] = (9999).to_bytes(2, "big")
    assert read(bytes(frame)).error_code is ErrorCode.unknown_server_error


def test_defaults_that_are_said_are_nothing() -> None:
    plain = frame_of(17, {"responses": [{"topic_id": UUID(int=9), "partitions": [{"partition_index": 3}]}]})
    tags = b"\2" + b"\0\x0d" + b"\xff" * 12 + b"\0" + b"\1\x09" + b"\xff" * 8 + b"\0"
    [piece] = read(plain[:-3] + tags + b"\0\0").partitions
    assert (piece.diverging_epoch, piece.current_leader) == (None, None)
