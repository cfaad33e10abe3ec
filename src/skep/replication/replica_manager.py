"""The partitions of this broker: looked up by name or id, opened when first used, dropped when deleted.

The catalog says which partitions exist and who leads them; the log directory has their files. ``image_changed`` applies
changes of the catalog: partitions are led or followed from then on, deleted topics lose their files in the background,
and logs get changed configs. Partitions with several replicas are opened at once, because their followers or their
leader wait for them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from uuid import UUID

from skep.base.clock import Clock
from skep.base.config.option import declared, parse_into
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, OptionError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition, show_topic_id
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.follower.truncations import Truncations
from skep.replication.image_applier import ImageApplier
from skep.replication.partition.leadership_lease import LeadershipLease
from skep.replication.partition.partition import Partition
from skep.replication.upkeep.checkpoints import Checkpoints
from skep.replication.upkeep.compactor import Compactor
from skep.replication.upkeep.replica_deletion import ReplicaDeletion
from skep.replication.upkeep.segment_deletion import SegmentDeletion
from skep.storage.directory.log_directory import LogDirectory, Work

logger = logging.getLogger(__name__)

_ONLY_BROKER = BrokerId(1)
OPENED_PER_NOTICE = 500

OnRoleChange = Callable[[Partition, PartitionRecord | None], None]
"""Called whenever a partition begins to lead or to follow, or has other replicas; None when it is no longer here."""


class ReplicaManager:
    """Owns the open partitions.

    Between calls every open partition belongs to a topic of the catalog's image, with the id that it was opened with,
    and its log has the topic's config. A partition that is no longer here belongs to ``replica_deletion`` until its
    files are gone.
    """

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        topic_defaults: TopicConfig,
        clock: Clock,
        executor: Executor,
        supervisor: Supervisor,
        node_id: BrokerId = _ONLY_BROKER,
        *,
        syncs: Executor | None = None,
        slicer: Slicer | None = None,
    ) -> None:
        """``syncs`` are the threads that sync logs before an acknowledgement, if they are not ``executor``."""
        self.node_id = node_id
        self.on_role_change: OnRoleChange = _ignore
        self.on_follower_caught_up: Callable[[Partition], None] = _ignore
        self.lease: LeadershipLease | None = None
        self.on_many_opened: Callable[[], object] = lambda: None
        """Called each time that OPENED_PER_NOTICE more partitions or segments have been opened."""
        self._opened = 0
        self._directory = directory
        self._catalog = catalog
        self._clock = clock
        self._executor = executor
        self._syncs = syncs or executor
        self.slicer = slicer or Slicer(clock)
        self._supervisor = supervisor
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._without_role: set[tuple[str, int]] = set()
        """Open partitions that could not take the role that they were last given."""
        self._refusal: str | None = None
        self.topic_defaults = topic_defaults
        self._last_config: tuple[Mapping[str, str], TopicConfig, TopicConfig] = ({}, topic_defaults, topic_defaults)
        self._checkpoints = Checkpoints(directory, executor, self.slicer, self._each_high_watermark)
        self.segment_deletion = SegmentDeletion(clock, executor, supervisor)
        self.compactor = Compactor(directory, clock, executor, self.segment_deletion, self)
        self.replica_deletion = ReplicaDeletion(directory, catalog, executor, supervisor, self)
        self.truncations: Truncations | None = Truncations(
            executor, supervisor, self.write_checkpoints, self._truncation_ended
        )
        self._changes = ImageApplier(
            self.slicer, supervisor, lambda name: catalog.image.topics.get(name), self._carry_out
        )

    async def load(self) -> None:
        """Resumes deletions, moves unknown directories aside and, after a crash, recovers every log."""
        directory, topics = self._directory, self._catalog.image.topics
        self.replica_deletion.resume_at_start()
        directory.set_aside_strays({name: topic.topic_id for name, topic in topics.items()})
        self._supervisor.spawn("remove leftovers", self._in_thread(directory.leftovers()))
        if directory.was_clean:
            return
        wanted = {
            partition: (self.config_of(topics[partition.topic]), topics[partition.topic].topic_id)
            for partition in sorted(directory.partitions)
        }
        logger.info("recovering %d partitions", len(wanted))
        await self._in_thread(lambda: directory.recover_all(wanted, _log_progress))

    async def _in_thread(self, work: Work) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def stop(self) -> None:
        """Returns when no sync and no truncation is in progress, so that the directory can be closed."""
        if self.truncations is not None:
            await self.truncations.all_idle()
        for partition in self.open_partitions():
            await partition.synced()

    # Lookup.

    def partition(self, topic: str, index: int) -> Partition:
        """Returns a partition that this broker leads.

        Raises UNKNOWN_TOPIC_OR_PARTITION when it does not exist, NOT_LEADER_OR_FOLLOWER when another broker leads it,
        and StorageError when its files cannot be opened.
        """
        found = self._partitions.get((topic, index))
        if found is None:
            found = self._open(self._catalog.image.topics.get(topic), topic, index)
        if not found.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"another broker leads {topic}-{index}")
        return found

    def replica(self, topic: str, index: int) -> Partition:
        """Returns a partition that this broker leads or follows."""
        found = self._partitions.get((topic, index))
        return found if found is not None else self._open(self._catalog.image.topics.get(topic), topic, index)

    def name_of(self, topic_id: UUID) -> str:
        topic = self._catalog.image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"topic id {show_topic_id(topic_id)} does not exist")
        return topic.name

    def holds(self, partition: Partition) -> bool:
        """Whether this is still the open partition of its name. To be checked after an await."""
        return self._partitions.get(partition.topic_partition) is partition

    def open_partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def all_partitions(self) -> Iterator[Partition]:
        """Yields every partition that has files. Opens them as the iteration reaches them; those that fail are left
        out."""
        for name, index in self._directory.partitions:
            with contextlib.suppress(KafkaError, StorageError):
                yield self.replica(name, index)

    def compacted_partitions(self) -> Iterator[Partition]:
        """Yields the partitions of compacted topics that have files, in order. Opens them as the iteration reaches
        them."""
        topics = self._catalog.image.topics
        compacted = {name for name, topic in topics.items() if self.config_of(topic).is_compacted}
        for name, index in sorted(one for one in self._directory.partitions if one.topic in compacted):
            with contextlib.suppress(KafkaError, StorageError):
                yield self.replica(name, index)

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have files."""
        return sorted(index for name, index in self._directory.partitions if name == topic)

    def _open(self, topic: TopicRecord | None, name: str, index: int) -> Partition:
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"partition {name}-{index} does not exist")
        record = topic.partitions[index]
        if self.node_id not in record.replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"this broker is not a replica of {name}-{index}")
        if self.replica_deletion.blocks(name, index):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"an earlier partition {name}-{index} is still being deleted"
            )
        topic_partition = TopicPartition(name, index)
        log = self._directory.log(topic_partition, self.config_of(topic), topic.topic_id)
        known = self._directory.high_watermarks.get(topic_partition, log.log_start_offset)
        high_watermark = known if len(record.replicas) > 1 else None
        epoch = LeaderEpoch(record.leader_epoch)
        partition = Partition(log, topic.topic_id, epoch, self._clock, self._syncs, high_watermark)
        partition.truncations = self.truncations
        partition.on_follower_caught_up = self.on_follower_caught_up
        partition.lease = self.lease
        if len(record.replicas) > 1 or record.leader != self.node_id:
            # As if it had no leader, so that any role in the record is new.
            partition.follow(LeaderEpoch(-1))
            self._lead_or_follow(partition, record)
        self._partitions[name, index] = partition
        self._count_opened()
        if len(record.replicas) > 1 or record.leader != self.node_id:
            # Last: the callback may look up the partition.
            self.on_role_change(partition, record)
        return partition

    def _count_opened(self) -> None:
        self._opened += 1
        if self._opened % OPENED_PER_NOTICE == 0:
            self.on_many_opened()

    def _take_role(self, partition: Partition, record: PartitionRecord) -> None:
        if partition.log.is_being_cut:
            return  # ``_truncation_ended`` calls this again
        self._without_role.add(partition.topic_partition)
        self._lead_or_follow(partition, record)
        self.on_role_change(partition, record)
        self._without_role.discard(partition.topic_partition)

    def _lead_or_follow(self, partition: Partition, record: PartitionRecord) -> None:
        if record.leader == self.node_id:
            partition.lead(self.node_id, record)
        else:
            partition.follow(record.leader_epoch)

    def _truncation_ended(self, partition: Partition) -> None:
        """Takes the role that the partition may have been given while its log was being truncated."""
        name, index = partition.topic_partition
        topic = self._catalog.image.topics.get(name)
        if topic is not None and index < len(topic.partitions) and self.holds(partition):
            self._take_role(partition, topic.partitions[index])

    def config_of(self, topic: TopicRecord) -> TopicConfig:
        """Returns the topic's options over the broker's defaults; the same object for the same options in a row."""
        given, defaults, config = self._last_config
        if given is not topic.config or defaults is not self.topic_defaults:
            config = self._parsed(topic.config)
            self._last_config = (topic.config, self.topic_defaults, config)
        return config

    def _parsed(self, given: Mapping[str, str]) -> TopicConfig:
        try:
            return parse_into(self.topic_defaults, given)
        except OptionError:
            # Set by a newer broker. The options that this one knows apply.
            known = declared(self.topic_defaults)
            return parse_into(self.topic_defaults, {name: text for name, text in given.items() if name in known})

    # The disk.

    async def write_checkpoints(self) -> None:
        """Writes recovery points, log start offsets and high watermarks as they are now. Durable when this returns."""
        await self._checkpoints.write()

    def _each_high_watermark(self) -> Iterator[tuple[TopicPartition, Offset]]:
        for partition in self.open_partitions():
            if self.holds(partition):
                yield partition.topic_partition, partition.high_watermark

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Returns the high watermarks of the open partitions; those of others have not changed."""
        return {partition.topic_partition: partition.high_watermark for partition in self._partitions.values()}

    @property
    def data_dir(self) -> str:
        return self._directory.path

    def disk_bytes(self) -> tuple[int, int]:
        """Returns the size of the data directory's disk, and the free bytes on it."""
        space = self._directory.disk_space()
        return space.total_bytes, space.total_bytes - space.used_bytes

    def refuse_writes(self, reason: str | None) -> None:
        """Refuses every produce request with this reason from now on; None accepts them again."""
        self._refusal = reason

    def writable_partition(self, topic: str, index: int) -> Partition:
        """``partition`` for a produce request: raises StorageError while writes are refused."""
        found = self._partitions.get((topic, index))
        if found is None or not found.is_leader:
            found = self.partition(topic, index)
        if self._refusal is not None:
            raise StorageError(self._refusal)
        return found

    def delete_records_before(self, partition: Partition, offset: Offset) -> int:
        """DeleteRecords: moves the log start, and deletes segments that lie wholly below it."""
        low_watermark = partition.log.delete_records_before(offset)
        if self.segment_deletion.delete_expired(partition):
            self._count_opened()  # a new segment replaces those that are deleted
        partition.wake_all()
        return low_watermark

    # The catalog.

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Applies a change of the image, in the same step of the event loop as far as time permits.

        When this returns, deleted topics are not found any more, and logs have their new configs.
        """
        if new.topics is old.topics:
            return
        for name, topic in old.topics.items():
            current = new.topics.get(name)
            if current is topic:
                continue
            if current is None or current.topic_id != topic.topic_id:
                self._drop(topic)
            elif current.config != topic.config:
                self._configure(current)
        for name, topic in new.topics.items():
            if (before := old.topics.get(name)) is not topic:
                self._changes.changed(name, before)
        self._changes.run()

    def take_roles(self) -> "asyncio.Task[None] | None":
        """Opens the partitions with several replicas when the broker starts. Returns None when done, otherwise the
        task."""
        for name in self._catalog.image.topics:
            self._changes.changed(name, None)
        return self._changes.run()

    def _carry_out(self, topic: TopicRecord, index: int, known: PartitionRecord | None) -> bool:
        """Leads or follows one partition according to its record. Returns whether there was anything to do.

        ``known`` is the record that was applied before.
        """
        record = topic.partitions[index]
        is_here = self.node_id in record.replicas
        partition = self._partitions.get((topic.name, index))
        is_known = (known is record or known == record) and (topic.name, index) not in self._without_role
        if is_known and (partition is not None) == is_here:
            return False
        try:
            if partition is not None and is_here:
                self._take_role(partition, record)
            elif is_here and len(record.replicas) > 1:
                self._open(topic, topic.name, index)
            elif not is_here:
                self._leave(topic.name, index)
            else:
                return False
        except (KafkaError, StorageError) as error:
            # Retried when the partition is used, at the next change, and by ``retry_failed_opens``.
            level = logging.ERROR if isinstance(error, StorageError) else logging.WARNING
            logger.log(level, "%s-%d: %s", topic.name, index, error)
        return True

    def _leave(self, name: str, index: int) -> None:
        """The partition is on other brokers from now on: its files are removed, if there are any."""
        topic_partition = TopicPartition(name, index)
        partition = self._partitions.pop((name, index), None)
        self._without_role.discard(topic_partition)
        if partition is not None:
            self.dropped(partition)
        elif not self._directory.has(topic_partition):
            return
        self.replica_deletion.left(topic_partition, partition)

    def reopen(self, name: str, index: int | None) -> None:
        """Opens partitions whose directories were occupied by an earlier topic or replica of the same name."""
        topic = self._catalog.image.topics.get(name)
        if topic is None or self.replica_deletion.is_deleting(name):
            return
        if index is None:
            # As an unchanged record: partitions that are open have their role.
            self._changes.recheck(topic)
            self._changes.run()
        elif index < len(topic.partitions):
            self._carry_out(topic, index, topic.partitions[index])

    def retry_failed_opens(self) -> None:
        """Retries to open partitions with several replicas that could not be opened, and to take roles that failed."""
        for topic in self._catalog.image.topics.values():
            self._changes.recheck(topic)
        self._changes.run()

    def may_have_lost(self, topic: TopicRecord, index: int) -> bool:
        """Whether records may be missing here that this broker once acknowledged, to clients or to a leader."""
        if self._directory.may_have_lost_synced_data:
            return True
        try:
            log = self._directory.log(TopicPartition(topic.name, index), self.config_of(topic), topic.topic_id)
        except StorageError as error:
            logger.error("cannot open %s-%d: %s", topic.name, index, error)
            return True
        return log.lost_data or (self._directory.may_have_lost_data and not log.was_synced)

    async def quiesce(self, partition: Partition) -> None:
        """Returns when nothing works on the files of a partition that is to be truncated, or that was removed."""
        await self.compactor.abandon(partition)
        await self.segment_deletion.abandon(partition)
        if self.truncations is not None:
            await self.truncations.idle(partition)
        await partition.synced()

    async def end_truncation(self, partition: Partition) -> None:
        """Retries a truncation that the disk refused. Until it succeeds, the log accepts nothing.

        The log already reports its new end, so its leader has no reason any more to have it truncated.
        """
        await self.quiesce(partition)
        if self.holds(partition) and partition.log.is_half_cut and not partition.log.is_being_cut:
            try:
                cut = partition.truncate_to(partition.log.log_end_offset)
                if cut is not None:
                    await cut
            except StorageError as error:
                logger.error("%s: cannot be truncated yet: %s", partition.topic_partition, error)

    async def remove_leftovers(self) -> None:
        """Removes the files that truncations have left."""
        await self._in_thread(self._directory.leftovers())

    def _configure(self, topic: TopicRecord) -> None:
        config = self.config_of(topic)
        for index in range(len(topic.partitions)):
            if (partition := self._partitions.get((topic.name, index))) is not None:
                partition.log.configure(config)
                if partition.is_unconfirmed:
                    # A lower min.insync.replicas makes the high watermark wait for the ISR to be written.
                    self.on_follower_caught_up(partition)

    def defaults_changed(self, defaults: TopicConfig) -> None:
        """The broker's defaults for topics have changed: every open log gets its config again."""
        self.topic_defaults = defaults
        for topic in self._catalog.image.topics.values():
            self._configure(topic)

    def _drop(self, topic: TopicRecord) -> None:
        """Removes the partitions at once; their files are deleted in the background."""
        pop, name = self._partitions.pop, topic.name
        dropped = [found for index in range(len(topic.partitions)) if (found := pop((name, index), None)) is not None]
        self._without_role.difference_update(partition.topic_partition for partition in dropped)
        self.replica_deletion.topic_deleted(topic, dropped)

    def dropped(self, partition: Partition) -> None:
        """The partition was removed: wakes those that wait for it, and stops following its leader."""
        partition.follow(partition.leader_epoch)
        self.on_role_change(partition, None)


def _ignore(partition: Partition, record: PartitionRecord | None = None) -> None:
    """The default callback."""


def _log_progress(done: int, total: int) -> None:
    if done % 1000 == 0 or done == total:
        logger.info("recovered %d of %d partitions", done, total)
