"""A buffer that holds the decompressed records of many batches, one after the other.

It is reused for each group of batches, so its memory is allocated once and not for each batch. When the records do not
fit, or are damaged, ``compression.decompress`` does the work: it limits how far a buffer grows and reports what is
wrong. The buffer is then enlarged for the next time.
"""

from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np

from skep.records.batch import Buffer
from skep.records.compression import DEFAULT_MAX_SIZE, Codec, decompress

_INTO: dict[int, Callable[[Any, Any], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


class Unpacker:
    """Owns the buffer; ``size`` bytes of it are in use since the last ``clear``."""

    def __init__(self, expected_size: int) -> None:
        # Pages that are never written cost nothing.
        self._buffer = np.empty(expected_size, np.uint8)
        self.size = 0

    def clear(self) -> None:
        self.size = 0

    def add(self, codec: int, records: Buffer) -> None:
        """Decompresses ``records`` after what is there. Raises KafkaError when they are damaged or too large."""
        into = _INTO.get(codec)
        if into is not None:
            try:
                self.size += into(records, self._buffer[self.size : self.size + DEFAULT_MAX_SIZE])
                return
            except (cramjam.DecompressionError, OSError, ValueError, OverflowError):
                pass
        data = records if codec == Codec.NONE else decompress(codec, records)
        end = self.size + len(data)
        if end > len(self._buffer):
            larger = np.empty(2 * end, np.uint8)
            larger[: self.size] = self._buffer[: self.size]
            self._buffer = larger
        self._buffer[self.size : end] = np.frombuffer(data, np.uint8)
        self.size = end

    def content(self) -> np.ndarray:
        """Returns the content, which is overwritten after ``clear``."""
        content = self._buffer[: self.size]
        content.flags.writeable = False
        return content
