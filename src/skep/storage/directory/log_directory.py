"""One data directory: its lock, its clean-shutdown marker, and the logs in it.

A shutdown is clean when every log was flushed and the marker was written after that. The next start removes the marker
before it writes anything else. The checkpoints (``checkpoints.py``) hold each log's recovery point and log start.

Nothing of a partition is read before its log is asked for.
"""

import logging
import os
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from functools import partial

from skep.base.clock import Clock
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StartupError, StorageError
from skep.base.files.files import DirectoryLock, DiskSpace, Files
from skep.base.ids import Offset, TopicPartition
from skep.storage.directory.checkpoint_files import CheckpointFiles
from skep.storage.directory.checkpoints import Checkpoints, Work
from skep.storage.directory.directory_identity import boot_id_in, claim, current_boot_id, may_have_lost_data
from skep.storage.directory.log_shutdown import close_logs
from skep.storage.file_names import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    DELETE_SUFFIX,
    DELETED,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    STRAY_SUFFIX,
    away_name,
    decode_partition_metadata,
    parse_partition_name,
)
from skep.storage.log.log import Log
from skep.storage.log.log_content import empty_content
from skep.storage.log.log_state import DirectoryCallbacks
from skep.storage.log.recovery import LogOnDisk, load_log
from skep.storage.producers.producers import MAX_PRODUCERS

logger = logging.getLogger(__name__)

__all__ = ["LogDirectory", "Work"]


