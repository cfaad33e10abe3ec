"""The codecs of record batches, by Kafka's numbers, with a decompression that limits its memory.

The decompressed size of a batch is not in its header, so a reader learns it by decompressing. 1 GiB of zeros is a zstd
frame of 32 KiB; ``decompress`` therefore never allocates more than ``max_size``, and stops at the first byte that does
not fit. gzip, lz4 and zstd are decompressed into a buffer that grows until the data fits: the wasted work is at most a
third of the whole, where a buffer of ``max_size`` would cost that memory for every small batch. Snappy has the size of
each block before it.

The output is what the Java client reads: it understands xerial's snappy framing, and lz4 frames only if their blocks
are independent. librdkafka writes snappy without framing, so both forms are read.
"""

import enum
import struct
from collections.abc import Callable, Iterator

import cramjam

from skep.base.errors import ErrorCode, KafkaError
from skep.records.batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, BatchHeader, Buffer, set_crc, write_header

DEFAULT_MAX_SIZE = 128 << 20
"""The size that one batch may decompress to where the caller has no limit of its own."""

LARGEST_RECOMPRESSED = 32 << 20
"""The size that a batch may decompress to if the broker compresses it again."""

_FIRST_BUFFER = 64 << 10
_TYPICAL_RATIO = 8
_GROWTH = 4

# The Java client's default levels; cramjam's own lz4 level is five times slower.
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
_BLOCK_LENGTH = struct.Struct(">I")

_ERRORS = (cramjam.DecompressionError, OSError, ValueError, OverflowError)


class Codec(enum.IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """The name that configurations and command lines use."""
        return self.name.lower()

    @classmethod
    def named(cls, label: str) -> "Codec":
        """Returns the codec of that name. Raises ValueError with the names that exist."""
        for codec in cls:
            if codec.label == label:
                return codec
        raise ValueError(f"there is no codec {label!r}, only {', '.join(codec.label for codec in cls)}")


def compress(codec: int, data: Buffer) -> bytes:
    """Returns ``data`` compressed with ``codec``. Raises ValueError when there is no such codec."""
    return _COMPRESS[Codec(codec)](data)


def decompress(codec: int, data: Buffer, *, max_size: int = DEFAULT_MAX_SIZE) -> bytes:
    """Returns ``data`` decompressed. Raises CORRUPT_MESSAGE when it is damaged or larger than ``max_size`` bytes."""
    if codec not in _DECOMPRESS:
        raise KafkaError(ErrorCode.corrupt_message, f"there is no compression codec {codec}")
    try:
        return _DECOMPRESS[Codec(codec)](data, max_size)
    except _ERRORS as error:
        raise KafkaError(ErrorCode.corrupt_message, f"the {Codec(codec).label} data is damaged: {error}") from None


def recompress(batch: Buffer, header: BatchHeader, codec: int) -> bytes:
    """Returns the batch with its records compressed by ``codec``. Raises CORRUPT_MESSAGE as ``decompress`` does."""
    packed = memoryview(batch)[HEADER_SIZE:]
    # Records that are not compressed have passed max.message.bytes.
    records = decompress(header.codec, packed, max_size=max(LARGEST_RECOMPRESSED, len(packed)))
    repacked = compress(codec, records)
    changed = header._replace(
        attributes=header.attributes & ~CODEC_MASK | codec, batch_length=HEADER_SIZE - LENGTH_END + len(repacked)
    )
    output = bytearray(write_header(changed))
    output += repacked
    set_crc(output)
    return bytes(output)


def _too_large(max_size: int) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, f"the records unpack to more than {max_size} bytes")


def _plain(data: Buffer, max_size: int) -> bytes:
    if len(data) > max_size:
        raise _too_large(max_size)
    return bytes(data)


def _growing(decompress_into: Callable[[Buffer, bytearray], int]) -> Callable[[Buffer, int], bytes]:
    """Returns a decompressor based on a cramjam function, which fails with a known message when its buffer is full."""

    def unpack(data: Buffer, max_size: int) -> bytes:
        size = min(max_size, max(_FIRST_BUFFER, len(data) * _TYPICAL_RATIO))
        while True:
            output = bytearray(size)
            try:
                written = decompress_into(data, output)
            except cramjam.DecompressionError as error:
                if "failed to write whole buffer" not in str(error):
                    raise
            else:
                return bytes(memoryview(output)[:written])
            if size == max_size:
                raise _too_large(max_size)
            del output  # before the next one is allocated, or both would be in memory
            size = min(max_size, size * _GROWTH)

    return unpack


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        pieces.append(_BLOCK_LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _decompress_snappy(data: Buffer, max_size: int) -> bytes:
    view = memoryview(data)
    output = bytearray()
    for block in _xerial_blocks(view) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [view]:
        size = int(cramjam.snappy.decompress_raw_len(block))
        if size > max_size - len(output):
            raise _too_large(max_size)
        # The buffer is allocated from the claimed size before the first byte is decompressed, and 10 bytes may claim
        # 100 MiB. The densest element of a block is a copy of 64 bytes, written as 3.
        if size > 64 * len(block):
            raise ValueError(f"a block of {len(block)} bytes claims to unpack to {size}")
        output += memoryview(cramjam.snappy.decompress_raw(block))
    return bytes(output)


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise ValueError("the xerial header is cut off")
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise ValueError("a block length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length > len(view) - position:
            raise ValueError(f"a block claims {length} bytes, {len(view) - position} are left")
        yield view[position : position + length]
        position += length


def _compress_lz4(data: Buffer) -> bytes:
    # No content checksum: the CRC of the batch covers it, and the Java client does not read it.
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


_COMPRESS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL)),
}

_DECOMPRESS: dict[int, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _growing(cramjam.gzip.decompress_into),
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _growing(cramjam.lz4.decompress_into),
    Codec.ZSTD: _growing(cramjam.zstd.decompress_into),
}
