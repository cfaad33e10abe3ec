"""Whether the copies of a partition are the same to the byte, by their files.

Where one file ends and the next begins is each broker's own affair; the batches in them are not.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">qi11xi")  # base offset, length, [epoch, magic, crc, attributes], last offset delta
_LENGTH_COUNTS_FROM = 12


class Batch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes

    @property
    def count(self) -> int:
        """Of offsets; nobody compacts here, so also of records."""
        return self.end_offset - self.base_offset

    @property
    def producer_epoch(self) -> int:
        return int.from_bytes(self.data[51:53], "big", signed=True)


def batches_of(partition: Path, up_to: int) -> Iterator[Batch]:
    """The batches of a partition's directory that end at or before ``up_to``, in order."""
    for segment in sorted(partition.glob("*.log")):
        with open(segment, "rb") as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                base_offset, length, last_offset_delta = _HEADER.unpack(header)
                rest = file.read(length + _LENGTH_COUNTS_FROM - _HEADER.size)
                end_offset = base_offset + last_offset_delta + 1
                if end_offset > up_to:
                    return
                yield Batch(base_offset, end_offset, header + rest)


def differences(copies: Mapping[int, Path], high_watermark: int) -> list[str]:
    """How the copies, by broker, differ below the high watermark. Empty: they do not."""
    found, ends = [], dict.fromkeys(copies, 0)
    streams = [batches_of(path, high_watermark) for path in copies.values()]
    for row in itertools.zip_longest(*streams):
        for broker, batch in zip(copies, row, strict=True):
            if batch is not None:
                ends[broker] = batch.end_offset
        if len(set(row)) > 1:
            here = ", ".join(f"broker {broker}: {_words(batch)}" for broker, batch in zip(copies, row, strict=True))
            found.append(f"the copies differ: {here}")
            break
    else:
        short = {broker: end for broker, end in ends.items() if end != high_watermark}
        found += [f"broker {broker} ends at {end}, below {high_watermark}" for broker, end in short.items()]
    return found


def _words(batch: Batch | None) -> str:
    if batch is None:
        return "nothing"
    epoch = int.from_bytes(batch.data[12:16], "big", signed=True)
    return f"{batch.base_offset} to {batch.end_offset - 1} of epoch {epoch}, {len(batch.data)} bytes"
