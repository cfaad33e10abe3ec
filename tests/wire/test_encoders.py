"""The generated encoders say, byte for byte, what kio says, and refuse what cannot be said.

Every class is tried, of every API and version served: responses as a broker encodes them, header included, and requests
as a client does.
"""

import datetime
import struct
import traceback
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from skep.base.errors import ErrorCode
from skep.wire import apis
from skep.wire.apis import SERVED, Api
from skep.wire.client_codec import encode_request
from skep.wire.codec import encode_in_slices, encode_response, request_class, response_class
from skep.wire.entities.encoder_parts import PIECE_ELEMENTS
from skep.wire.lazy_array import LazyArray
from tests.kio_entities import written
from tests.wire.kio_bodies import bodies

EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in SERVED.values()
    for version in range(api.oldest, api.newest + 1)
]

few_examples = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""Few, because there are hundreds of classes and each is a mixture of the same kinds of field."""


def by_kio(entity: Any, header: dict[str, Any], body: dict[str, Any]) -> bytes:
    return written(entity.__header_schema__, header) + written(entity, body)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_of_which_nothing_is_said_is_all_defaults(api: Api, version: int):
    entity = response_class(api.key, version)
    assert encode_response(api.key, version, 7, {}) == by_kio(entity, {"correlation_id": 7}, {})


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
@few_examples
@given(data=st.data())
def test_a_response_equals_kios(api: Api, version: int, data: st.DataObject):
    entity = response_class(api.key, version)
    body = data.draw(bodies(entity))
    assert encode_response(api.key, version, 7, body) == by_kio(entity, {"correlation_id": 7}, body)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
@few_examples
@given(data=st.data())
def test_a_request_equals_kios(api: Api, version: int, data: st.DataObject):
    entity = request_class(api.key, version)
    body = data.draw(bodies(entity))
    header = {"request_api_key": api.key, "request_api_version": version, "correlation_id": 7, "client_id": "é"}
    assert encode_request(api, version, 7, "é", body) == by_kio(entity, header, body)


def offset_commit(version: int = 9, **partition: Any) -> bytes:
    body = {"topics": [{"name": "orders", "partitions": [partition]}]}
    return encode_response(apis.OFFSET_COMMIT.key, version, 7, body)


def test_arrays_may_be_anything_that_gives_its_elements_once():
    partitions = [{"partition_index": index, "replica_nodes": [1, 2]} for index in range(3)]
    plain = encode_response(apis.METADATA.key, 12, 7, {"topics": [{"name": "t", "partitions": partitions}]})
    once = iter([{**partition, "replica_nodes": (node for node in (1, 2))} for partition in partitions])
    topics = MappingProxyType({"name": "t", "partitions": once})
    assert encode_response(apis.METADATA.key, 12, 7, {"topics": {0: topics}.values()}) == plain


def test_elements_that_are_made_when_they_are_encoded_are_the_same_and_made_a_piece_at_a_time():
    made = []

    def element(number: int) -> dict[str, Any]:
        made.append(number)
        return {"group_id": f"g{number}", "error_code": ErrorCode.invalid_request}

    count = 3 * PIECE_ELEMENTS + 1
    expected = encode_response(apis.DELETE_GROUPS.key, 2, 1, {"results": [element(n) for n in range(count)]})
    made.clear()
    work = encode_in_slices(apis.DELETE_GROUPS.key, 2, 1, {"results": LazyArray(range(count), element)}, 1 << 20)
    seen = []
    try:
        while True:
            next(work)
            seen.append(len(made))
    except StopIteration as end:
        assert b"".join(end.value) == expected
    assert seen[:4] == [PIECE_ELEMENTS, 2 * PIECE_ELEMENTS, 3 * PIECE_ELEMENTS, count]
    assert made == list(range(count))


def test_a_hundred_thousand_elements_are_read_back():
    partitions = [{"partition_index": index, "replica_nodes": range(20)} for index in range(100_000)]
    encoded = encode_response(apis.METADATA.key, 12, 7, {"topics": [{"name": "t", "partitions": partitions}]})
    response, size = entity_reader(response_class(apis.METADATA.key, 12))(encoded, 5)
    assert size == len(encoded) - 5
    assert [partition.partition_index for partition in response.topics[0].partitions] == list(range(100_000))
    assert response.topics[0].partitions[-1].replica_nodes == tuple(range(20))


def test_a_tagged_field_is_written_only_when_it_differs_from_its_default():
    unset = encode_response(apis.API_VERSIONS.key, 3, 7, {})
    default = {"finalized_features_epoch": -1, "supported_features": [], "zk_migration_ready": False}
    assert encode_response(apis.API_VERSIONS.key, 3, 7, default) == unset
    set_ = encode_response(apis.API_VERSIONS.key, 3, 7, {**default, "finalized_features_epoch": 5})
    assert set_ == unset[:-1] + b"\x01" + b"\x01\x08" + (5).to_bytes(8)


def test_a_structure_that_is_null_is_one_byte():
    # KIP-893.
    null = encode_response(apis.DESCRIBE_TOPIC_PARTITIONS.key, 0, 7, {"next_cursor": None})
    there = encode_response(apis.DESCRIBE_TOPIC_PARTITIONS.key, 0, 7, {"next_cursor": {"topic_name": "t"}})
    assert null.endswith(b"\x01" + b"\xff" + b"\0")
    assert there == null[:-2] + b"\x01" + b"\x02t" + bytes(4) + b"\0" + b"\0"


@pytest.mark.parametrize(
    ("version", "partition", "error"),
    [
        (9, {"partition_index": 2**31}, struct.error),
        (9, {"partition_index": "0"}, struct.error),
        (9, {"partition_index": None}, struct.error),
        (9, {"error_code": 2**15}, struct.error),
        (2, {"error_code": None}, struct.error),
    ],
)
def test_a_number_that_does_not_fit_is_refused(version: int, partition: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        offset_commit(version, **partition)


@pytest.mark.parametrize(
    ("version", "body", "error"),
    [
        (8, {"topics": [{"name": None}]}, AttributeError),
        (8, {"topics": [{"name": b"orders"}]}, AttributeError),
        (7, {"topics": [{"name": "x" * 2**15}]}, struct.error),
        (8, {"topics": None}, TypeError),
        (8, {"topics": {"name": "orders"}}, TypeError),
        (8, {"topics": "orders"}, TypeError),
        (8, {"topics": ["orders"]}, TypeError),
        (8, {"topics": [("orders", ())]}, TypeError),
        (8, {"throttle_time": 5}, AttributeError),
        (8, [], TypeError),
    ],
)
def test_what_is_not_of_the_type_is_refused(version: int, body: Any, error: type[Exception]):
    with pytest.raises(error):
        encode_response(apis.OFFSET_COMMIT.key, version, 7, body)


def test_the_traceback_of_a_refusal_names_response_version_and_field():
    with pytest.raises(struct.error) as refused:
        offset_commit(partition_index=2**31, error_code=ErrorCode.none)
    shown = "".join(traceback.format_exception(refused.value))
    assert "OffsetCommitResponse v9" in shown
    assert "['partition_index']" in shown


def test_durations_are_milliseconds_rounded_as_kio_rounds():
    body = {"throttle_time": datetime.timedelta(microseconds=2500)}
    entity = response_class(apis.OFFSET_COMMIT.key, 9)
    assert encode_response(apis.OFFSET_COMMIT.key, 9, 7, body) == by_kio(entity, {"correlation_id": 7}, body)
