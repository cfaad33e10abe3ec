"""All partitions that this broker holds: found by name or id, opened when first asked for, dropped when deleted.

The catalog says which partitions there are and who leads them; the log directory has their files. What changes in the
catalog arrives here through ``image_changed``: partitions are led or followed from now on, deleted topics lose their
files in the background, changed configs reach their logs. Partitions with several replicas are opened at once, for
their followers or their leader are waiting.
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
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.follower.truncations import Truncations
from skep.replication.image_applier import ImageChanges
from skep.replication.partition.leadership_lease import LeadershipLease
from skep.replication.partition.partition import Partition
from skep.replication.upkeep.checkpoints import Checkpoints
from skep.replication.upkeep.compactor import Compactor
from skep.replication.upkeep.replica_deletion import Departures
from skep.replication.upkeep.segment_deletion import Cleaner
from skep.storage.directory.log_directory import LogDirectory, Work

logger = logging.getLogger(__name__)

_ONLY_BROKER = BrokerId(1)
OPENED_PER_NOTICE = 500

OnRole = Callable[[Partition, PartitionRecord | None], None]
"""Told whenever a partition is led or followed from now on, or has other replicas; None: it is no longer here."""


class Replicas:
    """Owns the open partitions.

    Between calls every open partition belongs to a topic of the catalog's image, under the id that it was opened with,
    and its log has the topic's config. What is no longer here is with ``departures`` until its files are gone.
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
        """``syncs`` are the threads that sync logs before an acknowledgement, if these are not ``executor``."""
        self.node_id = node_id
        self.on_role: OnRole = _ignore
        self.on_follower_caught_up: Callable[[Partition], None] = _ignore
        self.lease: LeadershipLease | None = None
        self.on_many_opened: Callable[[], object] = lambda: None
        """Told each time that OPENED_PER_NOTICE partitions or segments more have been opened."""
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
        """Open partitions that could not take the role that they were given last."""
        self._refusal: str | None = None
        self.topic_defaults = topic_defaults
        self._last_config: tuple[Mapping[str, str], TopicConfig, TopicConfig] = ({}, topic_defaults, topic_defaults)
        self._checkpoints = Checkpoints(directory, executor, self.slicer, self._each_high_watermark)
        self.cleaner = Cleaner(clock, executor, supervisor)
        self.compactor = Compactor(directory, clock, executor, self.cleaner, self)
        self.departures = Departures(directory, catalog, executor, supervisor, self)
        self.truncations: Truncations | None = Truncations(executor, supervisor, self.write_checkpoints, self._was_cut)
        self._changes = ImageChanges(
            self.slicer, supervisor, lambda name: catalog.image.topics.get(name), self._carry_out
        )

    async def load(self) -> None:
        """Finishes deletions, sets strange directories aside, and after a crash recovers every log."""
        directory, topics = self._directory, self._catalog.image.topics
        self.departures.finish_at_start()
        directory.set_aside_strays({name: topic.topic_id for name, topic in topics.items()})
        self._supervisor.spawn("remove leftovers", self._in_thread(directory.leftovers()))
        if directory.was_clean:
            return
        wanted = {
            partition: (self.config_of(topics[partition.topic]), topics[partition.topic].topic_id)
            for partition in sorted(directory.partitions)
        }
        logger.info("recovering %d partitions", len(wanted))
        await self._in_thread(lambda: directory.recover_all(wanted, _say_progress))

    async def _in_thread(self, work: Work) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def stop(self) -> None:
        """Returns when no sync or cut is under way, so that the directory can be closed."""
        if self.truncations is not None:
            await self.truncations.all_idle()
        for partition in self.open_partitions():
            await partition.synced()

    # Finding partitions.

    def partition(self, topic: str, index: int) -> Partition:
        """One that this broker leads.

        UNKNOWN_TOPIC_OR_PARTITION when there is none, NOT_LEADER_OR_FOLLOWER when another broker leads it; StorageError
        when its files cannot be opened.
        """
        found = self._partitions.get((topic, index))
        if found is None:
            found = self._open(self._catalog.image.topics.get(topic), topic, index)
        if not found.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"another broker leads {topic}-{index}")
        return found

    def replica(self, topic: str, index: int) -> Partition:
        """One that this broker leads or follows."""
        found = self._partitions.get((topic, index))
        return found if found is not None else self._open(self._catalog.image.topics.get(topic), topic, index)

    def name_of(self, topic_id: UUID) -> str:
        topic = self._catalog.image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"there is no topic with id {topic_id}")
        return topic.name

    def holds(self, partition: Partition) -> bool:
        """Whether it is still the one under its name; asked by those who have awaited since they got it."""
        return self._partitions.get(partition.topic_partition) is partition

    def open_partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def all_partitions(self) -> Iterator[Partition]:
        """Every partition that has files; opened as the iteration gets to them, those that fail are left out."""
        for name, index in self._directory.partitions:
            with contextlib.suppress(KafkaError, StorageError):
                yield self.replica(name, index)

    def compacted_partitions(self) -> Iterator[Partition]:
        """Those of compacted topics that have files, in their order; opened as the iteration gets to them."""
        topics = self._catalog.image.topics
        compacted = {name for name, topic in topics.items() if self.config_of(topic).is_compacted}
        for name, index in sorted(one for one in self._directory.partitions if one.topic in compacted):
            with contextlib.suppress(KafkaError, StorageError):
                yield self.replica(name, index)

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have been written to."""
        return sorted(index for name, index in self._directory.partitions if name == topic)

    def _open(self, topic: TopicRecord | None, name: str, index: int) -> Partition:
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no partition {name}-{index}")
        record = topic.partitions[index]
        if self.node_id not in record.replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{name}-{index} is on other brokers")
        if self.departures.holds_up(name, index):
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"an earlier {name}-{index} is being deleted")
        topic_partition = TopicPartition(name, index)
        log = self._directory.log(topic_partition, self.config_of(topic), topic.topic_id)
        known = self._directory.high_watermarks.get(topic_partition, log.log_start_offset)
        high_watermark = known if len(record.replicas) > 1 else None
        epoch = LeaderEpoch(record.leader_epoch)
        partition = Partition(log, topic.topic_id, epoch, self._clock, self._syncs, high_watermark)
        partition.cutter = self.truncations
        partition.on_follower_caught_up = self.on_follower_caught_up
        partition.lease = self.lease
        if len(record.replicas) > 1 or record.leader != self.node_id:
            # As if led by nobody, so that whatever the record says is news.
            partition.follow(LeaderEpoch(-1))
            self._lead_or_follow(partition, record)
        self._partitions[name, index] = partition
        self._count_opened()
        if len(record.replicas) > 1 or record.leader != self.node_id:
            # Last: whoever is told may ask for the partition.
            self.on_role(partition, record)
        return partition

    def _count_opened(self) -> None:
        self._opened += 1
        if self._opened % OPENED_PER_NOTICE == 0:
            self.on_many_opened()

    def _take_role(self, partition: Partition, record: PartitionRecord) -> None:
        if partition.log.is_being_cut:
            return  # ``_was_cut`` does it
        self._without_role.add(partition.topic_partition)
        self._lead_or_follow(partition, record)
        self.on_role(partition, record)
        self._without_role.discard(partition.topic_partition)

    def _lead_or_follow(self, partition: Partition, record: PartitionRecord) -> None:
        if record.leader == self.node_id:
            partition.lead(self.node_id, record)
        else:
            partition.follow(record.leader_epoch)

    def _was_cut(self, partition: Partition) -> None:
        """Takes the role that the partition may have been given while its log was being cut."""
        name, index = partition.topic_partition
        topic = self._catalog.image.topics.get(name)
        if topic is not None and index < len(topic.partitions) and self.holds(partition):
            self._take_role(partition, topic.partitions[index])

    def config_of(self, topic: TopicRecord) -> TopicConfig:
        """The topic's own options over the broker's defaults; the same object for the same ones asked for in a row."""
        given, defaults, config = self._last_config
        if given is not topic.config or defaults is not self.topic_defaults:
            config = self._parsed(topic.config)
            self._last_config = (topic.config, self.topic_defaults, config)
        return config

    def _parsed(self, given: Mapping[str, str]) -> TopicConfig:
        try:
            return parse_into(self.topic_defaults, given)
        except OptionError:
            # Set by a newer broker. What this one knows holds.
            known = declared(self.topic_defaults)
            return parse_into(self.topic_defaults, {name: text for name, text in given.items() if name in known})

    # The disk.

    async def write_checkpoints(self) -> None:
        """Recovery points, log starts and high watermarks as they are now, durable when this returns."""
        await self._checkpoints.write()

    def _each_high_watermark(self) -> Iterator[tuple[TopicPartition, Offset]]:
        for partition in self.open_partitions():
            if self.holds(partition):
                yield partition.topic_partition, partition.high_watermark

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Of the open partitions; those that were not opened stay what they were."""
        return {partition.topic_partition: partition.high_watermark for partition in self._partitions.values()}

    @property
    def data_dir(self) -> str:
        return self._directory.path

    def disk_bytes(self) -> tuple[int, int]:
        """The size of the disk under the data directory, and what is free of it."""
        space = self._directory.disk_space()
        return space.total_bytes, space.total_bytes - space.used_bytes

    def refuse_writes(self, reason: str | None) -> None:
        """From now on every produce is refused with this reason; None: no longer."""
        self._refusal = reason

    def writable_partition(self, topic: str, index: int) -> Partition:
        """``partition`` for a produce: StorageError while writes are refused."""
        found = self._partitions.get((topic, index))
        if found is None or not found.is_leader:
            found = self.partition(topic, index)
        if self._refusal is not None:
            raise StorageError(self._refusal)
        return found

    def delete_records_before(self, partition: Partition, offset: Offset) -> int:
        """DeleteRecords: the log start moves, and segments wholly below it go."""
        low_watermark = partition.log.delete_records_before(offset)
        if self.cleaner.delete_expired(partition):
            self._count_opened()  # a segment, in the place of those that go
        partition.wake_all()
        return low_watermark

    # The catalog.

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follows the catalog: in the same step of the event loop, as far as there is time in it.

        Deleted topics are not found any more when this returns, and logs have their new configs.
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
        """Opens what has several replicas, when the broker starts. None: done; otherwise the task that does it."""
        for name in self._catalog.image.topics:
            self._changes.changed(name, None)
        return self._changes.run()

    def _carry_out(self, topic: TopicRecord, index: int, known: PartitionRecord | None) -> bool:
        """Leads or follows one partition as its record says now; whether there was anything to do.

        ``known`` is the record that it was told before.
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
            # Tried again by whoever asks for it, by the next change, and by ``open_what_failed``.
            logger.error("%s-%d: %s", topic.name, index, error)
        return True

    def _leave(self, name: str, index: int) -> None:
        """The partition is on other brokers from now on: its files go, if there are any."""
        topic_partition = TopicPartition(name, index)
        partition = self._partitions.pop((name, index), None)
        self._without_role.discard(topic_partition)
        if partition is not None:
            self.dropped(partition)
        elif not self._directory.has(topic_partition):
            return
        self.departures.left(topic_partition, partition)

    def open_what_waited(self, name: str, index: int | None) -> None:
        """The files of an earlier topic or replica of this name are out of the way of one that may be there again."""
        topic = self._catalog.image.topics.get(name)
        if topic is None or self.departures.is_going(name):
            return
        if index is None:
            # As if nothing had changed: those that are open have their role.
            self._changes.look_again(topic)
            self._changes.run()
        elif index < len(topic.partitions):
            self._carry_out(topic, index, topic.partitions[index])

    def open_what_failed(self) -> None:
        """Tries again to open what has several replicas and could not be opened, and to take roles that failed."""
        for topic in self._catalog.image.topics.values():
            self._changes.look_again(topic)
        self._changes.run()

    def may_have_lost(self, topic: TopicRecord, index: int) -> bool:
        """Whether records may be missing here that this broker once acknowledged, to clients or to a leader."""
        if self._directory.may_have_lost_synced_data:
            return True
        try:
            log = self._directory.log(TopicPartition(topic.name, index), self.config_of(topic), topic.topic_id)
        except StorageError as error:
            logger.error("%s-%d cannot be opened: %s", topic.name, index, error)
            return True
        return log.lost_data or (self._directory.may_have_lost_data and not log.was_synced)

    async def let_go(self, partition: Partition) -> None:
        """Returns when nothing works on the files of a partition that is to be cut, or that is no longer found."""
        await self.compactor.abandon(partition)
        await self.cleaner.abandon(partition)
        if self.truncations is not None:
            await self.truncations.idle(partition)
        await partition.synced()

    async def end_truncation(self, partition: Partition) -> None:
        """Tries again to cut a log that the disk kept from being cut: until then it takes nothing.

        The log ends already where it is to end, so its leader sees no reason any more to have it cut.
        """
        await self.let_go(partition)
        if self.holds(partition) and partition.log.is_half_cut and not partition.log.is_being_cut:
            try:
                cut = partition.truncate_to(partition.log.log_end_offset)
                if cut is not None:
                    await cut
            except StorageError as error:
                logger.error("%s: cannot be cut yet: %s", partition.topic_partition, error)

    async def remove_leftovers(self) -> None:
        """Files of logs that were cut."""
        await self._in_thread(self._directory.leftovers())

    def _configure(self, topic: TopicRecord) -> None:
        config = self.config_of(topic)
        for index in range(len(topic.partitions)):
            if (partition := self._partitions.get((topic.name, index))) is not None:
                partition.log.configure(config)

    def defaults_changed(self, defaults: TopicConfig) -> None:
        """The broker's defaults for topics changed: every open log gets its config anew."""
        self.topic_defaults = defaults
        for topic in self._catalog.image.topics.values():
            self._configure(topic)

    def _drop(self, topic: TopicRecord) -> None:
        """Takes the partitions away at once; the rest is done in the background."""
        pop, name = self._partitions.pop, topic.name
        dropped = [found for index in range(len(topic.partitions)) if (found := pop((name, index), None)) is not None]
        self._without_role.difference_update(partition.topic_partition for partition in dropped)
        self.departures.topic_deleted(topic, dropped)

    def dropped(self, partition: Partition) -> None:
        """It is no longer found: those who wait for it, or follow its leader, are told."""
        partition.follow(partition.leader_epoch)
        self.on_role(partition, None)


def _ignore(partition: Partition, record: PartitionRecord | None = None) -> None:
    """There is nobody to tell."""


def _say_progress(done: int, total: int) -> None:
    if done % 1000 == 0 or done == total:
        logger.info("recovered %d of %d partitions", done, total)
