"""A consumer's fetch that is delayed reads again only the partitions that have changed."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.handlers import fetch
from skep.broker.request import Request
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from skep.wire import apis
from skep.wire.fetch.fetch_response_reader import read_fetch_response
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE = BrokerId(1)
PARTITIONS = 4
BATCH = build_batch([(None, b"x" * 100, -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)


class Broker:
    """Leads all partitions of one topic. Provides what the handler needs of the services."""

    def __init__(self):
        self.clock = ManualClock()
        self.slicer = Slicer(self.clock)
        self.topic_id = uuid4()
        self.config = SimpleNamespace(fetch_max_bytes=1 << 30)
        self.fetch_sessions = FetchSessions(self.clock, 100, 10_000)
        self.replicas = self
        self.catalog = SimpleNamespace(image=ClusterImage.of("c"))
        self.deleted: set[int] = set()
        self.reads: list[int] = []
        directory = LogDirectory(MemoryFiles(), "/data", self.clock)
        directory.open()
        self.partitions = [self._partition(directory, number) for number in range(PARTITIONS)]

    def _partition(self, directory, number):
        log = directory.log(TopicPartition("t", number), TopicConfig(), self.topic_id)
        partition = Partition(log, self.topic_id, LeaderEpoch(0), self.clock, None, Offset(0))
        partition.lead(ONE, PartitionRecord((ONE,), (ONE,), ONE, LeaderEpoch(3)))
        return partition

    def name_of(self, topic_id):
        assert topic_id == self.topic_id
        return "t"

    def replica(self, _topic, number):
        if number in self.deleted:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "deleted")
        return self.partitions[number]

    def append(self, number):
        self.partitions[number].append(BATCH, HEADER)

    def fetch(self, min_bytes, max_bytes=1 << 30):
        wanted = [
            SimpleNamespace(
                partition=number,
                current_leader_epoch=-1,
                fetch_offset=0,
                partition_max_bytes=1 << 20,
                last_fetched_epoch=-1,
                log_start_offset=-1,
            )
            for number in range(PARTITIONS)
        ]
        body = SimpleNamespace(
            replica_state=SimpleNamespace(replica_id=-1, replica_epoch=-1),
            max_wait=timedelta(milliseconds=500),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[SimpleNamespace(topic_id=self.topic_id, partitions=wanted)],
            forgotten_topics_data=[],
            rack_id="",
        )
        return fetch.handle(self, Request(apis.FETCH, 17, 1, None, "here", body))

    def taken_reads(self):
        reads, self.reads = self.reads, []
        return reads


def fetched(parts):
    """The sizes of the records, and the error codes, by partition."""
    response = read_fetch_response(17, memoryview(b"".join(bytes(part) for part in parts)))
    return {one.partition: (len(one.records), one.error_code) for one in response.partitions}


async def delayed(broker, **limits):
    waiting = asyncio.ensure_future(broker.fetch(**limits))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


@pytest.fixture
def broker(monkeypatch):
    broker = Broker()
    read = Partition.read

    def counted(partition, *arguments, **options):
        broker.reads.append(partition.topic_partition.partition)
        return read(partition, *arguments, **options)

    monkeypatch.setattr(Partition, "read", counted)
    return broker


def test_only_the_partition_with_an_append_is_read_again(broker):
    async def scenario():
        broker.append(1)
        waiting = await delayed(broker, min_bytes=len(BATCH) + 1)
        assert broker.taken_reads() == [0, 1, 2, 3]
        broker.append(2)
        size = len(BATCH)
        assert fetched(await asyncio.wait_for(waiting, 30)) == {0: (0, 0), 1: (size, 0), 2: (size, 0), 3: (0, 0)}
        assert broker.taken_reads() == [2]

    asyncio.run(scenario())


def test_nothing_is_read_again_when_the_time_is_up(broker):
    async def scenario():
        broker.append(1)
        waiting = await delayed(broker, min_bytes=1 << 20)
        broker.taken_reads()
        broker.clock.advance_ms(1000)
        assert fetched(await asyncio.wait_for(waiting, 30))[1] == (len(BATCH), 0)
        assert broker.taken_reads() == []

    asyncio.run(scenario())


def test_a_partition_that_was_deleted_meanwhile_is_an_error(broker):
    async def scenario():
        waiting = await delayed(broker, min_bytes=1)
        broker.deleted.add(3)
        broker.append(0)
        assert fetched(await asyncio.wait_for(waiting, 30))[3] == (0, ErrorCode.unknown_topic_or_partition)

    asyncio.run(scenario())


def test_records_that_were_read_first_are_not_kept_beyond_the_limit_of_the_request(broker):
    async def scenario():
        broker.append(3)
        waiting = await delayed(broker, min_bytes=len(BATCH) + 1, max_bytes=len(BATCH))
        broker.clock.advance_ms(1000)
        broker.append(0)
        assert fetched(await asyncio.wait_for(waiting, 30)) == {0: (len(BATCH), 0), 1: (0, 0), 2: (0, 0), 3: (0, 0)}

    asyncio.run(scenario())
