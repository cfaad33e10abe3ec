"""Every codec packs and unpacks, refuses damage, and never unpacks more than it was allowed to."""

import os
import subprocess
import sys
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.records.compression import Codec, compress, decompress

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MEBIBYTE = 1 << 20


def refusal(codec: int, data: bytes, max_size: int = MEBIBYTE) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        decompress(codec, data, max_size=max_size)
    assert refused.value.code is ErrorCode.corrupt_message
    return refused.value


@given(codec=st.sampled_from(Codec), piece=st.binary(max_size=300), times=st.integers(0, 2000))
def test_what_was_packed_is_unpacked(codec: Codec, piece: bytes, times: int) -> None:
    data = piece * times
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_taken(codec: Codec, kind: type) -> None:
    assert decompress(codec, kind(compress(codec, kind(b"egg" * 100)))) == b"egg" * 100


@pytest.mark.parametrize("codec", Codec)
def test_exactly_the_allowed_size_is_unpacked_and_one_byte_more_is_not(codec: Codec) -> None:
    packed = compress(codec, bytes(MEBIBYTE))
    assert len(decompress(codec, packed, max_size=MEBIBYTE)) == MEBIBYTE
    assert "more than 1048575 bytes" in refusal(codec, packed, MEBIBYTE - 1).detail


@pytest.mark.parametrize("codec", Codec)
def test_data_that_does_not_shrink_is_held_to_the_allowed_size_too(codec: Codec) -> None:
    refusal(codec, compress(codec, os.urandom(300_000)), 200_000)


@pytest.mark.parametrize("codec", PACKING)
def test_a_cut_off_batch_is_damaged_wherever_it_is_cut(codec: Codec) -> None:
    packed = compress(codec, os.urandom(500) * 3)
    for length in range(len(packed)):
        if codec is Codec.SNAPPY and length == len(compress(codec, b"")):
            continue  # framing without a block is how nothing at all is written
        refusal(codec, packed[:length])


@pytest.mark.parametrize("codec", PACKING)
@given(noise=st.binary(max_size=200), at=st.integers(0, 100))
def test_noise_is_unpacked_or_refused_but_nothing_else(codec: Codec, noise: bytes, at: int) -> None:
    whole = compress(codec, b"the egg in the basket " * 50)
    for data in (noise, whole[:at] + noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            assert len(decompress(codec, data, max_size=10_000)) <= 10_000
        except KafkaError as error:
            assert error.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_a_number_without_a_codec_is_refused(codec: int) -> None:
    refusal(codec, b"")
    with pytest.raises(ValueError):
        compress(codec, b"")


def test_codecs_go_by_kafkas_numbers_and_names() -> None:
    assert [(codec.value, codec.label) for codec in Codec] == [
        (0, "none"),
        (1, "gzip"),
        (2, "snappy"),
        (3, "lz4"),
        (4, "zstd"),
    ]
    assert Codec.named("lz4") is Codec.LZ4
    with pytest.raises(ValueError, match="none, gzip, snappy, lz4, zstd"):
        Codec.named("LZO")


def test_snappy_is_written_with_xerial_framing_and_read_without_it_too() -> None:
    data = os.urandom(40_000)
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_lz4_blocks_are_independent_because_the_java_client_reads_no_others() -> None:
    frame = compress(Codec.LZ4, os.urandom(100) * 2000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff\xff\x07" + b"egg", "claims to unpack to 16777215"),
        (b"\xff\xff\xff\xff\x0f" + b"egg", "more than 33554432 bytes"),
        (b"\x82SNAPPY\x00\x00\x00", "header is cut off"),
        (b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00", "length is cut off"),
        (b"\x82SNAPPY\x00" + bytes(8) + b"\xff\xff\xff\xff", "claims 4294967295 bytes"),
    ],
)
def test_snappy_lengths_are_not_believed(data: bytes, says: str) -> None:
    assert says in refusal(Codec.SNAPPY, data, 32 * MEBIBYTE).detail


UNPACK_AND_TELL_THE_PEAK = """
import pathlib, resource, sys
from skep.base.errors import KafkaError
from skep.records.compression import decompress
data = pathlib.Path(sys.argv[2]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(int(sys.argv[1]), data, max_size=1 << 20)
except KafkaError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def bomb(codec: Codec) -> bytes:
    """1 GiB of zeros, packed: 16 frames of 64 MiB, or as many snappy blocks."""
    if codec is Codec.SNAPPY:
        framed = compress(codec, bytes(32 << 10))
        return framed[:16] + framed[16:] * (1 << 15)
    return compress(codec, bytes(64 * MEBIBYTE)) * 16


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_of_a_gibibyte_takes_little_more_memory_than_allowed(codec: Codec, tmp_path: Path) -> None:
    # In a process of its own: the peak of this one may have been anything before.
    file = tmp_path / "bomb"
    file.write_bytes(bomb(codec))
    told = subprocess.run(
        [sys.executable, "-c", UNPACK_AND_TELL_THE_PEAK, str(int(codec)), str(file)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    peak_kib, _, error = told.partition(" ")
    assert "more than 1048576 bytes" in error
    assert int(peak_kib) < 8 << 10
