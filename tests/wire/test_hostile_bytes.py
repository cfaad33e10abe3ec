"""Any bytes are a request or a DecodeError, in time and memory that go with their number."""

import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from skep.base.errors import DecodeError
from skep.wire.apis import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    METADATA,
    PRODUCE,
    SERVED,
)
from skep.wire.codec import decode_request, request_class
from skep.wire.entities.request_bounds import MAX_ELEMENTS
from skep.wire.headers import read_request_header
from tests.fuzz.mutations import mutated
from tests.fuzz.requests import RequestMaker

all_versions = [(api, version) for api in SERVED.values() for version in range(api.oldest, api.newest + 1)]
every_api_and_version = pytest.mark.parametrize(
    ("api", "version"), all_versions, ids=[f"{api.name}-v{version}" for api, version in all_versions]
)

HUGE_COMPACT = b"\xff\xff\xff\xff\x7f"
HUGE_LEGACY = b"\x7f\xff\xff\xff"


def decode(api, version, body: bytes):
    """The request, or None when the bytes are refused; any other exception is the test's failure."""
    try:
        return decode_request(api.key, version, memoryview(body), 0)
    except DecodeError:
        return None


def body_of(frame: bytes) -> bytes:
    return frame[read_request_header(memoryview(frame), 100)[1] :]


@every_api_and_version
@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_random_bytes_are_a_request_or_a_decode_error(api, version, seed):
    """Half of them are bytes of the kind that lengths are made of."""
    source = random.Random(seed)
    size = source.randrange(200)
    length_like = bytes(source.choices((0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x0F), k=size))
    decode(api, version, source.choice((length_like, source.randbytes(size))))


@every_api_and_version
@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_request_is_read_as_kio_alone_reads_it(api, version, seed):
    maker = RequestMaker(random.Random(seed))
    request = maker.request(api, version)
    body = body_of(maker.frame(api, version, request))
    # By their text: a quota may be NaN, which equals nothing.
    read_by_kio = entity_reader(request_class(api.key, version))(body, 0)[0]
    assert repr(decode(api, version, body)) == repr(read_by_kio) == repr(request)


@every_api_and_version
@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_a_damaged_request_is_another_request_or_a_decode_error(api, version, seed):
    source = random.Random(seed)
    decode(api, version, mutated(source, body_of(RequestMaker(source).frame(api, version))))


@every_api_and_version
def test_a_request_that_is_cut_short_anywhere_is_refused(api, version):
    body = body_of(RequestMaker(random.Random(1)).frame(api, version))
    for length in range(len(body)):
        assert decode(api, version, body[:length]) is None


@every_api_and_version
def test_no_announced_length_costs_memory_or_time(api, version):
    """A huge number in every place: kio by itself would reserve 17 GB or 270 GB for an array, and abort."""
    body = body_of(RequestMaker(random.Random(3)).frame(api, version))
    decode(api, version, body)  # the version's classes are imported now
    huge = HUGE_COMPACT if api.is_flexible(version) else HUGE_LEGACY
    started = time.process_time()
    tracemalloc.start()
    for place in range(len(body) + 1):
        decode(api, version, body[:place] + huge + body[place:])
        decode(api, version, body[:place] + huge + body[place + len(huge) :] + bytes(100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert time.process_time() - started < 20


def test_more_elements_than_the_limit_are_refused_although_the_bytes_are_there():
    """Of 100 MiB that a client may send every second byte can be an object here."""
    topics = b"\1\0" * (MAX_ELEMENTS + 1)  # each an empty name and no tagged fields
    count = b"\xc2\x9a\x0c"
    assert int.from_bytes(bytes((0xC2 & 0x7F,))) | (0x1A << 7) | (0x0C << 14) == MAX_ELEMENTS + 2
    with pytest.raises(DecodeError, match="200001 elements"):
        decode_request(METADATA.key, 9, memoryview(count + topics + b"\1\0\0\0"), 0)


def test_elements_are_counted_over_nested_arrays():
    """Produce with 500 topics of 500 partitions each: 250,500 elements."""
    partition = struct.pack(">ii", 0, -1)
    topic = struct.pack(">h1si", 1, b"t", 500) + partition * 500
    body = struct.pack(">hhii", -1, 1, 1000, 500) + topic * 500
    with pytest.raises(DecodeError, match="elements"):
        decode_request(PRODUCE.key, 3, memoryview(body), 0)


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        (PRODUCE, 3, struct.pack(">hhii", -1, 1, 0, -1)),
        (PRODUCE, 9, struct.pack(">bhib", 0, 1, 0, 0) + b"\0"),
        (CREATE_TOPICS, 2, struct.pack(">i", -1) + b"\0\0\0\0\0"),
        (DELETE_TOPICS, 4, b"\0" + b"\0\0\0\0\0"),
        (METADATA, 1, struct.pack(">i", -2)),
    ],
)
def test_an_array_that_may_not_be_null_is_refused(api, version, body):
    with pytest.raises(DecodeError, match="null"):
        decode_request(api.key, version, memoryview(body), 0)


