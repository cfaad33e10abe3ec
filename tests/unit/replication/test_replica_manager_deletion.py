"""Deleting topics whose files are still being worked on, while others of the same name come and go."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError
from skep.base.files.os_files import OsFiles
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import check_produced
from skep.records.builder import NewRecord, build_batch
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock

NAME = "eggs"
BATCH = build_batch([NewRecord(None, b"egg", 1)])


class GatedExecutor(ThreadPoolExecutor):
    """Threads that begin nothing until the gate is opened: a disk that takes its time."""

    def __init__(self) -> None:
        super().__init__(4)
        self.gate = threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        def behind_the_gate() -> Any:
            self.gate.wait(60)
            return work(*args, **kwargs)

        return super().submit(behind_the_gate)


class KnownTopics:
    """Of a catalog, what replicas look at."""

    def __init__(self) -> None:
        self.image = ClusterImage.of("test")
        self.pending_deletions: dict[uuid.UUID, str] = {}
        self.done: list[uuid.UUID] = []

    async def deletion_done(self, topic_id: uuid.UUID) -> None:
        self.done.append(topic_id)


class Scene:
    """Replicas over a real directory; ``create`` and ``delete`` are what the catalog would tell them."""

    def __init__(self, path: Path) -> None:
        self.executor = GatedExecutor()
        self.topics = KnownTopics()
        self.supervisor = Supervisor()
        clock = ManualClock()
        self.directory = LogDirectory(OsFiles(), str(path), clock)
        self.directory.open()
        catalog: Any = self.topics
        self.replicas = ReplicaManager(self.directory, catalog, TopicConfig(), clock, self.executor, self.supervisor)

    def create(self, **config: str) -> uuid.UUID:
        options = {name.replace("_", "."): text for name, text in config.items()}
        topic = TopicRecord(NAME, uuid.uuid4(), (PartitionRecord.new([BrokerId(1)]),), options)
        self._change(self.topics.image.with_topic(topic))
        return topic.topic_id

    def delete(self) -> None:
        self._change(self.topics.image.without_topic(NAME))

    def _change(self, new: ClusterImage) -> None:
        old, self.topics.image = self.topics.image, new
        self.replicas.image_changed(old, new)

    def append(self) -> Partition:
        partition = self.replicas.partition(NAME, 0)
        partition.append(BATCH, check_produced(BATCH, max_message_bytes=10_000))
        return partition

    async def deleted(self, *topic_ids: uuid.UUID) -> None:
        async with asyncio.timeout(30):
            while not set(topic_ids) <= set(self.topics.done):
                await asyncio.sleep(0.001)


def test_of_two_deletions_of_a_name_neither_touches_the_third_topic(tmp_path: Path) -> None:
    async def test() -> None:
        scene = Scene(tmp_path)
        first = scene.create(flush_messages="1")
        syncing = scene.append()
        scene.delete()
        second = scene.create()
        scene.delete()
        third = scene.create()
        for _ in range(10):
            await asyncio.sleep(0)
        # The first topic's files are still being synced under the name: nobody else may begin there.
        assert syncing.is_syncing
        with pytest.raises(KafkaError, match="being deleted"):
            scene.replicas.partition(NAME, 0)
        scene.executor.gate.set()
        await scene.deleted(first, second)
        assert syncing.log.failure is None
        assert scene.append().log.topic_id == third
        assert scene.directory.topic_id_of(TopicPartition(NAME, 0)) == third
        await scene.supervisor.close()

    asyncio.run(test())


def test_a_removal_of_segments_under_way_is_waited_for_and_one_that_waits_is_ended(tmp_path: Path) -> None:
    async def test() -> None:
        scene = Scene(tmp_path)
        first = scene.create(segment_bytes="100", file_delete_delay_ms="3600000")
        for _ in range(3):
            partition = scene.append()
        scene.replicas.delete_records_before(partition, partition.high_watermark)
        scene.delete()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (tmp_path / f"{NAME}-0").exists()
        scene.executor.gate.set()
        await scene.deleted(first)
        assert not (tmp_path / f"{NAME}-0").exists()
        # An hour of delay is not waited for, nor does anything remain that would come back after it.
        assert await asyncio.wait_for(scene.replicas.segment_deletion.abandon(partition), 30) is None
        await scene.supervisor.close()

    asyncio.run(test())


def test_a_directory_is_moved_in_a_thread_and_a_stop_meanwhile_takes_note_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        scene = Scene(tmp_path)
        scene.create()
        scene.append()
        scene.delete()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (tmp_path / f"{NAME}-0").exists(), "the event loop does not wait for the rename"
        closing = asyncio.ensure_future(scene.supervisor.close())
        await asyncio.sleep(0)
        scene.executor.gate.set()
        await closing
        assert not scene.directory.logs
        scene.directory.close()
        assert not (tmp_path / f"{NAME}-0").exists()
        assert (tmp_path / ".kafka_cleanshutdown").exists()

    asyncio.run(test())


def test_a_topic_is_deleted_while_one_of_its_replicas_is_being_moved_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        topic = TopicRecord(NAME, uuid.uuid4(), tuple(PartitionRecord.new([BrokerId(1)]) for _ in range(3)), {})
        scene._change(scene.topics.image.with_topic(topic))
        for index in range(3):
            header = check_produced(BATCH, max_message_bytes=10_000)
            scene.replicas.partition(NAME, index).append(BATCH, header)
        elsewhere = (PartitionRecord.new([BrokerId(2)]), *topic.partitions[1:])
        scene._change(scene.topics.image.with_topic(replace(topic, partitions=elsewhere)))
        await _turns(20)
        scene.delete()
        await _turns(20)
        scene.executor.gate.set()
        while topic.topic_id not in scene.topics.done:
            await asyncio.sleep(0.01)
        assert not [path.name for path in tmp_path.iterdir() if NAME in path.name]
        await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
