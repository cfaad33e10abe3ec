"""Partitions that are no longer here: topics that were deleted, replicas that were given to other brokers.

They are not found any more at once; their files go in the background, when nothing works on them. Until these are moved
away no partition of the same name is opened.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from uuid import UUID

from skep.base.errors import StorageError, StoreUnavailable
from skep.base.ids import TopicPartition
from skep.base.tasks import Supervisor
from skep.metadata.catalog import Catalog
from skep.metadata.model import TopicRecord
from skep.replication.partition import Partition
from skep.storage.directory import LogDirectory, Work

logger = logging.getLogger(__name__)


class Departures:
    """Owns what is under way. ``_going`` are names of deleted topics, each until its future is done; ``_leaving`` are
    the replicas that other brokers have now.

    ``let_go`` returns when nothing works on a partition's files; ``gone`` is told when those of a name are out of the
    way.
    """

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        executor: Executor,
        supervisor: Supervisor,
        let_go: Callable[[Partition], Awaitable[None]],
        gone: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._executor = executor
        self._supervisor = supervisor
        self._let_go = let_go
        self._gone = gone
        self._going: dict[str, asyncio.Future[None]] = {}
        self._leaving: set[TopicPartition] = set()

    def is_going(self, name: str) -> bool:
        return name in self._going

    def holds_up(self, name: str, index: int) -> bool:
        """Whether the place of this partition is still taken by an earlier one."""
        return name in self._going or TopicPartition(name, index) in self._leaving

    # Replicas that are on other brokers now.

    def left(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        """Its files go; ``partition`` if it was open."""
        if not self.holds_up(*topic_partition):
            self._leaving.add(topic_partition)
            self._supervisor.spawn(f"leave {topic_partition}", self._remove_left(topic_partition, partition))

    async def _remove_left(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        try:
            if partition is not None:
                await self._let_go(partition)
            work = self._directory.delete_partition(topic_partition)
        except StorageError as error:
            logger.error("cannot remove %s, the next start tries again: %s", topic_partition, error)
            return
        finally:
            self._leaving.discard(topic_partition)
        logger.info("%s is on other brokers now, its files are removed", topic_partition)
        self._gone(topic_partition.topic)
        await self._in_thread(work)

    # Topics that are deleted.

    def topic_deleted(self, topic: TopicRecord, dropped: list[Partition]) -> None:
        """``dropped`` are those of its partitions that were open."""
        earlier = self._going.get(topic.name)
        moved = self._going[topic.name] = asyncio.get_running_loop().create_future()
        self._supervisor.spawn(f"delete topic {topic.name}", self._delete(topic, dropped, earlier, moved))

    async def _delete(
        self,
        topic: TopicRecord,
        dropped: list[Partition],
        earlier: "asyncio.Future[None] | None",
        moved: "asyncio.Future[None]",
    ) -> None:
        # Of two deletions of one name the first comes first. Were the second quicker, it would move files away that
        # the first still syncs, let a third topic of that name begin, and the first would then delete that one.
        if earlier is not None:
            await asyncio.wait([earlier])
        for partition in dropped:
            await self._let_go(partition)
        try:
            works = self._move_away(topic)
        finally:
            if self._going[topic.name] is moved:
                del self._going[topic.name]
            moved.set_result(None)
        self._gone(topic.name)
        if works is not None:
            await self._remove_files(topic.name, topic.topic_id, works)

    def _move_away(self, topic: TopicRecord) -> list[Work] | None:
        """What is then left to do; None when a directory could not be moved, which leaves it to the next start."""
        works: list[Work] | None = []
        for index in range(len(topic.partitions)):
            try:
                work = self._directory.delete_partition(TopicPartition(topic.name, index))
            except StorageError as error:
                works = None
                logger.error("cannot delete %s-%d, the next start tries again: %s", topic.name, index, error)
            else:
                if works is not None:
                    works.append(work)
        return works

    async def _remove_files(self, name: str, topic_id: UUID, works: Iterable[Work]) -> None:
        for work in works:
            try:
                await self._in_thread(work)
            except StorageError as error:
                # The directory has its -delete name by now; the next start of the broker tries again.
                logger.error("cannot remove the files of deleted topic %s: %s", name, error)
        try:
            await self._catalog.deletion_done(topic_id)
        except StoreUnavailable as error:
            logger.warning("the deletion of topic %s cannot be noted, which is tried again: %s", name, error)
        else:
            logger.info("deleted topic %s", name)

    def finish_at_start(self) -> None:
        """Goes on with what a stop has interrupted, or what was deleted while this broker was away."""
        names = set(self._catalog.pending_deletions.values())
        removals: dict[UUID, list[Work]] = {topic_id: [] for topic_id in self._catalog.pending_deletions}
        for partition in list(self._directory.partitions):
            # The id decides: several topics of one name may have been deleted, and one may be there.
            if partition.topic in names and (topic_id := self._directory.topic_id_of(partition)) in removals:
                removals[topic_id].append(self._directory.delete_partition(partition))
        for topic_id, works in removals.items():
            name = self._catalog.pending_deletions[topic_id]
            self._supervisor.spawn(f"delete topic {name}", self._remove_files(name, topic_id, works))

    async def note_what_is_gone(self) -> None:
        """Notes deletions that could not be noted before, and those of topics of which nothing was ever here."""
        for topic_id, name in list(self._catalog.pending_deletions.items()):
            is_here = topic_id in self._catalog.image.topics_by_id or name in self._going
            if not is_here and not self._has_files_of(topic_id, name):
                with contextlib.suppress(StoreUnavailable):
                    await self._catalog.deletion_done(topic_id)

    def _has_files_of(self, topic_id: UUID, name: str) -> bool:
        partitions = [partition for partition in self._directory.partitions if partition.topic == name]
        return any(self._directory.topic_id_of(partition) == topic_id for partition in partitions)

    async def _in_thread(self, work: Work) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)
