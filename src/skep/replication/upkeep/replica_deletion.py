"""Deletes partitions that are no longer here: those of deleted topics, and replicas that were moved to other brokers.

They are not found any more at once. Their files are removed in the background, when nothing works on them. Until the
files are moved away no partition of the same name is opened.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol
from uuid import UUID

from skep.base.errors import StorageError, StoreUnavailable
from skep.base.ids import TopicPartition
from skep.base.loop.slicer import Slicer
from skep.base.loop.slicer import Work as Slices
from skep.base.loop.supervisor import Supervisor
from skep.metadata.catalog import Catalog
from skep.metadata.model import TopicRecord
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory, Work

logger = logging.getLogger(__name__)


_NO_TOPIC = UUID(int=0)
PARTITIONS_PER_MOVE = 100
LET_GO_PER_TURN = 100


class Holder(Protocol):
    """What is needed of ``ReplicaManager``."""

    slicer: Slicer

    def dropped(self, partition: Partition) -> None:
        """Wakes those that wait for the partition, which is gone."""
        ...

    async def quiesce(self, partition: Partition) -> None:
        """Returns when nothing works on the partition's files."""
        ...

    async def write_checkpoints(self) -> None: ...

    def reopen(self, name: str, index: int | None) -> None:
        """The directories of this partition, or of the whole topic, are free for later ones."""
        ...


