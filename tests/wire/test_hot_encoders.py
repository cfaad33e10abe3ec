"""The hand-written Produce and Fetch responses say, byte for byte, what kio says, for every version served."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode
from skep.wire.apis import FETCH, PRODUCE, Api
from skep.wire.codec import response_class
from skep.wire.fetch.fetch_response import FetchedPartition, FetchedTopic, encode_fetch_response
from skep.wire.headers import response_header
from skep.wire.leader_hints import NodeEndpoint
from skep.wire.produce.produce_response import ProducedPartition, encode_produce_response
from tests.kio_entities import written

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=200).filter(lambda text: len(text.encode()) < 2**15)
throttle_times = st.just(0) | st.integers(0, 2**31 - 1)
codes = st.sampled_from([code.value for code in ErrorCode])
# Kio reads a timestamp as a date: -1 is none, and a whole second is what its type can hold.
append_times = st.one_of(st.just(-1), st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1000))

# Kio leaves out a tagged field that has its default, which is (-1, -1).
natural = st.integers(0, 2**31 - 1)
hints = st.none() | st.tuples(natural, natural)
endpoints = st.lists(st.builds(NodeEndpoint, int32, names, int32, st.none() | names), max_size=3)

bad_records = st.lists(int32, min_size=1, max_size=200)
produced = st.builds(
    ProducedPartition, int32, codes, int64, append_times, int64, st.none() | names, st.none() | bad_records, hints
)
# One partition has a way of its own through both encoders.
produced_topics = st.lists(st.tuples(names, st.lists(produced, max_size=4)), max_size=3) | st.lists(
    st.tuples(names, st.lists(produced, min_size=1, max_size=1)), min_size=1, max_size=1
)

aborted = st.none() | st.lists(st.tuples(int64, int64), max_size=3)
fetched = st.builds(
    FetchedPartition, int32, codes, int64, int64, int64, st.binary(max_size=300), aborted, int32, hints, hints
)
topic_ids = st.uuids().filter(lambda topic_id: topic_id.int != 0)
fetched_topics = st.lists(
    st.builds(FetchedTopic, names, topic_ids, st.lists(fetched, max_size=4)), max_size=3
) | st.lists(
    st.builds(FetchedTopic, names, topic_ids, st.lists(fetched, min_size=1, max_size=1)), min_size=1, max_size=1
)


def leader_of(hint: tuple[int, int] | None) -> dict[str, Any]:
    return {} if hint is None else {"current_leader": {"leader_id": hint[0], "leader_epoch": hint[1]}}


def diverging_epoch_of(hint: tuple[int, int] | None) -> dict[str, Any]:
    return {} if hint is None else {"diverging_epoch": {"epoch": hint[0], "end_offset": hint[1]}}


def by_kio(api: Api, version: int, correlation_id: int, body: dict[str, Any]) -> bytes:
    return response_header(api.key, version, correlation_id) + written(response_class(api.key, version), body)


@pytest.mark.parametrize("version", range(PRODUCE.oldest, PRODUCE.newest + 1))
@given(correlation_id=int32, topics=produced_topics, nodes=st.just([]) | endpoints, throttle_ms=throttle_times)
def test_a_produce_response_equals_kios(version, correlation_id, topics, nodes, throttle_ms):
    body = {
        "throttle_time": timedelta(milliseconds=throttle_ms),
        "node_endpoints": [node._asdict() for node in nodes],
        "responses": [
            {
                "name": name,
                "partition_responses": [
                    {
                        "index": p.partition,
                        "error_code": ErrorCode(p.error_code),
                        "base_offset": p.base_offset,
                        "log_append_time": _date(p.log_append_time_ms),
                        "log_start_offset": p.log_start_offset,
                        "error_message": p.error_message,
                        "record_errors": [{"batch_index": index} for index in p.bad_records or ()],
                        **leader_of(p.current_leader),
                    }
                    for p in partitions
                ],
            }
            for name, partitions in topics
        ],
    }
    expected = by_kio(PRODUCE, version, correlation_id, body)
    encoded = encode_produce_response(version, correlation_id, topics, node_endpoints=nodes, throttle_ms=throttle_ms)
    assert encoded == expected


@pytest.mark.parametrize("version", range(FETCH.oldest, FETCH.newest + 1))
@given(
    correlation_id=int32,
    topics=fetched_topics,
    session_id=int32,
    code=codes,
    nodes=st.just([]) | endpoints,
    throttle_ms=throttle_times,
)
def test_a_fetch_response_equals_kios(version, correlation_id, topics, session_id, code, nodes, throttle_ms):
    body = {
        "throttle_time": timedelta(milliseconds=throttle_ms),
        "node_endpoints": [node._asdict() for node in nodes],
        "error_code": ErrorCode(code),
        "session_id": session_id,
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": p.partition,
                        "error_code": ErrorCode(p.error_code),
                        "high_watermark": p.high_watermark,
                        "last_stable_offset": p.last_stable_offset,
                        "log_start_offset": p.log_start_offset,
                        "aborted_transactions": p.aborted
                        if p.aborted is None
                        else [{"producer_id": producer, "first_offset": first} for producer, first in p.aborted],
                        "preferred_read_replica": p.preferred_read_replica,
                        "records": p.records,
                        **diverging_epoch_of(p.diverging_epoch),
                        **leader_of(p.current_leader),
                    }
                    for p in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    expected = by_kio(FETCH, version, correlation_id, body)
    parts = encode_fetch_response(
        version,
        correlation_id,
        topics,
        session_id=session_id,
        error_code=code,
        node_endpoints=nodes,
        throttle_ms=throttle_ms,
    )
    assert b"".join(parts) == expected


def test_records_that_are_not_bytes_are_passed_on_as_they_are():
    class Region:
        def __len__(self) -> int:
            return 5

    region = Region()
    topic = FetchedTopic("t", UUID(int=1), [FetchedPartition(0, 0, records=region)])
    parts = encode_fetch_response(12, 1, [topic])
    assert [type(part) for part in parts] == [bytes, Region, bytes]
    assert parts[1] is region
    same_length = FetchedTopic("t", UUID(int=1), [FetchedPartition(0, 0, records=b"12345")])
    assert b"".join([parts[0], b"12345", parts[2]]) == b"".join(encode_fetch_response(12, 1, [same_length]))


def _date(milliseconds: int):
    import datetime

    if milliseconds == -1:
        return None
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC)