class LogDirectory:
    """Owns everything under ``path`` from ``open`` to ``close``.

    ``_on_disk`` are the partitions that have a directory. ``_leftovers`` are paths that are no longer used and are
    removed later. ``_lost_power`` is ``may_have_lost_data`` as it was at the start, for logs that are opened after the
    losses were settled.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        clock: Clock,
        max_producers: int = MAX_PRODUCERS,
        boot_id: str | None = None,
    ) -> None:
        """``boot_id`` replaces the kernel's id of the run of the machine, for tests."""
        self.path = path
        self._max_producers = max_producers
        self.was_clean = True
        self.may_have_lost_data = True
        self.may_have_lost_synced_data = True
        self._lost_power = False
        self._boot_id = boot_id
        self._files = files
        self._clock = clock
        self._lock: DirectoryLock | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._on_disk: set[TopicPartition] = set()
        self._checkpoints = Checkpoints(CheckpointFiles(files, path))
        self._leftovers: list[str] = []
        self._created: list[str] = []
        self._is_new = False

    def open(self) -> None:
        """Locks and scans the directory. Raises StartupError when another broker uses it or it cannot be written to."""
        try:
            self._make()
            self._lock = self._files.lock(self._name(LOCK))
            if self._lock is None:
                raise StartupError(f"{self.path}: another broker is using this directory")
            self._scan()
        except StorageError as error:
            if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
                raise StartupError(
                    f"data directory {self.path}: a file is in the way; choose another directory with --data-dir"
                ) from error
            raise StartupError(f"data directory {error}") from error

    def _make(self) -> None:
        """Creates the directory with a durable name; otherwise a power loss could remove everything in it."""
        missing = [self.path]
        while not self._files.exists(missing[-1]) and os.path.dirname(missing[-1]) != missing[-1]:
            missing.append(os.path.dirname(missing[-1]))
        if self._files.exists(missing[-1]):
            missing.pop()
        self._created = missing
        self._files.make_directory(self.path)
        for directory in missing:
            self._files.sync_directory(os.path.dirname(directory))

    def _scan(self) -> None:
        names = self._files.list_directory(self.path)
        self._is_new = names == [LOCK]
        self._on_disk = {partition for name in names if (partition := parse_partition_name(name)) is not None}
        self._leftovers = [self._name(name) for name in names if name.endswith(DELETE_SUFFIX)]
        self._checkpoints.read(names, self._on_disk)
        # A directory without partitions has nothing to recover, whatever else it holds.
        self.was_clean = CLEAN_SHUTDOWN in names or not self._on_disk
        if not self.was_clean:
            logger.warning("%s: no clean shutdown; logs are recovered from their recovery points", self.path)
        self._look_for_losses(names)
        self._files.remove(self._name(CLEAN_SHUTDOWN))
        self._files.sync_directory(self.path)

    def _look_for_losses(self, names: Collection[str]) -> None:
        """Called before the clean-shutdown marker is removed."""
        if self._boot_id is None:
            self._boot_id = current_boot_id()
        earlier = boot_id_in(self._files, self._name(BOOT_ID))
        self.may_have_lost_data = may_have_lost_data(names, bool(self._on_disk), earlier, self._boot_id)
        # Without the directory's identity it is not known which disk this is, or how old a copy of one.
        self.may_have_lost_synced_data = self.may_have_lost_data and META_PROPERTIES not in names
        self._lost_power = self.may_have_lost_data
        if self.may_have_lost_data:
            self._files.remove(self._name(BOOT_ID))
        elif earlier != self._boot_id:
            self._files.write_atomically(self._name(BOOT_ID), self._boot_id.encode())

    def _note_loss(self) -> None:
        """Makes the next start treat every log as lossy, should this process end before the loss is dealt with."""
        self._files.remove(self._name(BOOT_ID))
        self._files.sync_directory(self.path)

    def losses_settled(self) -> None:
        """Notes that the cluster knows durably which data may be lost, here or in an open log."""
        assert self._boot_id is not None, "the directory is open"
        if not self._files.exists(self._name(BOOT_ID)):
            self._files.write_atomically(self._name(BOOT_ID), self._boot_id.encode())
        self.may_have_lost_data = self.may_have_lost_synced_data = False

    def check_identity(self, cluster_id: str, node_id: int) -> None:
        """Raises StartupError when the directory belongs to another cluster or broker; claims one without an owner."""
        try:
            claim(self._files, self.path, cluster_id, node_id)
        except StorageError as error:
            raise StartupError(f"data directory {error}") from error

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have a directory on disk or an open log."""
        return self._on_disk | self._logs.keys()

    def has(self, partition: TopicPartition) -> bool:
        """Returns whether ``partition`` is one of ``partitions``."""
        return partition in self._on_disk or partition in self._logs

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The open logs."""
        return self._logs

    @property
    def files(self) -> Files:
        return self._files

    def disk_space(self) -> DiskSpace:
        return self._files.disk_space(self.path)

    def leftovers(self) -> Work:
        """Returns the work that removes what earlier deletions left behind and what logs have discarded since."""
        paths, self._leftovers = self._leftovers, []
        return self.removal(paths)

    def log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        """Returns the partition's log, which the first call opens and, after a crash, recovers.

        Raises StorageError when that fails. Other logs are not affected, and the call may be repeated.
        """
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = self._open_log(partition, config, topic_id)
        elif log.topic_id != topic_id:
            raise StorageError(f"{partition}: the files of a deleted topic of this name are not removed yet")
        return log

    def _open_log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        path = self._name(str(partition))
        checkpoints = self._checkpoints
        if partition not in self._on_disk and partition not in checkpoints.missing:
            # Never written to: there is nothing to read.
            content = empty_content(self._clock.now_ms(), self._max_producers)
            return Log(self._files, path, partition, topic_id, config, content, self._callbacks_for(partition))
        if partition in self._on_disk and self.topic_id_of(partition) not in (topic_id, None):
            self._set_aside(partition, "its topic was deleted and created again")
        recovery_point = None if self.was_clean else checkpoints.recovery_point(partition)
        gaps_below = checkpoints.gaps_below(partition, recovery_point, is_compacted=config.is_compacted)
        is_missing = partition in checkpoints.missing
        if is_missing:
            self._note_loss()
        disk = LogOnDisk(
            self._files,
            path,
            partition,
            recovery_point,
            checkpoints.log_start(partition),
            self._max_producers,
            gaps_below,
            self._note_loss,
            self._discard,
            self._lost_power,
        )
        content = load_log(disk, config.index_interval_bytes, self._clock.now_ms())
        log = Log(self._files, path, partition, topic_id, config, content, self._callbacks_for(partition))
        log.lost_data |= is_missing
        log.settle()
        return log

    @property
    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """The high watermarks that were read at the start, or given to the last checkpoint."""
        return self._checkpoints.high_watermarks

    def cleaned_up_to(self, partition: TopicPartition) -> Offset | None:
        """Returns where the last compaction ended; None when there was none, or it is not known."""
        return self._checkpoints.cleaned_up_to(partition)

    def note_cleaned(self, partition: TopicPartition, offset: Offset) -> None:
        """A checkpoint has to be written after this, before a compaction that changes the log and after it."""
        self._checkpoints.note_cleaned(partition, offset)

    # What logs call, on the event loop's thread; see ``DirectoryCallbacks``.

    def _callbacks_for(self, partition: TopicPartition) -> DirectoryCallbacks:
        return DirectoryCallbacks(
            partial(self._before_creation, partition),
            partial(self._before_truncation, partition),
            self.write_checkpoints,
            partial(self._checkpoints.after_truncation, partition),
            partial(self._moved_away, partition),
            self._discard,
        )

    def _before_creation(self, partition: TopicPartition) -> None:
        """Offsets of an earlier partition of that name in the checkpoints must not be taken for this one's."""
        if self._checkpoints.is_stale(partition):
            self.write_checkpoints()
        self._on_disk.add(partition)

    def _before_truncation(self, partition: TopicPartition, end_offset: Offset) -> bool:
        return self._checkpoints.before_truncation(partition, self._logs[partition].flushed_offset, end_offset)

    def _moved_away(self, partition: TopicPartition, path: str) -> None:
        self._forget(partition)
        self._discard(path)

    def _discard(self, path: str) -> None:
        self._leftovers.append(path)

    def topic_id_of(self, partition: TopicPartition) -> uuid.UUID | None:
        path = os.path.join(self.path, str(partition), PARTITION_METADATA)
        return decode_partition_metadata(self._files.read_whole(path)) if self._files.exists(path) else None

    def recover_all(
        self,
        wanted: Mapping[TopicPartition, tuple[TopicConfig, uuid.UUID]],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Opens all these logs; one that fails is logged, and opened again when it is asked for."""
        for number, (partition, (config, topic_id)) in enumerate(wanted.items()):
            try:
                self.log(partition, config, topic_id)
            except StorageError as error:
                logger.error("%s: cannot open the log: %s", partition, error)
            progress(number + 1, len(wanted))

    def set_aside_strays(self, topics: Mapping[str, uuid.UUID]) -> None:
        """Renames the directories of partitions whose topic is not among ``topics``. They are never deleted."""
        for partition in sorted(self._on_disk - self._logs.keys()):
            if partition.topic not in topics:
                self._set_aside(partition, "its topic does not exist")
            elif self.topic_id_of(partition) not in (topics[partition.topic], None):
                self._set_aside(partition, "its topic was deleted and created again")

    def _set_aside(self, partition: TopicPartition, reason: str) -> None:
        away = away_name(partition, STRAY_SUFFIX)
        logger.warning("%s: %s is renamed to %s: %s", self.path, partition, away, reason)
        self._files.rename(self._name(str(partition)), self._name(away))
        self._forget(partition)

    def delete_partition(self, partition: TopicPartition) -> str | None:
        """Renames the partition's directory at once; returns its new path, or None if there was none.

        ``removal`` removes the files. No flush of the log may be under way: it would write into a directory that is no
        longer its own. ``away_path``, ``move`` and ``deleted`` are the steps of this method.
        """
        away = self.away_path(partition)
        if away is not None:
            self.move(partition, away)
        self.deleted(partition, away)
        return away

    def away_path(self, partition: TopicPartition) -> str | None:
        """Returns the path that the directory is renamed to when it is deleted; None when there is none."""
        return self._name(away_name(partition, DELETE_SUFFIX)) if partition in self._on_disk else None

    def move(self, partition: TopicPartition, away: str) -> None:
        """Renames the directory. In any thread, because a rename waits while the file system writes its journal.

        Nothing may open the partition meanwhile.
        """
        self._files.rename(self._name(str(partition)), away)

    def deleted(self, partition: TopicPartition, away: str | None) -> None:
        """Forgets the partition, whose directory is at ``away`` now; None if it has none or could not be renamed."""
        if (log := self._logs.pop(partition, None)) is not None:
            log.release()
            if away is not None:
                log.moved_to(away)
        if away is not None:
            self._forget(partition)

    def removal(self, paths: Iterable[str]) -> Work:
        """Returns the work that removes these paths, with one sync for each directory."""
        return lambda: _remove(self._files, paths)

    def _forget(self, partition: TopicPartition) -> None:
        self._checkpoints.forget(partition)
        self._on_disk.discard(partition)

    def must_write_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Returns whether the files may still hold offsets of deleted partitions: the next ones of the same name have
        to wait until they are written."""
        return any(map(self._checkpoints.is_stale, partitions))

    def checkpoint_in_slices(
        self, high_watermarks: Iterable[tuple[TopicPartition, Offset]] = ()
    ) -> Generator[None, None, Work]:
        """Collects the checkpoints of all logs; returns the work that writes them. See ``Checkpoints``."""
        return self._checkpoints.collect_in_slices(self._logs, self._on_disk, high_watermarks)

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Collects and writes the checkpoints on the calling thread."""
        self.checkpoint_work(high_watermarks)()

    def checkpoint_work(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> Work:
        """``checkpoint_in_slices`` in one slice."""
        collecting = self.checkpoint_in_slices((high_watermarks or {}).items())
        while True:
            try:
                next(collecting)
            except StopIteration as collected:
                work: Work = collected.value
                return work

    def close(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Flushes all logs, then writes the checkpoints and the marker. No flush may be under way.

        When the disk refuses, the other logs are flushed all the same, and the next start recovers the rest.
        """
        is_clean = close_logs(self._logs.values()) and (self.was_clean or self._on_disk <= self._logs.keys())
        try:
            self.write_checkpoints(high_watermarks)
            if is_clean:
                self._files.write_atomically(self._name(CLEAN_SHUTDOWN), b'{"version":0}')
        except StorageError as error:
            logger.error("%s: no clean shutdown: %s", self.path, error)
        self._logs.clear()
        self._unlock()

    def discard_if_new(self) -> bool:
        """Unlocks the directory and removes it if ``open`` found it missing or empty. Returns whether it did.

        For a broker that could not start: nobody has written records to it. A directory that existed stays, empty. The
        lock is held until the end, so that no other broker can begin to use what is being removed.
        """
        if not self._is_new or self._on_disk or self._logs:
            return False
        try:
            for name in self._files.list_directory(self.path):
                self._remove(self._name(name))
            for directory in self._created:
                if self._files.list_directory(directory):
                    break
                self._files.remove_tree(directory)
        except StorageError as error:
            logger.warning("cannot remove the data directory of a broker that did not start: %s", error)
        self._unlock()
        return True

    def _remove(self, path: str) -> None:
        try:
            self._files.remove(path)
        except StorageError:
            self._files.remove_tree(path)  # it is a directory

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _remove(files: Files, paths: Iterable[str]) -> None:
    """Removes directories of deleted partitions and files of removed segments.

    When the disk refuses to remove one, the others are removed all the same; then StorageError is raised.
    """
    synced: set[str] = set()
    refusal: StorageError | None = None
    for path in paths:
        directory = os.path.dirname(path)
        try:
            if directory not in synced:
                if not files.exists(directory):
                    continue  # the partition was moved away meanwhile, with everything in it
                # The new name first: if the old one came back after a crash, half a log would come back with it.
                files.sync_directory(directory)
                synced.add(directory)
            if path.endswith(DELETED):
                files.remove(path)
            else:
                files.remove_tree(path)
        except StorageError as error:
            refusal = error
    if refusal is not None:
        raise refusal
