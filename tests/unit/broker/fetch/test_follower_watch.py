"""A follower's session is looked at where something is new, and everywhere from time to time."""

import asyncio
import functools
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.base.loop.slicer import Slicer
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.fetch.follower_watch import FULL_READ_S
from skep.broker.handlers import fetch
from skep.broker.request import Request
from skep.metadata.model import PartitionRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from skep.wire import apis
from skep.wire.fetch.fetch_response_reader import read_fetch_response
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
PARTITIONS = 20
VERSION = 17
BATCH = build_batch([(None, b"x" * 100, -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)


class Leader:
    """Broker 1 leads all partitions of one topic; it is also all that the handler needs of the services."""

    def __init__(self):
        self.clock = ManualClock()
        self.slicer = Slicer(self.clock)
        self.topic_id = uuid4()
        self.config = SimpleNamespace(fetch_max_bytes=1 << 30)
        self.fetch_sessions = FetchSessions(self.clock, 100, 10_000)
        self.throttled_replicas = SimpleNamespace(room=lambda *_: None)
        self.replicas = self
        self.looks: list[int] = []
        directory = LogDirectory(MemoryFiles(), "/data", self.clock)
        directory.open()
        self.partitions = []
        for number in range(PARTITIONS):
            log = directory.log(TopicPartition("t", number), TopicConfig(), self.topic_id)
            partition = Partition(log, self.topic_id, LeaderEpoch(0), self.clock, None, Offset(0))
            partition.lead(ONE, PartitionRecord((ONE, TWO, THREE), (ONE, TWO, THREE), ONE, LeaderEpoch(3)))
            self.partitions.append(partition)

    def name_of(self, topic_id):
        assert topic_id == self.topic_id
        return "t"

    def partition(self, _topic, number):
        self.looks.append(number)
        found = self.partitions[number]
        if not found.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower, "led by another")
        return found

    def read_partitions(self):
        looks, self.looks = self.looks, []
        return looks


class Follower:
    """Fetches in a session and keeps how far it is; ``marks`` are the high watermarks that it was told."""

    def __init__(self, leader, broker):
        self.leader, self.broker = leader, broker
        self.session, self.epoch = 0, 0
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.named = set(self.ends)
        self.marks = {}

    def ask(self, max_wait_ms=500):
        """What the handler gives: a response, or something to await."""
        partitions = [
            SimpleNamespace(
                partition=number,
                current_leader_epoch=3,
                fetch_offset=self.ends[number],
                partition_max_bytes=1 << 20,
                last_fetched_epoch=3 if self.ends[number] else -1,
                log_start_offset=0,
            )
            for number in sorted(self.named)
        ]
        self.named.clear()
        body = SimpleNamespace(
            replica_state=SimpleNamespace(replica_id=self.broker, replica_epoch=1),
            max_wait=timedelta(milliseconds=max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 30,
            isolation_level=0,
            session_id=self.session,
            session_epoch=self.epoch,
            topics=[SimpleNamespace(topic_id=self.leader.topic_id, partitions=partitions)] if partitions else [],
            forgotten_topics_data=[],
            rack_id="",
        )
        return fetch.handle(self.leader, Request(apis.FETCH, VERSION, 1, None, "here", body))

    def take(self, parts):
        """The partitions of the response, with their error codes."""
        response = read_fetch_response(17, memoryview(b"".join(bytes(part) for part in parts)))
        self.session, self.epoch = response.session_id, self.epoch + 1
        for piece in response.partitions:
            self.marks[piece.partition] = piece.high_watermark
            if len(piece.records):
                self.ends[piece.partition] += len(piece.records) // len(BATCH)
                self.named.add(piece.partition)
        return {piece.partition: piece.error_code for piece in response.partitions}

    def fetch(self):
        return self.take(self.ask(max_wait_ms=0))


def on_a_loop(scenario):
    @functools.wraps(scenario)
    def test(leader):
        asyncio.run(asyncio.wait_for(scenario(leader), 60))

    return test


@pytest.fixture
def leader():
    return Leader()


def in_session(leader, broker):
    follower = Follower(leader, broker)
    assert len(follower.fetch()) == PARTITIONS
    assert follower.fetch() == {}
    leader.read_partitions()
    return follower


def append(leader, number):
    return leader.partitions[number].append(BATCH, HEADER)[1]


@on_a_loop
async def test_a_fetch_looks_only_where_something_was_appended_or_that_it_names(leader):
    follower = in_session(leader, TWO)
    assert follower.fetch() == {}
    assert leader.read_partitions() == []
    append(leader, 7)
    assert set(follower.fetch()) == {7}
    assert leader.read_partitions() == [7]
    assert follower.fetch() == {}
    assert leader.read_partitions() == [7]
    append(leader, 8)
    assert set(follower.fetch()) == {8}
    assert leader.read_partitions() == [8]


@on_a_loop
async def test_a_fetch_that_waits_is_woken_by_an_append_and_looks_there(leader):
    follower = in_session(leader, TWO)
    waiting = asyncio.ensure_future(follower.ask())
    await asyncio.sleep(0)
    append(leader, 4)
    parts = await waiting
    assert set(follower.take(parts)) == {4}
    assert leader.read_partitions() == [4]


@on_a_loop
async def test_a_high_watermark_that_moved_is_told_with_the_next_response(leader):
    second, third = in_session(leader, TWO), in_session(leader, THREE)
    committed = append(leader, 4)
    for _ in range(2):
        second.fetch()
        third.fetch()
    assert committed.done()
    append(leader, 9)
    for follower in (second, third):
        follower.fetch()
        assert follower.marks[4] == 1


@on_a_loop
async def test_a_high_watermark_that_moved_while_nothing_was_answered_is_told_all_the_same(leader):
    """The look that moved it ended in waiting: what it found was not told to anybody."""
    second, third = in_session(leader, TWO), in_session(leader, THREE)
    append(leader, 4)
    second.fetch()
    second.fetch()
    third.fetch()
    waiting = asyncio.ensure_future(third.ask())
    await asyncio.sleep(0)
    assert leader.partitions[4].high_watermark == 1
    append(leader, 9)
    third.take(await waiting)
    assert third.marks[4] == 1


@on_a_loop
async def test_everything_is_read_partitions_from_time_to_time(leader):
    follower = in_session(leader, TWO)
    before = leader.partitions[0].in_sync.followers[TWO].caught_up_at
    leader.clock.advance_ms(int(FULL_READ_S * 1000) - 1)
    follower.fetch()
    assert leader.read_partitions() == []
    leader.clock.advance_ms(1)
    follower.fetch()
    assert leader.read_partitions() == list(range(PARTITIONS))
    assert leader.partitions[0].in_sync.followers[TWO].caught_up_at > before


@on_a_loop
async def test_a_partition_that_changes_hands_wakes_the_fetch_and_its_error_is_told_every_time(leader):
    follower = in_session(leader, TWO)
    waiting = asyncio.ensure_future(follower.ask())
    await asyncio.sleep(0)
    leader.partitions[3].follow(LeaderEpoch(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "current_leader", lambda *_: None)
        patch.setattr(fetch, "endpoints_of", lambda *_: ())
        told = {3: ErrorCode.not_leader_or_follower}
        assert follower.take(await waiting) == told
        assert follower.fetch() == told
        assert follower.fetch() == told


@on_a_loop
async def test_a_new_session_of_a_follower_ends_the_one_before_and_leaves_no_watch(leader):
    in_session(leader, TWO)
    in_session(leader, TWO)
    assert len(leader.fetch_sessions) == 1
    assert all(len(partition.tail.watches) == 1 for partition in leader.partitions)
