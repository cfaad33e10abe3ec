"""Primitive encodings that the encoders and hand-written readers of this package share."""

import struct

from skep.base.errors import DecodeError

INT32 = struct.Struct(">i")

MAX_TAGGED_FIELDS = 1000
"""The limit for one structure. Kafka's messages have up to eight; skipping an unknown one takes a microsecond."""


def uvarint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Returns the number at ``position`` and the position after it. It has at most five bytes, as in Kafka."""
    number = 0
    for shift in (0, 7, 14, 21, 28):
        if position >= len(buffer):
            raise DecodeError("the frame ends inside a varint")
        byte = buffer[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise DecodeError("a varint is longer than five bytes")


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Returns the position behind tagged fields, all of which are unknown (KIP-482)."""
    count, position = read_uvarint(buffer, position)
    if count > MAX_TAGGED_FIELDS:
        raise DecodeError(f"a structure has {count} tagged fields; at most {MAX_TAGGED_FIELDS} are allowed")
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise DecodeError("the frame ends inside a tagged field")
    return position


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
