"""Request headers of every kind, torn and whole; response headers as clients expect them."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer

from skep.base.errors import DecodeError
from skep.wire.apis import API_VERSIONS, FETCH, METADATA, PRODUCE, SERVED
from skep.wire.headers import RequestHeader, read_request_header, response_header

MAX_CLIENT_ID = 100

all_versions = [(api, version) for api in SERVED.values() for version in range(api.oldest, api.newest + 1)]


def kio_header(key: int, version: int, correlation_id: int, client_id: str | None, *, tagged: bool) -> bytes:
    header = (HeaderV2 if tagged else HeaderV1)(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    return buffer.getvalue()


@pytest.mark.parametrize(("api", "version"), all_versions, ids=lambda value: getattr(value, "name", value))
def test_the_header_that_kio_writes_is_read_and_the_body_found(api, version):
    data = kio_header(api.key, version, -7, "client-ä", tagged=api.is_flexible(version))
    header, position = read_request_header(memoryview(data + b"body"), MAX_CLIENT_ID)
    assert header == RequestHeader(api.key, version, -7, "client-ä")
    assert position == len(data)


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(max_size=20),
    st.lists(st.tuples(st.integers(0, 2**31), st.binary(max_size=200)), max_size=5),
)
def test_tagged_fields_that_are_not_known_are_skipped(correlation_id, client_id, fields):
    encoded_id = None if client_id is None else client_id.encode()
    data = struct.pack(">hhih", FETCH.key, 12, correlation_id, -1 if encoded_id is None else len(encoded_id))
    data += encoded_id or b""
    data += varint(len(fields)) + b"".join(varint(tag) + varint(len(value)) + value for tag, value in fields)
    header, position = read_request_header(memoryview(data), MAX_CLIENT_ID)
    assert (header.correlation_id, header.client_id, position) == (correlation_id, client_id, len(data))


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@given(st.binary(max_size=80))
def test_random_bytes_are_a_header_or_a_decode_error(data):
    try:
        header, position = read_request_header(memoryview(data), MAX_CLIENT_ID)
    except DecodeError:
        return
    assert position <= len(data)
    assert struct.pack(">hhi", *header[:3]) == data[:8]


@pytest.mark.parametrize("length", range(len(kio_header(FETCH.key, 12, 1, "client", tagged=True))))
def test_a_header_that_is_cut_short_anywhere_is_refused(length):
    data = kio_header(FETCH.key, 12, 1, "client", tagged=True)
    with pytest.raises(DecodeError):
        read_request_header(memoryview(data[:length]), MAX_CLIENT_ID)


def test_a_client_id_longer_than_the_limit_is_refused():
    data = kio_header(METADATA.key, 1, 1, "x" * MAX_CLIENT_ID, tagged=False)
    assert read_request_header(memoryview(data), MAX_CLIENT_ID)[0].client_id == "x" * MAX_CLIENT_ID
    with pytest.raises(DecodeError, match="101 bytes"):
        read_request_header(memoryview(kio_header(METADATA.key, 1, 1, "x" * 101, tagged=False)), MAX_CLIENT_ID)


def test_a_client_id_that_is_not_utf_8_is_refused():
    with pytest.raises(DecodeError, match="UTF-8"):
        read_request_header(memoryview(struct.pack(">hhih2s", 3, 1, 1, 2, b"\xff\xfe")), MAX_CLIENT_ID)


def test_more_tagged_fields_than_there_are_bytes_are_refused_at_once():
    data = struct.pack(">hhih", FETCH.key, 12, 1, -1) + b"\xff\xff\xff\xff\x7f" + b"\0\0" * 10
    with pytest.raises(DecodeError):
        read_request_header(memoryview(data), MAX_CLIENT_ID)


@pytest.mark.parametrize("version", [-1, API_VERSIONS.newest + 1, 99, 32767])
def test_of_a_version_that_is_not_served_the_header_is_still_read(version):
    """An ApiVersions request that is too new has to be answered, under its correlation id."""
    header, _ = read_request_header(memoryview(struct.pack(">hhih", API_VERSIONS.key, version, 5, -1)), MAX_CLIENT_ID)
    assert header == RequestHeader(API_VERSIONS.key, version, 5, None)


def test_a_flexible_response_has_a_byte_of_tagged_fields_except_that_of_api_versions():
    assert response_header(PRODUCE.key, 8, 3) == b"\0\0\0\3"
    assert response_header(PRODUCE.key, 9, 3) == b"\0\0\0\3\0"
    assert response_header(API_VERSIONS.key, 4, 3) == b"\0\0\0\3"
