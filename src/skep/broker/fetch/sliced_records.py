"""The records of a log slice as a part of a response."""

from collections.abc import Sized

from skep.base.files.file_region import FileRegion
from skep.storage.log.log_slice import LogSlice

READ_AT_ONCE_BYTES = 32 * 1024


def sliced_records(found: LogSlice) -> Sized:
    """Returns bytes if the slice is small and in the page cache, otherwise a file region."""
    if found.file is None:
        return b""
    region = FileRegion(found.file, found.position, found.size)
    if found.size <= READ_AT_ONCE_BYTES and region.is_cached(0, found.size):
        return region.read(0, found.size)
    return region
