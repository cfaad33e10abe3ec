"""Whether the bytes behind the last good batch of a log are what an interrupted write leaves.

A process that dies leaves the beginning of what it was writing: the file ends before the batch does. A machine that
loses power may have made the file longer before it wrote the bytes, and it writes them a sector at a time. Then the
tail is zeros, or a batch that ends in zeros from a sector boundary on::

    ...[80,89]|0000000000000000                 nothing of [90,99] was written
    ...[80,89]|[90,9.......|0000000             its first sectors were

Nothing in such a tail was synced, and so nothing of it was acknowledged where syncs come before acknowledgements. Any
other tail is damage: a batch that is all there and has a wrong CRC, zeros with other bytes behind them, bytes that no
batch begins with.
"""

from skep.base.files.files import File
from skep.base.ids import Offset
from skep.records.batch import HEADER_SIZE, read_header
from skep.storage.segment.batch_scan import makes_sense

SECTOR_BYTES = 512
"""What a disk writes as a whole; larger sectors and pages end at boundaries of this size too."""
_BASE_OFFSET_BYTES = 8
_PIECE_BYTES = 1 << 20


def is_torn(
    file: File, position: int, *, base_offset: Offset, next_offset: Offset, gaps_below: Offset, lost_power: bool
) -> bool:
    """Whether the bytes from ``position`` on, where no good batch begins, are an interrupted write; else damage.

    ``base_offset`` is that of the segment and ``next_offset`` that of the missing batch; compaction may have taken
    offsets below ``gaps_below`` away. Zeros are explained only if the machine has ``lost_power``.
    """
    header = file.read(position, HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        return True
    found = read_header(header)
    is_next = makes_sense(found, next_offset, base_offset) and found.base_offset <= max(next_offset, gaps_below)
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
    # The last byte of most uncompressed batches is a zero, the number of the last record's headers. Where it is all
    # that lies behind the boundary, nothing is missing, and the CRC is wrong for another reason.
    genuine_zeros = 1 if found.codec == 0 else 0
    return is_next and boundary < position + found.size - genuine_zeros


def _zeros_from(file: File, position: int) -> int:
    """Where the zeros begin that the file ends in; not before ``position``."""
    end = file.size
    while end > position:
        start = max(position, end - _PIECE_BYTES)
        rest = file.read(start, end - start).rstrip(b"\0")
        if rest:
            return start + len(rest)
        end = start
    return position
