"""The checkpoint files of a data directory, in Kafka's text format: one offset for each partition.

::

    0
    2
    orders 0 1042
    orders 1 977

Version, number of entries, then topic, partition and offset. A file is written atomically. One that cannot be read
means that nothing is known, which costs recovery time and loses nothing. The files are written together, in the order
in which they are asked for.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping

from skep.base.files.files import Files
from skep.base.ids import Offset, TopicPartition

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, Offset]


def encode_checkpoint(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_checkpoint(data: bytes) -> Offsets:
    """Raises ValueError when ``data`` is not a checkpoint, or is cut off."""
    lines = data.decode("ascii").splitlines()
    if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
        raise ValueError("not an offset checkpoint of version 0")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
    return offsets


class CheckpointFiles:
    """Numbers the checkpoints in the order in which their collection begins; ``_written`` is the newest on disk.

    ``_stale`` has the partitions that are gone or start over, each with the newest checkpoint that may hold offsets of
    it.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._stale: dict[TopicPartition, int] = {}
        self._number = 0
        self._written = 0

    def read(self, name: str) -> Offsets | None:
        """Returns the offsets in the file; none if it does not exist; None when it is damaged."""
        path = os.path.join(self._path, name)
        if not self._files.exists(path):
            return {}
        try:
            return decode_checkpoint(self._files.read_whole(path))
        except ValueError as error:
            logger.warning("%s: %s; continuing without it", path, error)
            return None

    def write(self, name: str, offsets: Offsets) -> None:
        self._files.write_atomically(os.path.join(self._path, name), encode_checkpoint(offsets))

    def forget(self, partition: TopicPartition) -> None:
        """Notes that what the checkpoints hold of the partition up to now is no longer true."""
        self._stale[partition] = self._number

    def may_speak_of(self, partition: TopicPartition) -> bool:
        """Returns whether the files on disk, or those about to be written, hold offsets of it that are not true."""
        return self._stale.get(partition, -1) >= self._written

    def begin(self) -> int:
        """Returns the number of a checkpoint whose collection begins now."""
        self._number += 1
        self._stale = {partition: last for partition, last in self._stale.items() if last >= self._written}
        return self._number

    def work(self, number: int, offsets_by_name: Mapping[str, Offsets]) -> Callable[[], None]:
        """Returns the work that writes the files in this order, in any thread."""

        def write() -> None:
            with self._lock:
                # A later checkpoint may have been written already. It holds everything that this one was to collect,
                # and it leaves out the partitions that are gone. One that is only asked for does not count: it may
                # fail, and the caller of this one relies on it.
                if number > self._written:
                    for name, offsets in offsets_by_name.items():
                        self.write(name, offsets)
                    self._written = number

        return write
