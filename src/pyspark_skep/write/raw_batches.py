"""Record batches as the driver handles them: whole, unpacked only where it reads its own decisions.

To repair an aborted transaction the driver writes its batches again under another producer. The records stay packed;
the header changes, and with it the CRC.
"""

import struct
from collections.abc import Iterator

from pyspark_skep.write.partition_access import Fetched
from skep.records.batch import CRC_END, BatchHeader, crc_of, read_header
from skep.records.end_txn_marker import read_marker
from skep.records.record import batches_in

_PREFIX = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_CRC_POSITION = 17
_PRODUCER_POSITION = 43
_KEPT_ATTRIBUTES = 0x17
"""Codec and transactional. The timestamp type is decided by the topic again."""


def committed_batches(fetched: Fetched) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """Yields all batches fetched with ``committed``; None in place of one whose transaction was aborted."""
    beginning = sorted(fetched.aborted, key=lambda row: row[1], reverse=True)
    aborted: set[int] = set()
    for header, batch in batches_in(fetched.data):
        while beginning and beginning[-1][1] <= header.last_offset:
            aborted.add(beginning.pop()[0])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                aborted.discard(header.producer_id)
            yield header, batch
        elif header.is_transactional and header.producer_id in aborted:
            yield header, None
        else:
            yield header, batch


def under_producer(batch: bytes, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Returns a batch of the log as another producer sends it."""
    header = read_header(batch)
    again = bytearray(batch)
    _PREFIX.pack_into(again, 0, 0, header.batch_length, -1)
    struct.pack_into(">h", again, CRC_END, header.attributes & _KEPT_ATTRIBUTES)
    _PRODUCER.pack_into(again, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(again, _CRC_POSITION, crc_of(again))
    return bytes(again)
