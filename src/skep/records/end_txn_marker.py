"""The control batch that ends a transaction in a partition: one record, whose key says whether it is committed.

    key    version int16 (0)  type int16  0 abort, 1 commit
    value  version int16 (0)  coordinator_epoch int32

The batch has the control and the transactional flag, the producer's id and epoch, and no sequence. Its one record takes
an offset, which readers skip. A newer version of the key or the value may be longer; the known fields come first.
"""

import struct
from typing import NamedTuple

from skep.base.errors import KafkaError
from skep.records.builder import NewRecord, build_batch
from skep.records.record import iterate_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class EndTxnMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def build_marker(marker: EndTxnMarker, *, producer_id: int, producer_epoch: int, timestamp: int) -> bytes:
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [NewRecord(key, value, timestamp)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: bytes) -> EndTxnMarker | None:
    """Returns the marker in a control batch; None for a batch that ends no transaction.

    That is a control batch of another kind, one that compaction has emptied, and one that cannot be decoded.
    """
    try:
        for record in iterate_records(batch):
            _, kind = _KEY.unpack_from(record.key or b"")
            if kind not in (_ABORT, _COMMIT):
                return None
            _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
            return EndTxnMarker(kind == _COMMIT, coordinator_epoch)
    except (KafkaError, struct.error):
        pass
    return None


MARKER_SIZE = len(build_marker(EndTxnMarker(False, 0), producer_id=0, producer_epoch=0, timestamp=0))
"""The size of every batch that ``build_marker`` returns."""
