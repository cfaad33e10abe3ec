"""The checkpoint files of a data directory: written together, in the order in which they are asked for."""

import logging
import os
import threading
from collections.abc import Callable, Mapping

from skep.base.files import Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.checkpoints import decode_checkpoint, encode_checkpoint

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, Offset]


class CheckpointFiles:
    """Numbers the checkpoints as they are asked for: ``_written`` is the newest on disk, ``_last`` has the newest that
    speaks of a partition. If that is older, the files on disk do not speak of it, nor will they.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._last: dict[TopicPartition, int] = {}
        self._number = 0
        self._written = 0

    def read(self, name: str) -> Offsets | None:
        """What the file says, nothing if there is none; None when it is damaged."""
        path = os.path.join(self._path, name)
        if not self._files.exists(path):
            return {}
        try:
            offsets = decode_checkpoint(self._files.read_whole(path))
        except ValueError as error:
            logger.warning("%s: %s; going on without it", path, error)
            return None
        self._last.update(dict.fromkeys(offsets, 0))
        return offsets

    def may_speak_of(self, partition: TopicPartition) -> bool:
        """Whether the files on disk, or those about to be written, say something of it."""
        return self._last.get(partition, -1) >= self._written

    def work(self, offsets_by_name: Mapping[str, Offsets]) -> Callable[[], None]:
        """Writes the files in this order, in any thread."""
        self._number += 1
        number = self._number
        may_be_on_disk = {partition: last for partition, last in self._last.items() if last >= self._written}
        mentioned = {partition for offsets in offsets_by_name.values() for partition in offsets}
        self._last = may_be_on_disk | dict.fromkeys(mentioned, number)

        def write() -> None:
            with self._lock:
                # A later one may have been written already, and it knows which partitions are gone. One that is only
                # asked for does not count: it may fail, and whoever runs this relies on it.
                if number > self._written:
                    for name, offsets in offsets_by_name.items():
                        self._files.write_atomically(os.path.join(self._path, name), encode_checkpoint(offsets))
                    self._written = number

        return write
