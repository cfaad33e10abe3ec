"""What a client sends is what kio would send, in every version that is served, and it reads what a broker answers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skep.base.errors import DecodeError
from skep.wire import apis
from skep.wire.apis import SERVED, Api
from skep.wire.client_codec import common_version, decode_response, encode_request
from skep.wire.codec import encode_response, request_class
from tests.kio_entities import written

EPOCH = datetime.fromtimestamp(0, UTC)
EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in SERVED.values()
    for version in range(api.oldest, api.newest + 1)
]


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_request_is_what_kio_writes(api: Api, version: int) -> None:
    entity = request_class(api.key, version)
    header = {
        "request_api_key": api.key,
        "request_api_version": version,
        "correlation_id": 4711,
        "client_id": "tèst",
    }
    expected = written(entity.__header_schema__, header) + written(entity, {})
    assert encode_request(api, version, 4711, "tèst", {}) == expected


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_is_read_with_its_header(api: Api, version: int) -> None:
    correlation_id, response = decode_response(api, version, encode_response(api.key, version, 4711, {}))
    assert correlation_id == 4711
    assert type(response).__name__ == f"{api.name}Response"


def test_a_transaction_that_has_not_begun_has_no_start_time() -> None:
    for start_ms, read in ((-1, None), (0, EPOCH), (1_500, EPOCH + timedelta(milliseconds=1_500))):
        state = {"transactional_id": "till", "transaction_start_time": EPOCH + timedelta(milliseconds=start_ms)}
        frame = encode_response(apis.DESCRIBE_TRANSACTIONS.key, 0, 1, {"transaction_states": [state]})
        assert start_ms.to_bytes(8, "big", signed=True) in frame
        _, response = decode_response(apis.DESCRIBE_TRANSACTIONS, 0, frame)
        assert response.transaction_states[0].transaction_start_time == read
        assert response.transaction_states[0].transactional_id == "till"


@pytest.mark.parametrize("frame", [b"", b"\0\0", b"\0\0\0\1\0", b"\0\0\0\1\0\0\0\0\0\x7f\xff\xff\xff"])
def test_a_response_that_is_cut_short_is_a_decode_error(frame: bytes) -> None:
    with pytest.raises(DecodeError, match="Metadata v12"):
        decode_response(apis.METADATA, 12, frame)


@pytest.mark.parametrize(
    ("oldest", "newest", "version"),
    [(0, 6, 6), (0, 4, 4), (6, 9, 6), (7, 9, None), (0, -1, None)],
)
def test_the_newest_version_of_both_sides_is_chosen(oldest: int, newest: int, version: int | None) -> None:
    assert common_version(Api(10, "FindCoordinator", 0, 6, 3), oldest, newest) == version


def test_tagged_fields_of_later_times_are_passed_over() -> None:
    plain = encode_response(apis.METADATA.key, 12, 4711, {"cluster_id": "c"})
    assert plain[4] == plain[-1] == 0
    tags = b"\1\x63\3abc"
    tagged = plain[:4] + tags + plain[5:-1] + tags
    assert decode_response(apis.METADATA, 12, tagged) == decode_response(apis.METADATA, 12, plain)


@pytest.mark.parametrize("view", [bytes, memoryview, bytearray])
def test_a_length_that_cannot_be_is_refused_before_memory_is_taken_for_it(view: Any) -> None:
    # Header, throttle time, and two thousand million brokers.
    frame = view(bytes(4) + b"\0" + bytes(4) + b"\xff\xff\xff\xff\x07")
    with pytest.raises(DecodeError, match="Metadata v12"):
        decode_response(apis.METADATA, 12, frame)
