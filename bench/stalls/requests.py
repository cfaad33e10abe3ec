"""What the bytes of requests alone can do, whatever they ask for."""

from bench.stalls.stall import CLIENT_ID, Stall, asking, framed
from skep.wire import apis
from skep.wire.client_codec import request_header
from skep.wire.primitives import uvarint

TAGGED_FIELDS = 2_000_000
NULL_ARRAYS = 3_200_000


def _tagged_fields() -> bytes:
    """Fields that nobody knows, of no bytes each."""
    return uvarint(TAGGED_FIELDS) + b"\xff\x01\0" * TAGGED_FIELDS


def _tagged_in_body() -> bytes:
    header = request_header(apis.API_VERSIONS, 3, 1, CLIENT_ID)
    return framed(header + b"\x02a\x02b" + _tagged_fields())


def _tagged_in_header() -> bytes:
    header = request_header(apis.API_VERSIONS, 3, 1, CLIENT_ID)
    return framed(header[:-1] + _tagged_fields() + b"\x02a\x02b\0")


def _null_arrays() -> bytes:
    """OffsetFetch with as many groups as there are bytes; of each the array of topics is null."""
    header = request_header(apis.OFFSET_FETCH, 9, 1, CLIENT_ID)
    group = b"\x02g" + b"\x02m" + b"\0\0\0\0" + b"\0" + b"\0"
    return framed(header + uvarint(NULL_ARRAYS // 16 + 1) + group * (NULL_ARRAYS // 16) + b"\0\0")


STALLS = (
    Stall("tagged-fields-body", "2,000,000 unknown tagged fields in a body", asking(_tagged_in_body())),
    Stall("tagged-fields-header", "2,000,000 unknown tagged fields in a request header", asking(_tagged_in_header())),
    Stall("null-arrays", "200,000 groups, each with a null array of topics", asking(_null_arrays())),
)
