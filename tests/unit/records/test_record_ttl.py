"""The times to live of records: which values count, and batches that cannot be decoded."""

import pytest

from skep.base.errors import KafkaError
from skep.records.batch import HEADER_SIZE
from skep.records.builder import build_batch
from skep.records.compression import Codec
from skep.records.record_ttl import expiry_times

TIME_MS = 1_700_000_000_000
MEBIBYTE = 1 << 20


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_expires_when_its_header_says(codec):
    values = [b"5000", b"0", b"", b"-1", b"1.5", b"soon", None, b"9" * 16, b"\xb2", b"9" * 15]
    records = [(b"k", b"v", TIME_MS + number, (("ttl-ms", value),)) for number, value in enumerate(values)]
    records.append((b"k", b"ttl-ms", TIME_MS, (("other", b"1"),)))
    records.append((b"k", b"v", TIME_MS, (("ttl-ms", b"7"), ("ttl-ms", b"8"))))
    batch = build_batch(records, codec=codec)
    expected = [(0, TIME_MS + 5000), (1, TIME_MS + 1), (9, TIME_MS + 9 + 10**15 - 1), (11, TIME_MS + 7)]
    assert expiry_times(batch, max_size=MEBIBYTE) == expected


def test_batches_without_the_header_are_not_decoded():
    batch = build_batch([(b"k", b"v", TIME_MS, (("other", b"1"),))])
    assert expiry_times(batch[:-1], max_size=MEBIBYTE) == []


def test_a_damaged_batch_and_one_that_is_too_large_are_refused():
    records = [(b"k", b"v" * 5000, TIME_MS, (("ttl-ms", b"1"),))]
    batch = build_batch(records)
    with pytest.raises(KafkaError):
        expiry_times(batch[:HEADER_SIZE] + b"\xff" + batch[HEADER_SIZE + 1 :], max_size=MEBIBYTE)
    with pytest.raises(KafkaError):
        expiry_times(build_batch(records, codec=Codec.ZSTD), max_size=100)
