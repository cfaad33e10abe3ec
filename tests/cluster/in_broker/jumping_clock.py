"""Makes the wall clock of a broker process jump.

The seconds to add are in the file that SKEP_TEST_CLOCK names, as one double; a test changes them while the broker runs.
The monotonic clock is left alone, as the kernel does it.
"""

import mmap
import os
import struct
import time

_path = os.environ.get("SKEP_TEST_CLOCK")
if _path is not None:
    with open(_path, "r+b") as _file:
        _shared = mmap.mmap(_file.fileno(), 8)
    _time, _time_ns = time.time, time.time_ns

    def _offset_s() -> float:
        offset_s: float = struct.unpack("<d", _shared[:8])[0]
        return offset_s

    time.time = lambda: _time() + _offset_s()
    time.time_ns = lambda: _time_ns() + int(_offset_s() * 1e9)
