"""A request that is read in slices is the one that kio reads at once, and hostile bytes fare no better."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skep.base.errors import DecodeError
from skep.wire import apis
from skep.wire.apis import SERVED, Api
from skep.wire.client_codec import encode_request, request_header
from skep.wire.codec import SHORT_ELEMENTS, decode_in_slices, decode_request, is_short, request_class
from skep.wire.entities.large_request_reader import BYTES_AT_ONCE
from skep.wire.frame_reader import SCRATCH_SIZE
from skep.wire.headers import read_request_header
from skep.wire.primitives import MAX_TAGGED_FIELDS, uvarint
from tests.wire.kio_bodies import bodies

NEWEST = [pytest.param(api, api.newest, id=api.name) for api in SERVED.values()]
OLDEST = [pytest.param(api, api.oldest, id=f"{api.name}-oldest") for api in SERVED.values()]
LIMIT = 200_000


def finished(work: Generator[None, None, Any]) -> tuple[Any, int]:
    """The result, and how often the work could have been interrupted."""
    pauses = 0
    try:
        while True:
            next(work)
            pauses += 1
    except StopIteration as end:
        return end.value, pauses


def body_of(api: Api, version: int, frame: bytes) -> tuple[memoryview, int]:
    view = memoryview(frame)
    return view, read_request_header(view, 4096)[1]


@pytest.mark.parametrize(("api", "version"), NEWEST + OLDEST)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_both_ways_of_reading_give_the_same(api: Api, version: int, data: st.DataObject):
    frame = encode_request(api, version, 1, "c", data.draw(bodies(request_class(api.key, version))))
    view, position = body_of(api, version, frame)
    try:
        expected = decode_request(api.key, version, view, position)
    except DecodeError:
        with pytest.raises(DecodeError):
            finished(decode_in_slices(api.key, version, view, position, LIMIT))
        return
    assert finished(decode_in_slices(api.key, version, view, position, LIMIT))[0] == expected


@pytest.mark.parametrize(("api", "version"), NEWEST)
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_frame_that_is_cut_off_is_refused(api: Api, version: int, data: st.DataObject):
    frame = encode_request(api, version, 1, "c", data.draw(bodies(request_class(api.key, version))))
    _, position = body_of(api, version, frame)
    torn = memoryview(frame)[: data.draw(st.integers(position, len(frame) - 1))]
    with pytest.raises(DecodeError):
        finished(decode_in_slices(api.key, version, torn, position, LIMIT))


@pytest.mark.parametrize(
    "body",
    [
        {"topics": [{"name": f"topic-{i}"} for i in range(10_000)]},
        {"topics": [{"name": "t" * 100} for i in range(1_000)]},
    ],
)
def test_many_elements_are_read_with_pauses(body: dict[str, Any]):
    view, position = body_of(apis.METADATA, 12, encode_request(apis.METADATA, 12, 1, "c", body))
    request, pauses = finished(decode_in_slices(apis.METADATA.key, 12, view, position, LIMIT))
    assert request == decode_request(apis.METADATA.key, 12, view, position)
    assert pauses >= len(body["topics"]) // 64


def test_many_elements_of_one_element_are_read_with_pauses():
    body = {"topics": [{"topic": "t", "partitions": [{"partition": i} for i in range(10_000)]}]}
    view, position = body_of(apis.FETCH, 12, encode_request(apis.FETCH, 12, 1, "c", body))
    assert finished(decode_in_slices(apis.FETCH.key, 12, view, position, LIMIT))[1] >= 10_000 // 64


@pytest.mark.parametrize("count", [SHORT_ELEMENTS, SHORT_ELEMENTS + 1])
def test_the_number_of_elements_says_whether_a_request_is_short(count: int):
    body = {"topics": [{"name": "t" * 200} for _ in range(count)]}
    view, position = body_of(apis.METADATA, 12, encode_request(apis.METADATA, 12, 1, "c", body))
    assert len(view) > SCRATCH_SIZE
    assert is_short(apis.METADATA.key, 12, view, position) is (count == SHORT_ELEMENTS)


def offset_fetch_of_null_topics(groups: int) -> bytes:
    group = b"\x02g" + b"\x02m" + b"\0\0\0\0" + b"\0" + b"\0"
    return request_header(apis.OFFSET_FETCH, 9, 1, "c") + uvarint(groups + 1) + group * groups + b"\0\0"


def test_null_arrays_do_not_raise_the_limit():
    view, position = body_of(apis.OFFSET_FETCH, 9, offset_fetch_of_null_topics(11))
    with pytest.raises(DecodeError, match="elements exceeds"):
        decode_request(apis.OFFSET_FETCH.key, 9, view, position, 10)
    with pytest.raises(DecodeError, match="elements exceeds"):
        finished(decode_in_slices(apis.OFFSET_FETCH.key, 9, view, position, 10))


def test_null_arrays_give_nothing_back_to_arrays_behind_them():
    """Two topics, of each the assignments: had the null array of the first given one back, the second would fit."""
    null, two = {"group_id": "a", "topics": None}, {"group_id": "b", "topics": [{"name": "t"}, {"name": "u"}]}
    frame = encode_request(apis.OFFSET_FETCH, 9, 1, "c", {"groups": [null, two]})
    view, position = body_of(apis.OFFSET_FETCH, 9, frame)
    with pytest.raises(DecodeError, match="elements exceeds"):
        decode_request(apis.OFFSET_FETCH.key, 9, view, position, 3)
    decode_request(apis.OFFSET_FETCH.key, 9, view, position, 4)


def tagged_fields(count: int) -> bytes:
    return uvarint(count) + b"\xff\x01\0" * count


def test_too_many_tagged_fields_are_refused_in_header_and_body():
    header = request_header(apis.API_VERSIONS, 3, 1, "c")
    body = b"\x02a\x02b"
    for count, is_refused in ((MAX_TAGGED_FIELDS, False), (MAX_TAGGED_FIELDS + 1, True)):
        in_header = memoryview(header[:-1] + tagged_fields(count) + body + b"\0")
        in_body = memoryview(header + body + tagged_fields(count))
        if is_refused:
            with pytest.raises(DecodeError, match="tagged fields"):
                read_request_header(in_header, 4096)
            with pytest.raises(DecodeError, match="tagged fields"):
                decode_request(apis.API_VERSIONS.key, 3, in_body, len(header))
        else:
            read_request_header(in_header, 4096)
            decode_request(apis.API_VERSIONS.key, 3, in_body, len(header))


def test_large_elements_are_read_a_few_at_a_time():
    batches = [{"index": index, "records": bytes(BYTES_AT_ONCE)} for index in range(20)]
    body = {"acks": 1, "topic_data": [{"name": "t", "partition_data": batches}]}
    frame = encode_request(apis.PRODUCE, 9, 1, "c", body)
    view, position = body_of(apis.PRODUCE, 9, frame)
    request, pauses = finished(decode_in_slices(apis.PRODUCE.key, 9, view, position, LIMIT))
    assert len(request.topic_data[0].partition_data) == 20
    assert pauses >= 20
