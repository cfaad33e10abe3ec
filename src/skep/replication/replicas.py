"""All partitions that this broker holds: found by name or id, opened when first asked for, dropped when deleted.

The catalog says which partitions there are and who leads them; the log directory has their files. What changes in the
catalog arrives here through ``image_changed``: partitions are led or followed from now on, deleted topics lose their
files in the background, changed configs reach their logs. Partitions with several replicas are opened at once, for
their followers or their leader are waiting.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from uuid import UUID

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError, OptionError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.options import declared, parse_into
from skep.base.tasks import Supervisor
from skep.base.topic_config import TopicConfig
from skep.metadata.catalog import Catalog
from skep.metadata.image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.cleaning import Cleaner
from skep.replication.compacting import Compactor
from skep.replication.departing import Departures
from skep.replication.partition import Partition
from skep.storage.directory import LogDirectory, Work

logger = logging.getLogger(__name__)

_ONLY_BROKER = BrokerId(1)

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
    ) -> None:
        self.node_id = node_id
        self.on_role: OnRole = _ignore
        self.on_follower_caught_up: Callable[[Partition], None] = _ignore
        self._directory = directory
        self._catalog = catalog
        self._clock = clock
        self._executor = executor
        self._supervisor = supervisor
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._refusal: str | None = None
        self.topic_defaults = topic_defaults
        self.cleaner = Cleaner(clock, executor, supervisor)
        self.compactor = Compactor(directory, clock, executor, self.cleaner, self.holds)
        self.departures = Departures(
            directory, catalog, executor, supervisor, self.let_go, lambda name: self._open_what_waited(name)
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
            for partition in directory.partitions
        }
        logger.info("recovering %d partitions", len(wanted))
        await self._in_thread(lambda: directory.recover_all(wanted, _say_progress))

    async def _in_thread(self, work: Work) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def stop(self) -> None:
        """Returns when no sync is under way, so that the directory can be closed."""
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
        for name, index in list(self._directory.partitions):
            with contextlib.suppress(KafkaError, StorageError):
                yield self.replica(name, index)

    def compacted_partitions(self) -> Iterator[Partition]:
        """Those of compacted topics that have files; opened as the iteration gets to them."""
        topics = self._catalog.image.topics
        compacted = {name for name, topic in topics.items() if self.config_of(topic).is_compacted}
        for name, index in list(self._directory.partitions):
            if name in compacted:
                with contextlib.suppress(KafkaError, StorageError):
                    yield self.replica(name, index)

    def indexes_with_files(self, topic: str) -> list[int]:
        """The partitions of a topic that have been written to."""
        return [index for name, index in self._directory.partitions if name == topic]

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
        partition = Partition(log, topic.topic_id, epoch, self._clock, self._executor, high_watermark)
        partition.on_follower_caught_up = self.on_follower_caught_up
        if len(record.replicas) > 1 or record.leader != self.node_id:
            # As if led by nobody, so that whatever the record says is news.
            partition.follow(LeaderEpoch(-1))
            self._take_role(partition, record)
        self._partitions[name, index] = partition
        return partition

    def _take_role(self, partition: Partition, record: PartitionRecord) -> None:
        if record.leader == self.node_id:
            partition.lead(self.node_id, record)
        else:
            partition.follow(record.leader_epoch)
        self.on_role(partition, record)

    def config_of(self, topic: TopicRecord) -> TopicConfig:
        try:
            return parse_into(self.topic_defaults, topic.config)
        except OptionError:
            # Set by a newer broker. What this one knows holds.
            known = declared(self.topic_defaults)
            return parse_into(self.topic_defaults, {name: text for name, text in topic.config.items() if name in known})

    # The disk.

    async def write_checkpoints(self) -> None:
        """Recovery points, log starts and high watermarks as they are now, durable when this returns."""
        await self._in_thread(self._directory.checkpoint_work(self.high_watermarks()))

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
        self.cleaner.delete_expired(partition)
        partition.wake_all()
        return low_watermark

    # The catalog.

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follows the catalog, in the same step of the event loop in which the image changed."""
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
                self._follow_record(topic, before)

    def take_roles(self) -> None:
        """Opens what has several replicas, when the broker starts."""
        for topic in self._catalog.image.topics.values():
            self._follow_record(topic)

    def _follow_record(self, topic: TopicRecord, before: TopicRecord | None = None) -> None:
        """Leads and follows the partitions of a topic as its record says now."""
        known = before.partitions if before is not None and before.topic_id == topic.topic_id else ()
        for index, record in enumerate(topic.partitions):
            is_here = self.node_id in record.replicas
            partition = self._partitions.get((topic.name, index))
            if index < len(known) and known[index] == record and (partition is not None) == is_here:
                continue
            try:
                if partition is not None and is_here:
                    self._take_role(partition, record)
                elif is_here and len(record.replicas) > 1:
                    self._open(topic, topic.name, index)
                elif not is_here:
                    self._leave(topic.name, index)
            except (KafkaError, StorageError) as error:
                # Tried again by whoever asks for it, by the next change, and by ``open_what_failed``.
                logger.error("%s-%d: %s", topic.name, index, error)

    def _leave(self, name: str, index: int) -> None:
        """The partition is on other brokers from now on: its files go, if there are any."""
        topic_partition = TopicPartition(name, index)
        partition = self._partitions.pop((name, index), None)
        if partition is not None:
            partition.follow(partition.leader_epoch)
            self.on_role(partition, None)
        elif topic_partition not in self._directory.partitions:
            return
        self.departures.left(topic_partition, partition)

    def _open_what_waited(self, name: str) -> None:
        """The files of an earlier topic or replica of this name are out of the way of one that may be there again."""
        topic = self._catalog.image.topics.get(name)
        if topic is not None and not self.departures.is_going(name):
            # As if nothing had changed: those that are open have their role.
            self._follow_record(topic, topic)

    def open_what_failed(self) -> None:
        """Tries again to open what has several replicas and could not be opened."""
        for topic in self._catalog.image.topics.values():
            self._follow_record(topic, topic)

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
        await partition.synced()

    async def end_truncation(self, partition: Partition) -> None:
        """Tries again to cut a log that the disk kept from being cut: until then it takes nothing.

        The log ends already where it is to end, so its leader sees no reason any more to have it cut.
        """
        await self.let_go(partition)
        if self.holds(partition) and partition.log.is_half_cut:
            try:
                partition.truncate_to(partition.log.log_end_offset)
            except StorageError as error:
                logger.error("%s: cannot be cut yet: %s", partition.topic_partition, error)

    async def remove_leftovers(self) -> None:
        """Files of logs that were cut."""
        await self._in_thread(self._directory.leftovers())

    def _configure(self, topic: TopicRecord) -> None:
        config = self.config_of(topic)
        for index in range(len(topic.partitions)):
            if (partition := self._partitions.get((topic.name, index))) is None:
                continue
            try:
                partition.log.configure(config)
            except StorageError as error:
                logger.error("%s keeps its config: %s", partition.topic_partition, error)

    def defaults_changed(self, defaults: TopicConfig) -> None:
        """The broker's defaults for topics changed: every open log gets its config anew."""
        self.topic_defaults = defaults
        for topic in self._catalog.image.topics.values():
            self._configure(topic)

    def _drop(self, topic: TopicRecord) -> None:
        """Takes the partitions away at once; their files go in the background, when nothing works on them any more."""
        dropped = []
        for index in range(len(topic.partitions)):
            partition = self._partitions.pop((topic.name, index), None)
            if partition is not None:
                dropped.append(partition)
                partition.follow(partition.leader_epoch)
                self.on_role(partition, None)
        self.departures.topic_deleted(topic, dropped)


def _ignore(partition: Partition, record: PartitionRecord | None = None) -> None:
    """There is nobody to tell."""


def _say_progress(done: int, total: int) -> None:
    if done % 1000 == 0 or done == total:
        logger.info("recovered %d of %d partitions", done, total)
