"""Reads keys and times to live of records before a share group delivers them: keys if the group is ordered by key
(``coordination/share/key_order.py``), times to live if it reads the header.

Decoding takes a microsecond a record, so more than a little is done in a thread, a mebibyte of the log at a time. A
fetch gets what is known already, and is woken when more is.

A batch that cannot be decoded, because it is damaged or decompresses to too much, has one key for all of its records:
they are delivered one at a time, and live forever. The members decide what to do with them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from skep.base.errors import KafkaError, StorageError
from skep.base.files.files import File
from skep.base.ids import Offset
from skep.base.loop.supervisor import Supervisor
from skep.coordination.share.key_order import MAX_AHEAD, KeyOrder
from skep.coordination.share.share_window import ShareWindow
from skep.records.keys import LARGEST_CHECKED, LITTLE_UNPACKED, key_hashes
from skep.records.record_ttl import expiry_times
from skep.replication.partition.partition import Partition
from skep.storage.log.log_slice import LogSlice
from skep.storage.segment.batch_scan import BatchPlace, hop

READ_BYTES = 1 << 20
LITTLE_BYTES = 8 << 10
"""What is decoded on the event loop: some hundred records."""
_LITTLE_AT_ONCE = 4
UNREADABLE = 1
"""The hash of all keys in a batch that cannot be decoded."""


class Wanted(NamedTuple):
    """What has to be read."""

    keys: bool
    times_to_live: bool


class BatchKeys(NamedTuple):
    """The offsets of a batch, the hashes of its keys, and when the records expire that do so."""

    first: int
    last: int
    hashes: list[tuple[int, int]]
    expiries: list[tuple[int, int]]


class KeyReader:
    """Owns the keys of a share partition. ``learned`` is called when a thread has read some."""

    def __init__(
        self,
        wanted: Wanted,
        window: ShareWindow,
        partition: Partition,
        executor: Executor,
        supervisor: Supervisor,
        learned: Callable[[], None],
    ) -> None:
        self.wanted = wanted
        self.keys = KeyOrder(window.start_offset)
        self._window = window
        self._partition = partition
        self._executor = executor
        self._supervisor = supervisor
        self._learned = learned
        self._is_reading = False

    def read_on(self, up_to: Offset) -> None:
        """Reads keys as far as the window may reach, the first few at once, the others in a thread.

        Raises KafkaError and StorageError when the log cannot be read.
        """
        self.keys.skip_to(self._partition.log.log_start_offset)
        for _ in range(_LITTLE_AT_ONCE):
            position = self.keys.next_unknown(self._window)
            if self._is_reading or position is None or position >= up_to:
                return
            found = self._partition.read(Offset(position), READ_BYTES, up_to=up_to, at_least_one=True)
            if found.file is None:
                return
            batches = _little(self.wanted, found.file, found)
            if batches is None:
                self._is_reading = True
                name = f"read the keys of {self._partition.topic_partition}"
                self._supervisor.spawn(name, self._read(found, position))
                return
            self._take(position, batches)

    async def _read(self, found: LogSlice, position: int) -> None:
        assert found.file is not None
        limit = self._window.look_ahead_end
        try:
            batches = await asyncio.get_running_loop().run_in_executor(
                self._executor, _keys_in, self.wanted, found.file, found, limit
            )
        except (KafkaError, StorageError):
            return  # the next fetch gets the same error and returns it
        finally:
            self._is_reading = False
        self._take(position, batches)
        self._learned()

    def _take(self, position: int, batches: list[BatchKeys]) -> None:
        if self.keys.next_unknown(self._window) == position:
            for batch in batches:
                self.keys.learn(*batch)


def _little(wanted: Wanted, file: File, found: LogSlice) -> list[BatchKeys] | None:
    """Returns the keys of the batches in a slice; None if that would take long."""
    if found.size > LITTLE_BYTES:
        return None
    try:
        places = hop(file, found.position, found.position + found.size)
        return [_keys_of(wanted, file, place, LITTLE_UNPACKED) for place in places]
    except KafkaError:
        return None  # too large, or damaged


def _keys_in(wanted: Wanted, file: File, found: LogSlice, limit: int) -> list[BatchKeys]:
    """Returns the keys of the batches in a slice that begin below ``limit``, but of the first one in any case."""
    batches: list[BatchKeys] = []
    for place in hop(file, found.position, found.position + found.size):
        if batches and place.base_offset >= limit:
            break
        try:
            batches.append(_keys_of(wanted, file, place, LARGEST_CHECKED))
        except KafkaError:
            end = min(place.last_offset + 1, place.base_offset + MAX_AHEAD)
            hashes = [(offset, UNREADABLE) for offset in range(place.base_offset, end if wanted.keys else 0)]
            batches.append(BatchKeys(place.base_offset, place.last_offset, hashes, []))
    return batches


def _keys_of(wanted: Wanted, file: File, place: BatchPlace, max_size: int) -> BatchKeys:
    batch = file.read(place.position, place.size)
    hashes = key_hashes(batch, max_size=max_size) if wanted.keys else []
    expiries = expiry_times(batch, max_size=max_size) if wanted.times_to_live else []
    return BatchKeys(place.base_offset, place.last_offset, hashes, expiries)
