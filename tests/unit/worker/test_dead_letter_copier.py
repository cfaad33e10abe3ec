"""Letters of a range of which one batch cannot be read: the records behind it have their copies."""

import struct
import time
import uuid
from types import SimpleNamespace

from skep.base.dead_letters import COPIED
from skep.records.builder import build_batch
from skep.records.compression import Codec
from skep.worker import source_records
from skep.worker.dead_letter_copier import CopyRequest, _letters
from skep.worker.source_records import SourceRecords


def at(base_offset: int, batch: bytes) -> bytes:
    return struct.pack(">q", base_offset) + batch[8:]


def test_the_records_behind_a_batch_that_cannot_be_read_are_copied(monkeypatch):
    monkeypatch.setattr(source_records, "_USUAL_UNPACKED", 10_000)
    small, large = [(None, b"small", 0, ())] * 2, [(None, b"x" * 20_000, 0, ())] * 2
    log = at(0, build_batch(small)) + at(2, build_batch(large, codec=Codec.GZIP)) + at(4, build_batch(small))
    source = SourceRecords.__new__(SourceRecords)
    source.forget()
    monkeypatch.setattr(source, "_fetch", lambda *place: SimpleNamespace(records=log, high_watermark=6))
    monkeypatch.setattr(source, "start_offset", lambda *place: 0)
    request = CopyRequest(
        "g", "t", str(uuid.uuid4()), 0, "0", None, "dlq", 0, 1 << 20, True, False, [(0, 5, 1, "rejected")]
    )
    letters = list(_letters(source, request, time.monotonic() + 60))
    assert [letter.offset for letter, _ in letters] == [0, 1, 2, 3, 4, 5]
    assert [letter.copy == COPIED for letter, _ in letters] == [True, True, False, False, True, True]
    assert all("cannot be read" in letter.copy for letter, _ in letters[2:4])
    assert [record is not None for _, record in letters] == [True, True, False, False, True, True]
