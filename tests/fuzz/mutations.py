"""Damage to bytes, of the kinds that are worth trying on a protocol of lengths and counts."""

import random
import struct

INTERESTING = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\1\x86\xa0",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
)


def mutated(source: random.Random, data: bytes) -> bytes:
    """``data`` with one to four pieces of damage."""
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        data = source.choice(MUTATIONS)(source, data)
    return data


def flip_bit(source: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    out = bytearray(data)
    out[source.randrange(len(out))] ^= 1 << source.randrange(8)
    return bytes(out)


def overwrite(source: random.Random, data: bytes) -> bytes:
    piece = source.choice(INTERESTING)
    place = source.randrange(len(data) + 1)
    return data[:place] + piece + data[place + len(piece) :]


def insert(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data) + 1)
    return data[:place] + source.choice(INTERESTING) + data[place:]


def truncate(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data) + 1)]


def extend(source: random.Random, data: bytes) -> bytes:
    return data + source.randbytes(source.choice((1, 4, 100)))


def repeat(source: random.Random, data: bytes) -> bytes:
    start = source.randrange(len(data) + 1)
    piece = data[start : start + source.randrange(1, 40)]
    return data[:start] + piece * source.choice((2, 3, 50)) + data[start + len(piece) :]


def change_number(source: random.Random, data: bytes) -> bytes:
    """Adds a little to four bytes somewhere, as if a count were off by one."""
    if len(data) < 4:
        return data
    place = source.randrange(len(data) - 3)
    (number,) = struct.unpack_from(">I", data, place)
    changed = struct.pack(">I", (number + source.choice((-1, 1, 1000))) & 0xFFFFFFFF)
    return data[:place] + changed + data[place + 4 :]


MUTATIONS = (flip_bit, flip_bit, overwrite, insert, truncate, extend, repeat, change_number)