class ReplicaDeletion:
    """Owns the deletions in progress. ``_going`` has the names of deleted topics, each until its future is done;
    ``_leaving`` has the replicas that other brokers have now, in the order of their deletion."""

    def __init__(
        self, directory: LogDirectory, catalog: Catalog, executor: Executor, supervisor: Supervisor, holder: Holder
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._executor = executor
        self._supervisor = supervisor
        self._holder = holder
        self._going: dict[str, asyncio.Future[None]] = {}
        self._leaving: dict[TopicPartition, Partition | None] = {}
        self._is_removing = False
        self._some_left = asyncio.Event()

    def is_deleting(self, name: str) -> bool:
        return name in self._going

    def blocks(self, name: str, index: int) -> bool:
        """Whether the directory of this partition is still occupied by an earlier one."""
        return name in self._going or TopicPartition(name, index) in self._leaving

    # Replicas that were moved to other brokers.

    def left(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        """Deletes the replica's files. ``partition`` is given if it was open."""
        if self.blocks(*topic_partition):
            return
        self._leaving[topic_partition] = partition
        if not self._is_removing:
            self._is_removing = True
            self._supervisor.spawn("delete moved replicas", self._remove_left())

    async def _remove_left(self) -> None:
        try:
            while self._leaving:
                names = list(self._leaving)[:PARTITIONS_PER_MOVE]
                try:
                    for name in names:
                        if (partition := self._leaving[name]) is not None:
                            await self._holder.quiesce(partition)
                    paths, _ = await self._moved_away(names)
                    await self._forget_in_checkpoints(names, "moved partitions")
                finally:
                    for name in names:
                        del self._leaving[name]
                    self._some_left.set()
                    self._some_left = asyncio.Event()
                for name in names:
                    logger.info("%s is on other brokers now, deleting its files", name)
                    self._holder.reopen(*name)
                try:
                    await self._in_thread(self._directory.removal(paths))
                except StorageError as error:
                    logger.error("cannot delete the files of moved replicas, the next start retries: %s", error)
        finally:
            self._is_removing = False
            self._some_left.set()

    async def _until_left(self, topic: str) -> None:
        """Returns when no replica of ``topic`` is being moved away: each directory is moved once."""
        while self._is_removing and any(name.topic == topic for name in self._leaving):
            await self._some_left.wait()

    async def _moved_away(self, names: Sequence[TopicPartition]) -> tuple[list[str], bool]:
        """Moves the directories of a few partitions out of the way. Returns their new paths, and whether all were
        moved.

        What could not be moved is left to the next start. When cancelled, this waits for the thread and records what it
        has done: a stop must not flush a log into a directory that is no longer its own.
        """
        away = {name: path for name in names if (path := self._directory.away_path(name)) is not None}
        moving = asyncio.get_running_loop().run_in_executor(self._executor, self._move, away)
        try:
            await asyncio.shield(moving)
        finally:
            await asyncio.wait([moving])
            refused = moving.result()
            for name, error in refused.items():
                logger.error("cannot delete %s, the next start retries: %s", name, error)
                del away[name]
            for name in names:
                self._directory.deleted(name, away.get(name))
        return list(away.values()), not refused

    def _move(self, away: Mapping[TopicPartition, str]) -> dict[TopicPartition, StorageError]:
        """In a thread; returns what could not be moved."""
        refused = {}
        for name, path in away.items():
            try:
                self._directory.move(name, path)
            except StorageError as error:
                refused[name] = error
        return refused

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
        try:
            await self._holder.slicer.finish(self._tell(dropped))
            # Two deletions of one name run in order. If the second were faster, it would move away files that the first
            # still syncs and let a third topic of that name begin, and the first would then delete that one.
            if earlier is not None:
                await asyncio.wait([earlier])
            for number, partition in enumerate(dropped):
                await self._holder.quiesce(partition)
                if number % LET_GO_PER_TURN == 0:
                    await asyncio.sleep(0)
            await self._holder.slicer.finish(_forgotten(dropped))
            await self._until_left(topic.name)
            paths, is_all = await self._move_away(topic)
            names = (TopicPartition(topic.name, index) for index in range(len(topic.partitions)))
            await self._forget_in_checkpoints(names, f"deleted topic {topic.name}")
        finally:
            if self._going[topic.name] is moved:
                del self._going[topic.name]
            moved.set_result(None)
        self._holder.reopen(topic.name, None)
        await self._remove_files(topic.name, paths)
        if is_all:
            await self._confirm_deletion(topic.name, topic.topic_id)

    def _tell(self, dropped: Iterable[Partition]) -> Slices[None]:
        for partition in dropped:
            self._holder.dropped(partition)
            yield

    async def _forget_in_checkpoints(self, names: Iterable[TopicPartition], whose: str) -> None:
        """Rewrites the checkpoints, so that the first append to a later partition of that name need not do it."""
        if self._directory.must_write_checkpoints(names):
            try:
                await self._holder.write_checkpoints()
            except StorageError as error:
                logger.warning("the checkpoints still contain %s: %s", whose, error)

    async def _move_away(self, topic: TopicRecord) -> tuple[list[str], bool]:
        """Moves the directories of a topic away. Returns the paths to remove, and whether all were moved; what could
        not be moved is left to the next start."""
        paths: list[str] = []
        is_all = True
        for start in range(0, len(topic.partitions), PARTITIONS_PER_MOVE):
            indexes = range(start, min(start + PARTITIONS_PER_MOVE, len(topic.partitions)))
            moved, are_these = await self._moved_away([TopicPartition(topic.name, index) for index in indexes])
            paths += moved
            is_all &= are_these
        return paths, is_all

    async def _remove_files(self, name: str, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), PARTITIONS_PER_MOVE):
            try:
                await self._in_thread(self._directory.removal(paths[start : start + PARTITIONS_PER_MOVE]))
            except StorageError as error:
                # The directory has its -delete name by now; the next start retries.
                logger.error("cannot delete the files of deleted topic %s, the next start retries: %s", name, error)

    async def _confirm_deletion(self, name: str, topic_id: UUID) -> None:
        try:
            await self._catalog.deletion_done(topic_id)
        except StoreUnavailable as error:
            logger.warning("cannot confirm the deletion of topic %s, retrying: %s", name, error)
        else:
            logger.info("deleted topic %s", name)

    def resume_at_start(self) -> None:
        """Resumes deletions that a stop has interrupted, and those of topics that were deleted while this broker was
        down."""
        names = set(self._catalog.pending_deletions.values())
        removals: dict[UUID, list[str]] = {topic_id: [] for topic_id in self._catalog.pending_deletions}
        for partition in self._directory.partitions:
            # The id decides: several topics of one name may have been deleted, and one may exist.
            if partition.topic not in names:
                continue
            removal = removals.get(self._directory.topic_id_of(partition) or _NO_TOPIC)
            if removal is not None and (path := self._directory.delete_partition(partition)) is not None:
                removal.append(path)
        for topic_id, paths in removals.items():
            name = self._catalog.pending_deletions[topic_id]
            self._supervisor.spawn(f"delete topic {name}", self._finish(name, topic_id, paths))

    async def _finish(self, name: str, topic_id: UUID, paths: Sequence[str]) -> None:
        await self._remove_files(name, paths)
        await self._confirm_deletion(name, topic_id)

    async def confirm_deletions(self) -> None:
        """Confirms deletions that could not be confirmed before, and those of topics that this broker had no files
        of."""
        pending = list(self._catalog.pending_deletions.items())
        names_here = {partition.topic for partition in self._directory.partitions} if pending else set()
        for topic_id, name in pending:
            is_here = topic_id in self._catalog.image.topics_by_id or name in self._going
            if not is_here and not (name in names_here and self._has_files_of(topic_id, name)):
                with contextlib.suppress(StoreUnavailable):
                    await self._catalog.deletion_done(topic_id)

    def _has_files_of(self, topic_id: UUID, name: str) -> bool:
        partitions = [partition for partition in self._directory.partitions if partition.topic == name]
        return any(self._directory.topic_id_of(partition) == topic_id for partition in partitions)

    async def _in_thread(self, work: Work) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _forgotten(dropped: list[Partition]) -> Slices[None]:
    """One by one: freeing ten thousand of them at once takes fifty milliseconds."""
    while dropped:
        dropped.pop()
        yield
