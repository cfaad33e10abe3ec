"""One data directory: its lock, its clean-stop marker, its checkpoints, and the logs in it.

A stop is clean when every log was flushed and the marker written after that; the marker goes at the next start before
anything else is written. The checkpoints hold each log's recovery point and log start; they may lag behind, which
costs a recovery some time.

Nothing is read of a partition before somebody asks for its log.
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
from skep.storage.checkpoints import encode_checkpoint
from skep.storage.directory.checkpoint_files import CheckpointFiles, Offsets
from skep.storage.directory.directory_identity import boot_id_in, claim, current_boot_id, may_have_lost_data
from skep.storage.directory.log_shutdown import close_logs, remove_leftovers
from skep.storage.file_names import (
    BOOT_ID,
    CLEAN_SHUTDOWN,
    CLEANED_UP_TO,
    DELETE_SUFFIX,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    STRAY_SUFFIX,
    away_name,
    decode_partition_metadata,
    parse_partition_name,
)
from skep.storage.keeper import Keeper
from skep.storage.log.log import Log
from skep.storage.log.log_content import empty_content
from skep.storage.log.recovery import LogOnDisk, load_log
from skep.storage.producers.producers import MAX_PRODUCERS
from skep.storage.segment.batch_scan import NEVER

logger = logging.getLogger(__name__)

CHECKPOINTS_PER_STEP = 50

Work = Callable[[], None]
"""Something to be run in a thread; StorageError when the disk refuses."""


class LogDirectory:
    """Owns everything under ``path`` from ``open`` to ``close``.

    ``_recovery_points`` and ``_log_starts`` are those read at the start, for logs that have not been opened since.
    ``_cleaned_up_to`` is where the last pass of compaction over each log ended; not so if its file was lost, which
    ``_has_cleaned_up_to`` says.
    ``_missing`` are partitions that a checkpoint speaks of and that have no files; ``_truncating`` is where a log is
    about to end, until it does. ``high_watermarks`` are those read at the start, or given since. ``_lost_power`` is
    ``may_have_lost_data`` as it was at the start, for logs that are opened after the losses were settled.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        clock: Clock,
        max_producers: int = MAX_PRODUCERS,
        boot_id: str | None = None,
    ) -> None:
        """``boot_id`` is for tests: which run of the machine this is, if not the one that the kernel tells."""
        self.path = path
        self._max_producers = max_producers
        self.was_clean = True
        self.may_have_lost_data = True
        self.may_have_lost_synced_data = True
        self._lost_power = False
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        self._boot_id = boot_id
        self._files = files
        self._clock = clock
        self._lock: DirectoryLock | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._on_disk: set[TopicPartition] = set()
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}
        self._cleaned_up_to: dict[TopicPartition, Offset] = {}
        self._has_cleaned_up_to = True
        self._missing: set[TopicPartition] = set()
        self._truncating: dict[TopicPartition, Offset] = {}
        self._checkpoints = CheckpointFiles(files, path)
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
        self.high_watermarks = self._read_checkpoint(HIGH_WATERMARKS)
        self._has_cleaned_up_to = CLEANED_UP_TO in names or not self._on_disk
        self._cleaned_up_to = self._read_checkpoint(CLEANED_UP_TO)
        # A directory without partitions has nothing to recover, whatever else there is.
        self.was_clean = CLEAN_SHUTDOWN in names or not self._on_disk
        if not self.was_clean:
            logger.warning("%s: was not stopped cleanly, logs are checked from their recovery points", self.path)
        if CLEANED_UP_TO not in names and not self._on_disk:
            # So that from now on a missing file means that it was lost.
            self._files.write_atomically(self._name(CLEANED_UP_TO), encode_checkpoint({}))
        self._look_for_losses(names)
        self._files.remove(self._name(CLEAN_SHUTDOWN))
        self._files.sync_directory(self.path)

    def _look_for_losses(self, names: Collection[str]) -> None:
        """Before the clean-stop marker goes."""
        if self._boot_id is None:
            self._boot_id = current_boot_id()
        earlier = boot_id_in(self._files, self._name(BOOT_ID))
        self.may_have_lost_data = may_have_lost_data(names, bool(self._on_disk), earlier, self._boot_id)
        # Without the directory's identity nobody knows which disk this is, or how old a copy of one.
        self.may_have_lost_synced_data = self.may_have_lost_data and META_PROPERTIES not in names
        self._lost_power = self.may_have_lost_data
        if self.may_have_lost_data:
            self._files.remove(self._name(BOOT_ID))
        elif earlier != self._boot_id:
            self._files.write_atomically(self._name(BOOT_ID), self._boot_id.encode())

    def _note_loss(self) -> None:
        """Should nobody live to deal with what one log has lost, the next start takes all for lost."""
        self._files.remove(self._name(BOOT_ID))
        self._files.sync_directory(self.path)

    def losses_settled(self) -> None:
        """Whoever had to know that data may be lost, here or in an open log, has been told, for good."""
        assert self._boot_id is not None, "the directory is open"
        if not self._files.exists(self._name(BOOT_ID)):
            self._files.write_atomically(self._name(BOOT_ID), self._boot_id.encode())
        self.may_have_lost_data = self.may_have_lost_synced_data = False

    def check_identity(self, cluster_id: str, node_id: int) -> None:
        """StartupError when the directory belongs to another cluster or broker; without an owner, it is this one's."""
        try:
            claim(self._files, self.path, cluster_id, node_id)
        except StorageError as error:
            raise StartupError(f"data directory {error}") from error

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        offsets = self._checkpoints.read(name)
        if offsets is None:
            self._has_cleaned_up_to &= name != CLEANED_UP_TO
            return {}
        missing = offsets.keys() - self._on_disk
        for partition in missing:
            self._checkpoints.forget(partition)
        self._missing |= missing
        return {partition: offset for partition, offset in offsets.items() if partition in self._on_disk}

    @property
    def partitions(self) -> set[TopicPartition]:
        """Those that have a directory on disk or an open log."""
        return self._on_disk | self._logs.keys()

    def has(self, partition: TopicPartition) -> bool:
        """Whether it is one of ``partitions``."""
        return partition in self._on_disk or partition in self._logs

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
        """Removes what earlier deletions left behind, and what logs have given up since."""
        paths, self._leftovers = self._leftovers, []
        return self.removal(paths)

    def log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        """The partition's log, opened (and after a crash recovered) when it is first asked for.

        StorageError when that fails; other logs are not concerned, and it can be asked for again.
        """
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = self._open_log(partition, config, topic_id)
        elif log.topic_id != topic_id:
            raise StorageError(f"{partition}: the files of a deleted topic of this name are not gone yet")
        return log

    def _open_log(self, partition: TopicPartition, config: TopicConfig, topic_id: uuid.UUID) -> Log:
        path = self._name(str(partition))
        if partition not in self._on_disk and partition not in self._missing:
            # Never written to: nothing is there to be looked at.
            content = empty_content(self._clock.now_ms(), self._max_producers)
            return Log(self._files, path, partition, topic_id, config, content, self._keeper_for(partition))
        if partition in self._on_disk and self.topic_id_of(partition) not in (topic_id, None):
            self._set_aside(partition, "its topic was deleted and created anew")
        recovery_point = None if self.was_clean else self._recovery_points.get(partition, Offset(0))
        log_start = self._log_starts.get(partition, Offset(0))
        gaps_below = self._gaps_below(partition, config, recovery_point)
        if partition in self._missing:
            self._note_loss()
        disk = LogOnDisk(
            self._files,
            path,
            partition,
            recovery_point,
            log_start,
            self._max_producers,
            gaps_below,
            self._note_loss,
            self._discard,
            self._lost_power,
        )
        content = load_log(disk, config.index_interval_bytes, self._clock.now_ms())
        log = Log(self._files, path, partition, topic_id, config, content, self._keeper_for(partition))
        log.lost_data |= partition in self._missing
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

    # What logs ask for, on the event loop's thread; see ``Keeper``.

    def _keeper_for(self, partition: TopicPartition) -> Keeper:
        return Keeper(
            partial(self._before_creation, partition),
            partial(self._before_truncation, partition),
            self.write_checkpoints,
            partial(self._after_truncation, partition),
            partial(self._moved_away, partition),
            self._discard,
        )

    def _before_creation(self, partition: TopicPartition) -> None:
        """What the checkpoints on disk say of an earlier partition of that name must not be taken for this one's."""
        if self._checkpoints.may_speak_of(partition):
            self.write_checkpoints()
        self._on_disk.add(partition)

    def _before_truncation(self, partition: TopicPartition, end_offset: Offset) -> bool:
        """Were a recovery point left past the end, a crash would find what is appended there next, and not check it."""
        self._truncating[partition] = end_offset
        must_write = self._logs[partition].flushed_offset > end_offset
        for offsets in (self._cleaned_up_to, self.high_watermarks):
            if offsets.get(partition, end_offset) > end_offset:
                offsets[partition] = end_offset
                must_write = True
        return must_write

    def _after_truncation(self, partition: TopicPartition) -> None:
        self._truncating.pop(partition, None)

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
        self._files.rename(self._name(str(partition)), self._name(away))
        self._forget(partition)

    def delete_partition(self, partition: TopicPartition) -> str | None:
        """Takes the partition away under this name at once; returns the path that its files have now, if there are any.

        They are to be removed with ``removal``. No flush of its log may be under way: it would write into a directory
        that is no longer its own. ``away_path``, ``move`` and ``deleted`` are its steps.
        """
        away = self.away_path(partition)
        if away is not None:
            self.move(partition, away)
        self.deleted(partition, away)
        return away

    def away_path(self, partition: TopicPartition) -> str | None:
        """Where its directory is moved to when it is deleted; None when it has none."""
        return self._name(away_name(partition, DELETE_SUFFIX)) if partition in self._on_disk else None

    def move(self, partition: TopicPartition, away: str) -> None:
        """In any thread, while nobody opens the partition: a rename waits while the file system writes its journal."""
        self._files.rename(self._name(str(partition)), away)

    def deleted(self, partition: TopicPartition, away: str | None) -> None:
        """Forgets the partition, whose directory is at ``away`` now; None: it has none, or it could not be moved."""
        if (log := self._logs.pop(partition, None)) is not None:
            log.release()
            if away is not None:
                log.moved_to(away)
        if away is not None:
            self._forget(partition)

    def removal(self, paths: Iterable[str]) -> Work:
        """Removes what deleted partitions have left, many with one sync of the directory."""
        return lambda: remove_leftovers(self._files, paths)

    def _forget(self, partition: TopicPartition) -> None:
        if self._truncating.pop(partition, None) != 0 or partition in self._cleaned_up_to:
            self._checkpoints.forget(partition)
        self._on_disk.discard(partition)
        self._missing.discard(partition)
        for offsets in (self._recovery_points, self._log_starts, self._cleaned_up_to, self.high_watermarks):
            offsets.pop(partition, None)

    def must_write_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether those on disk may still speak of partitions that were deleted; the next of the same name has to wait
        for others."""
        return any(map(self._checkpoints.may_speak_of, partitions))

    def checkpoint_in_slices(
        self, high_watermarks: Iterable[tuple[TopicPartition, Offset]] = ()
    ) -> Generator[None, None, Work]:
        """Collects the recovery points and log starts, and the high watermarks as they are given; those of partitions
        that are not among these stay as they were given last. Returns the work that writes them.

        What is written is at least as new as the call that takes the first slice.
        """
        number = self._checkpoints.begin()
        for count, (partition, high_watermark) in enumerate(high_watermarks):
            if partition in self._on_disk:
                self.high_watermarks[partition] = min(high_watermark, self._truncating.get(partition, high_watermark))
            if count % CHECKPOINTS_PER_STEP == 0:
                yield
        recovery_points, log_starts = dict(self._recovery_points), dict(self._log_starts)
        for count, (partition, log) in enumerate(list(self._logs.items())):
            if self._logs.get(partition) is log:
                self._collect(partition, log, recovery_points, log_starts)
            if count % CHECKPOINTS_PER_STEP == 0:
                yield
        return self._checkpoints.work(
            number,
            {
                LOG_STARTS: log_starts,
                RECOVERY_POINTS: recovery_points,
                CLEANED_UP_TO: dict(self._cleaned_up_to),
                # One that is about to begin anew is not spoken of: a checkpoint is then not to be written after that.
                HIGH_WATERMARKS: {p: hw for p, hw in self.high_watermarks.items() if self._truncating.get(p) != 0},
            },
        )

    def _collect(self, partition: TopicPartition, log: Log, recovery_points: Offsets, log_starts: Offsets) -> None:
        recovery_points.pop(partition, None)
        log_starts.pop(partition, None)
        if log.is_being_cut and partition not in self._on_disk:
            return  # begins anew, and has no directory just now
        end_offset = self._truncating.get(partition)
        flushed_offset = log.flushed_offset if end_offset is None else min(log.flushed_offset, end_offset)
        if flushed_offset > 0:
            recovery_points[partition] = flushed_offset
        # Also of one that is a segment's beginning: it says that what lay before was deleted, and not lost.
        if log.log_start_offset > 0 and end_offset != 0:
            log_starts[partition] = log.log_start_offset

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """``checkpoint_work``, here and now."""
        self.checkpoint_work(high_watermarks)()

    def checkpoint_work(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> Work:
        """``checkpoint_in_slices`` in one."""
        collecting = self.checkpoint_in_slices((high_watermarks or {}).items())
        while True:
            try:
                next(collecting)
            except StopIteration as collected:
                work: Work = collected.value
                return work

    def close(self, high_watermarks: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Flushes all logs, writes the checkpoints and the marker. No flush may be under way.

        When the disk refuses, what could be flushed is, and the next start recovers the rest.
        """
        is_clean = close_logs(self._logs.values()) and (self.was_clean or self._on_disk <= self._logs.keys())
        try:
            self.write_checkpoints(high_watermarks)
            if is_clean:
                self._files.write_atomically(self._name(CLEAN_SHUTDOWN), b'{"version":0}')
        except StorageError as error:
            logger.error("%s: no clean stop: %s", self.path, error)
        self._logs.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
