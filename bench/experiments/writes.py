"""How to write a batch whose first 16 bytes are the broker's: ``python -m bench.experiments.writes``.

The batch was received as ``bytes``. One call with two buffers, two calls, or one call after a copy: joined, or patched
in a bytearray. In CPU time, into the page cache.
"""

import functools
import os
import tempfile
import time
from collections.abc import Callable

from bench.row import take_turns
from skep.records.batch import PREFIX_SIZE, prefix_for

BYTES_WRITTEN = 200_000_000
MOST_WRITES = 50_000
SIZES = (170, 16_384, 1_000_000)

Way = Callable[[int, bytes, bytes, int], None]


def pwritev(file: int, prefix: bytes, batch: bytes, position: int) -> None:
    os.pwritev(file, (prefix, memoryview(batch)[PREFIX_SIZE:]), position)


def two_writes(file: int, prefix: bytes, batch: bytes, position: int) -> None:
    os.pwrite(file, prefix, position)
    os.pwrite(file, memoryview(batch)[PREFIX_SIZE:], position + PREFIX_SIZE)


def joined(file: int, prefix: bytes, batch: bytes, position: int) -> None:
    os.pwrite(file, prefix + batch[PREFIX_SIZE:], position)


def patched(file: int, prefix: bytes, batch: bytes, position: int) -> None:
    copy = bytearray(batch)
    copy[:PREFIX_SIZE] = prefix
    os.pwrite(file, copy, position)


def cost_us(way: Way, size: int) -> float:
    batch = bytes(size)
    count = min(MOST_WRITES, BYTES_WRITTEN // size)
    with tempfile.TemporaryFile(prefix="skep-bench-") as stream:
        file = stream.fileno()
        started = time.thread_time()
        for number in range(count):
            way(file, prefix_for(number, size, 0), batch, number * size)
        return (time.thread_time() - started) / count * 1e6


def main() -> None:
    ways: tuple[Way, ...] = (pwritev, two_writes, joined, patched)
    for size in SIZES:
        turns = {f"{way.__name__}, {size:,} B": functools.partial(cost_us, way, size) for way in ways}
        for name, runs in take_turns(turns, lambda us: f"{us:.1f} us").items():
            print(f"{name:26} best {min(runs):8.1f} us")


if __name__ == "__main__":
    main()
