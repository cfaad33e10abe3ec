"""The checkpoint files of a data directory: written together, in the order in which they are asked for."""

import logging
import os
import threading
from collections.abc import Callable, Mapping

from skep.base.files.files import Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.checkpoints import decode_checkpoint, encode_checkpoint

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, Offset]


class CheckpointFiles:
    """Numbers the checkpoints in the order in which their collection begins; ``_written`` is the newest on disk.

    ``_stale`` has the partitions that are gone or begin anew, each with the newest checkpoint that may speak of it.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._stale: dict[TopicPartition, int] = {}
        self._number = 0
        self._written = 0

    def read(self, name: str) -> Offsets | None:
        """What the file says, nothing if there is none; None when it is damaged."""
        path = os.path.join(self._path, name)
        if not self._files.exists(path):
            return {}
        try:
            return decode_checkpoint(self._files.read_whole(path))
        except ValueError as error:
            logger.warning("%s: %s; going on without it", path, error)
            return None

    def forget(self, partition: TopicPartition) -> None:
        """What checkpoints say of it up to now is no longer true."""
        self._stale[partition] = self._number

    def may_speak_of(self, partition: TopicPartition) -> bool:
        """Whether the files on disk, or those about to be written, have something of it that is no longer true."""
        return self._stale.get(partition, -1) >= self._written

    def begin(self) -> int:
        """The number of a checkpoint whose collection begins now."""
        self._number += 1
        self._stale = {partition: last for partition, last in self._stale.items() if last >= self._written}
        return self._number

    def work(self, number: int, offsets_by_name: Mapping[str, Offsets]) -> Callable[[], None]:
        """Writes the files in this order, in any thread."""

        def write() -> None:
            with self._lock:
                # A later one may have been written already: all that was to be collected when this one began is in it,
                # and it knows which partitions are gone. One that is only asked for does not count: it may fail, and
                # whoever runs this relies on it.
                if number > self._written:
                    for name, offsets in offsets_by_name.items():
                        self._files.write_atomically(os.path.join(self._path, name), encode_checkpoint(offsets))
                    self._written = number

        return write
