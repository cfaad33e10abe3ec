"""Java's string hash, against values that Java gives."""

import ctypes

import pytest

from skep.coordination.partitioner import partition_for

HUGE = 1 << 31


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("my-group", ctypes.c_int32(sum(ord(c) * 31 ** (7 - i) for i, c in enumerate("my-group"))).value),
        ("polygenelubricants", -(1 << 31)),
        ("été", 233 * 31 * 31 + 116 * 31 + 233),
        ("\U0001f41d", 0xD83D * 31 + 0xDC1D),
    ],
)
def test_the_partition_follows_from_javas_hash(key, hash_code):
    expected = 0 if hash_code == -HUGE else abs(hash_code)
    assert partition_for(key, HUGE) == expected
    assert partition_for(key, 50) == expected % 50
