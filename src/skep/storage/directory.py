"""One data directory: its lock, its clean-stop marker, its checkpoints, and the logs in it.

A stop is clean when every log was flushed and the marker written after that; the marker goes at the next start before
anything else is written. The checkpoints hold each log's recovery point and log start; they may lag behind, which
costs a recovery some time.

Nothing is read of a partition before somebody asks for its log.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from skep.base.clock import Clock
from skep.base.errors import StartupError, StorageError
from skep.base.files import DirectoryLock, DiskSpace, Files
from skep.base.ids import Offset, TopicPartition
from skep.base.topic_config import TopicConfig
from skep.storage.batches import NEVER
from skep.storage.checkpoints import decode_checkpoint, encode_checkpoint
from skep.storage.log import Log
from skep.storage.names import (
    CLEAN_SHUTDOWN,
    CLEANED_UP_TO,
    DELETE_SUFFIX,
    LOCK,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_SUFFIX,
    away_name,
    decode_partition_metadata,
    parse_partition_name,
)
from skep.storage.producers import MAX_PRODUCERS
from skep.storage.recovery import LogOnDisk, load_log

logger = logging.getLogger(__name__)

_CLOSING_THREADS = 8

Work = Callable[[], None]
"""Something to be run in a thread; StorageError when the disk refuses."""


class LogDirectory:
    """Owns everything under ``path`` from ``open`` to ``close``.

    ``_recovery_points`` and ``_log_starts`` are those read at the start, for logs that have not been opened since.
    ``_cleaned_up_to`` is where the last pass of compaction over each log ended; not so if its file was lost, which
    ``_has_cleaned_up_to`` says.
    Checkpoints are numbered as they are asked for: ``_checkpoint_written`` is the newest on disk, ``_last_checkpoint``
    has the newest that speaks of a partition. If that is older, the files on disk do not speak of it, nor will they.
    """

    def __init__(self, files: Files, path: str, clock: Clock, max_producers: int = MAX_PRODUCERS) -> None:
        self.path = path
        self._max_producers = max_producers
        self.was_clean = True
        self._files = files
        self._clock = clock
        self._lock: DirectoryLock | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._on_disk: set[TopicPartition] = set()
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._cleaned_up_to: dict[TopicPartition, Offset] = {}
        self._has_cleaned_up_to = True
        self._last_checkpoint: dict[TopicPartition, int] = {}
        self._checkpoint_lock = threading.Lock()
        self._checkpoint_number = 0
        self._checkpoint_written = 0
        self._leftovers: list[str] = []

    def open(self) -> None:
        """Takes the directory; StartupError when another broker has it or it cannot be written to."""
        try:
            self._make()
            self._lock = self._files.lock(self._name(LOCK))
            if self._lock is None:
                raise StartupError(f"{self.path}: another broker is using this directory")
            self._look_around()
        except StorageError as error:
            raise StartupError(f"data directory {error}") from error

    def _make(self) -> None:
        """With its own name durable, or a power cut could take everything with it."""
        missing = [self.path]
        while not self._files.exists(missing[-1]) and os.path.dirname(missing[-1]) != missing[-1]:
            missing.append(os.path.dirname(missing[-1]))
        self._files.make_directory(self.path)
        for parent in missing[1:]:
            self._files.sync_directory(parent)

    def _look_around(self) -> None:
        names = self._files.list_directory(self.path)
        self._on_disk = {partition for name in names if (partition := parse_partition_name(name)) is not None}
        self._leftovers = [self._name(name) for name in names if name.endswith(DELETE_SUFFIX)]
        self._recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self._log_starts = self._read_checkpoint(LOG_STARTS)
        self._has_cleaned_up_to = CLEANED_UP_TO in names or not self._on_disk
        self._cleaned_up_to = self._read_checkpoint(CLEANED_UP_TO)
        # A directory without partitions has nothing to recover, whatever else there is.
        self.was_clean = CLEAN_SHUTDOWN in names or not self._on_disk
        if not self.was_clean:
            logger.warning("%s: was not stopped cleanly, logs are checked from their recovery points", self.path)
        if CLEANED_UP_TO not in names and not self._on_disk:
            # So that from now on a missing file means that it was lost.
            self._files.write_atomically(self._name(CLEANED_UP_TO), encode_checkpoint({}))
        self._files.remove(self._name(CLEAN_SHUTDOWN))
        self._files.sync_directory(self.path)

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        path = self._name(name)
        if not self._files.exists(path):
            return {}
        try:
            offsets = decode_checkpoint(self._files.read_whole(path))
        except ValueError as error:
            logger.warning("%s: %s; going on without it", path, error)
            self._has_cleaned_up_to &= name != CLEANED_UP_TO
            return {}
        self._last_checkpoint.update(dict.fromkeys(offsets, 0))
        return {partition: offset for partition, offset in offsets.items() if partition in self._on_disk}

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """Those that have a directory on disk or an open log."""
        return sorted(self._on_disk | self._logs.keys())

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The open ones."""
        return self._logs

    @property
    def files(self) -> Files:
        return self._files

    def disk_space(self) -> DiskSpace:
        return self._files.disk_space(self.path)

    def leftovers(self) -> Work:
        """Removes what earlier deletions left behind."""
        paths, self._leftovers = self._leftovers, []
        return lambda: _remove_trees(self._files, paths)

    def log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        """The partition's log, opened (and after a crash recovered) when it is first asked for.

        StorageError when that fails; other logs are not concerned, and it can be asked for again.
        """
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = self._open_log(partition, config, topic_id)
        return log

    def _open_log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        path = self._name(str(partition))
        if partition in self._on_disk and self.topic_id_of(partition) not in (topic_id, None):
            self._set_aside(partition, "its topic was deleted and created anew")
        recovery_point = None if self.was_clean else self._recovery_points.get(partition, Offset(0))
        log_start = self._log_starts.get(partition, Offset(0))
        gaps_below = self._gaps_below(partition, config, recovery_point)
        disk = LogOnDisk(self._files, path, partition, recovery_point, log_start, self._max_producers, gaps_below)
        content = load_log(disk, config.index_interval_bytes, self._clock.now_ms())
        log = Log(self._files, path, partition, topic_id, config, content, lambda: self._before_creation(partition))
        log.settle()
        return log

    def _gaps_below(self, partition: TopicPartition, config: TopicConfig, recovery_point: Offset | None) -> Offset:
        """Before a pass of compaction changes anything, the log has an entry, and a recovery point behind the pass."""
        cleaned_up_to = self._cleaned_up_to.get(partition)
        if cleaned_up_to is not None:
            return max(cleaned_up_to, recovery_point or Offset(0))
        return Offset(NEVER) if config.is_compacted and not self._has_cleaned_up_to else Offset(0)

    def cleaned_up_to(self, partition: TopicPartition) -> Offset | None:
        """Where the last pass of compaction ended; None when there was none, or it is not known."""
        return self._cleaned_up_to.get(partition)

    def note_cleaned(self, partition: TopicPartition, offset: Offset) -> None:
        """To be followed by a checkpoint, before a pass that changes the log and after it."""
        self._cleaned_up_to[partition] = offset

    def _before_creation(self, partition: TopicPartition) -> None:
        """What the checkpoints on disk say of an earlier partition of that name must not be taken for this one's."""
        if self._last_checkpoint.get(partition, -1) >= self._checkpoint_written:
            self.write_checkpoints()
        self._on_disk.add(partition)

    def topic_id_of(self, partition: TopicPartition) -> uuid.UUID | None:
        path = os.path.join(self.path, str(partition), PARTITION_METADATA)
        return decode_partition_metadata(self._files.read_whole(path)) if self._files.exists(path) else None

    def recover_all(
        self,
        wanted: Mapping[TopicPartition, tuple[TopicConfig, uuid.UUID]],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Opens all these logs; those that fail are reported and left for later."""
        for number, (partition, (config, topic_id)) in enumerate(wanted.items()):
            try:
                self.log(partition, config, topic_id)
            except StorageError as error:
                logger.error("%s: cannot be opened: %s", partition, error)
            progress(number + 1, len(wanted))

    def set_aside_strays(self, topics: Mapping[str, uuid.UUID]) -> None:
        """Renames the directories of partitions whose topic is not among ``topics``; they are never deleted."""
        for partition in sorted(self._on_disk - self._logs.keys()):
            if partition.topic not in topics:
                self._set_aside(partition, "its topic is not known")
            elif self.topic_id_of(partition) not in (topics[partition.topic], None):
                self._set_aside(partition, "its topic was deleted and created anew")

    def _set_aside(self, partition: TopicPartition, reason: str) -> None:
        away = away_name(partition, STRAY_SUFFIX)
        logger.warning("%s: %s is set aside as %s: %s", self.path, partition, away, reason)
        self._move_away(partition, away)

    def delete_partition(self, partition: TopicPartition) -> Work:
        """Takes the partition away under this name at once; the work it gives removes the files.

        No flush of its log may be under way: it would write into a directory that is no longer its own.
        """
        if (log := self._logs.pop(partition, None)) is not None:
            log.release()
        if partition not in self._on_disk:
            return lambda: None
        away = self._move_away(partition, away_name(partition, DELETE_SUFFIX))
        if log is not None:
            log.moved_to(away)
        return lambda: _remove_trees(self._files, [away])

    def _move_away(self, partition: TopicPartition, name: str) -> str:
        away = self._name(name)
        self._files.rename(self._name(str(partition)), away)
        self._on_disk.discard(partition)
        self._recovery_points.pop(partition, None)
        self._log_starts.pop(partition, None)
        self._cleaned_up_to.pop(partition, None)
        return away

    def checkpoint_work(self) -> Work:
        """Writes the recovery points and log starts as they are now."""
        recovery_points, log_starts = dict(self._recovery_points), dict(self._log_starts)
        cleaned_up_to = dict(self._cleaned_up_to)
        for partition, log in self._logs.items():
            recovery_points.pop(partition, None)
            log_starts.pop(partition, None)
            if log.flushed_offset > 0:
                recovery_points[partition] = log.flushed_offset
            # A log start that is a segment's beginning needs no entry: it is in the segment's name.
            if log.log_start_offset > (log.segments[0].base_offset if log.segments else 0):
                log_starts[partition] = log.log_start_offset
        self._checkpoint_number += 1
        number = self._checkpoint_number
        written = self._checkpoint_written
        may_be_on_disk = {name: last for name, last in self._last_checkpoint.items() if last >= written}
        mentioned = recovery_points.keys() | log_starts.keys() | cleaned_up_to.keys()
        self._last_checkpoint = may_be_on_disk | dict.fromkeys(mentioned, number)

        def write() -> None:
            with self._checkpoint_lock:
                # A later one may have been written already, and it knows which partitions are gone. One that is only
                # asked for does not count: it may fail, and whoever runs this relies on it.
                if number > self._checkpoint_written:
                    self._files.write_atomically(self._name(LOG_STARTS), encode_checkpoint(log_starts))
                    self._files.write_atomically(self._name(RECOVERY_POINTS), encode_checkpoint(recovery_points))
                    self._files.write_atomically(self._name(CLEANED_UP_TO), encode_checkpoint(cleaned_up_to))
                    self._checkpoint_written = number

        return write

    def write_checkpoints(self) -> None:
        """``checkpoint_work``, here and now."""
        self.checkpoint_work()()

    def close(self) -> None:
        """Flushes all logs, writes the checkpoints and the marker. No flush may be under way.

        When the disk refuses, what could be flushed is, and the next start recovers the rest.
        """
        is_clean = self._close_logs() and (self.was_clean or self._on_disk <= self._logs.keys())
        try:
            self.write_checkpoints()
            if is_clean:
                self._files.write_atomically(self._name(CLEAN_SHUTDOWN), b'{"version":0}')
        except StorageError as error:
            logger.error("%s: no clean stop: %s", self.path, error)
        self._logs.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_logs(self) -> bool:
        """In threads, because a thousand syncs one after the other would be a long stop."""
        is_clean = True
        with ThreadPoolExecutor(_CLOSING_THREADS, "closing") as threads:
            running = []
            for log in self._logs.values():
                try:
                    plan = log.closing_plan()
                except StorageError as error:
                    logger.error("%s: cannot be closed: %s", log.topic_partition, error)
                    is_clean = False
                    continue
                if plan is not None:
                    running.append((log, plan, threads.submit(plan.run)))
            for log, plan, future in running:
                try:
                    future.result()
                    log.flushed(plan)
                except StorageError as error:
                    log.flush_failed(plan, error)
                    is_clean = False
        for log in self._logs.values():
            is_clean &= log.flushed_offset == log.log_end_offset
            log.release()
        return is_clean


def _remove_trees(files: Files, paths: Iterable[str]) -> None:
    for path in paths:
        # The new name first: if the old one came back after a crash, half a log would come back with it.
        files.sync_directory(os.path.dirname(path))
        files.remove_tree(path)