@pytest.mark.parametrize(
    ("version", "body"), [(1, struct.pack(">i", -1)), (9, b"\0\1\0\0\0"), (0, struct.pack(">i", 0))]
)
def test_an_array_that_may_be_null_is_not(version, body):
    assert not decode_request(METADATA.key, version, memoryview(body), 0).topics


@given(st.lists(st.tuples(st.integers(2, 2**28), st.binary(max_size=200)), max_size=4))
@example([(2**28, b"x" * 200)])
def test_tagged_fields_that_are_not_known_are_skipped_wherever_they_are(unknown):
    """KIP-482: a newer client may send them in a version that we know."""
    tags = varint(len(unknown)) + b"".join(varint(tag) + varint(len(value)) + value for tag, value in unknown)
    topic = b"\2t" + tags
    body = b"\3" + topic + topic + b"\1\0\0" + tags
    request = decode_request(METADATA.key, 9, memoryview(body), 0)
    assert [topic.name for topic in request.topics] == ["t", "t"]
    assert request.allow_auto_topic_creation


def test_an_unknown_tagged_field_within_a_known_one_is_skipped():
    replica_state = struct.pack(">iq", 7, 8) + b"\1\5\2ab"  # tag 5 with two bytes
    tags = b"\3" + b"\0\3\3id" + b"\1" + varint(len(replica_state)) + replica_state + b"\x09\1x"
    body = struct.pack(">iiibii", 0, 1, 1, 0, 0, -1) + b"\1\1\1" + tags
    request = decode_request(FETCH.key, 15, memoryview(body), 0)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 8)
    assert request.cluster_id == "id"


def test_a_known_tagged_field_that_is_not_as_long_as_it_says_is_refused():
    tags = b"\1" + b"\0\4\3idx"  # the string fills three of the four bytes
    body = struct.pack(">iiibii", 0, 1, 1, 0, 0, -1) + b"\1\1\1" + tags
    with pytest.raises(DecodeError, match="announces 4 bytes but has 3"):
        decode_request(FETCH.key, 15, memoryview(body), 0)


def test_bytes_behind_the_request_are_left_alone():
    assert decode_request(API_VERSIONS.key, 0, memoryview(b"\0\0\0"), 0) is not None


def test_a_nullable_struct_is_there_or_not():
    without = b"\2\2t\0" + struct.pack(">i", 100) + b"\xff" + b"\0"
    assert decode_request(DESCRIBE_TOPIC_PARTITIONS.key, 0, memoryview(without), 0).cursor is None
    given_one = b"\2\2t\0" + struct.pack(">i", 100) + b"\1" + b"\2t" + struct.pack(">i", 5) + b"\0" + b"\0"
    assert decode_request(DESCRIBE_TOPIC_PARTITIONS.key, 0, memoryview(given_one), 0).cursor.partition_index == 5


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])
