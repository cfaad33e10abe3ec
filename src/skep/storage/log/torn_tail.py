"""Decides whether the bytes after the last good batch of a log are what an interrupted write leaves.

A process that dies leaves the beginning of what it was writing: the file ends before the batch does. A machine that
loses power may have extended the file before it wrote the bytes, and it writes them a sector at a time. Then the tail
is zeros, or a batch that ends in zeros from a sector boundary on::

    ...[80,89]|0000000000000000                 nothing of [90,99] was written
    ...[80,89]|[90,9.......|0000000             its first sectors were

Nothing in such a tail was synced, so nothing of it was acknowledged by a topic that syncs before it acknowledges. Any
other tail is damage: a complete batch with a wrong CRC, zeros followed by other bytes, bytes that no batch begins with.
"""

from skep.base.files.files import File
from skep.base.ids import Offset
from skep.records.batch import HEADER_SIZE, read_header
from skep.storage.segment.batch_scan import is_plausible

SECTOR_BYTES = 512
"""What a disk writes as a unit; larger sectors and pages end at boundaries of this size too."""
_BASE_OFFSET_BYTES = 8
_PIECE_BYTES = 1 << 20


def is_torn(
    file: File, position: int, *, base_offset: Offset, next_offset: Offset, gaps_below: Offset, lost_power: bool
) -> bool:
    """Returns whether the bytes from ``position`` on, where no good batch begins, are an interrupted write and no
    damage.

    ``base_offset`` is that of the segment and ``next_offset`` that of the missing batch; compaction may have removed
    offsets below ``gaps_below``. Zeros are explained only if the machine has ``lost_power``.
    """
    header = file.read(position, HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return True
    found = read_header(header)
    is_next = is_plausible(found, next_offset, base_offset) and found.base_offset <= max(next_offset, gaps_below)
    if is_next and position + found.size > file.size:
        return True
    if not lost_power:
        return False
    zeros_from = _zeros_from(file, position)
    if zeros_from == position:
        return True
    boundary = -(-zeros_from // SECTOR_BYTES) * SECTOR_BYTES
    if boundary - position < HEADER_SIZE:
        known = header[: min(boundary - position, _BASE_OFFSET_BYTES)]
        return gaps_below > next_offset or next_offset.to_bytes(_BASE_OFFSET_BYTES, "big").startswith(known)
    # The last byte of most uncompressed batches is a zero, the number of the last record's headers. If only that byte
    # is past the boundary, nothing is missing, and the CRC is wrong for another reason.
    genuine_zeros = 1 if found.codec == 0 else 0
    return is_next and boundary < position + found.size - genuine_zeros


def _zeros_from(file: File, position: int) -> int:
    """Returns where the zeros at the end of the file begin; not before ``position``."""
    end = file.size
    while end > position:
        start = max(position, end - _PIECE_BYTES)
        rest = file.read(start, end - start).rstrip(b"\0")
        if rest:
            return start + len(rest)
        end = start
    return position
