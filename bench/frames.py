"""Requests as bytes, built once before anything is timed, and the few answers that are looked into."""

import datetime
import time
from collections.abc import Mapping
from typing import Any

from kio.serial import entity_reader

from skep.records.builder import NewRecord, build_batch
from skep.wire import apis
from skep.wire.codec import request_class, response_class
from skep.wire.entities.encoders import entity_encoder
from skep.wire.primitives import INT32

PRODUCE_VERSION = 9
FETCH_VERSION = 12
API_VERSIONS_VERSION = 3
CLIENT_ID = b"bench"

_NO_WAIT = datetime.timedelta(0)
_TIMEOUT = datetime.timedelta(seconds=30)


def request(api: apis.Api, version: int, body: Mapping[str, Any]) -> bytes:
    """A whole frame. The correlation id is always 1: answers come in order and the clients here count them."""
    encode = entity_encoder(request_class(api.key, version))
    header = api.key.to_bytes(2) + version.to_bytes(2) + INT32.pack(1) + len(CLIENT_ID).to_bytes(2) + CLIENT_ID
    tags = b"\0" if api.is_flexible(version) else b""
    frame = header + tags + encode(body)
    return INT32.pack(len(frame)) + frame


def one_record_batch(value_bytes: int) -> bytes:
    return build_batch([NewRecord(None, bytes(value_bytes), time.time_ns() // 1_000_000)])


def produce(topic: str, partition: int, batch: bytes, transactional_id: str | None = None) -> bytes:
    """acks=all."""
    data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
    body = {"transactional_id": transactional_id, "acks": -1, "timeout": _TIMEOUT, "topic_data": [data]}
    return request(apis.PRODUCE, PRODUCE_VERSION, body)


def fetch(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    wanted = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
        "current_leader_epoch": -1,
    }
    body = {
        "replica_id": -1,
        "max_wait": _NO_WAIT,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    return request(apis.FETCH, FETCH_VERSION, body)


def api_versions() -> bytes:
    body = {"client_software_name": "bench", "client_software_version": "0"}
    return request(apis.API_VERSIONS, API_VERSIONS_VERSION, body)


def produced_offset(answer: bytes) -> int:
    """The base offset that an answer to ``produce`` gives, length included; RuntimeError when it is a refusal."""
    (topic,) = body(apis.PRODUCE, PRODUCE_VERSION, answer).responses
    (partition,) = topic.partition_responses
    if partition.error_code.value:
        raise RuntimeError(f"produce was refused: {partition.error_code.name}")
    return int(partition.base_offset)


def fetched_records(answer: bytes) -> bytes:
    (topic,) = body(apis.FETCH, FETCH_VERSION, answer).responses
    (partition,) = topic.partitions
    if partition.error_code.value:
        raise RuntimeError(f"fetch was refused: {partition.error_code.name}")
    return bytes(partition.records or b"")


def body(api: apis.Api, version: int, answer: bytes) -> Any:
    length_correlation_and_tags = 9
    body, _size = entity_reader(response_class(api.key, version))(memoryview(answer), length_correlation_and_tags)
    return body
