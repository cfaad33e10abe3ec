"""What a follower does with a response when its log is not what it thought, or is no longer its own."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, StorageError
from skep.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from skep.broker.fetch.fetch_sessions import Wanted
from skep.broker.fetch.follower_fetch import FollowerFetch
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.records.batch import check_produced
from skep.records.builder import build_batch
from skep.replication.follower.fetcher import FETCH_VERSION, Fetcher
from skep.replication.partition.partition import Partition
from skep.storage.directory.log_directory import LogDirectory
from skep.wire.apis import FETCH
from skep.wire.codec import decode_request, response_class
from skep.wire.fetch.fetch_response_reader import FetchResponsePartition
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles
from tests.slices import counting_turns

ONE, TWO = BrokerId(1), BrokerId(2)
BATCH = build_batch([(None, b"x", -1, ())])
HEADER = check_produced(BATCH, max_message_bytes=1000)
SETTINGS = ClusterConfig(replica_fetch_max_bytes=1 << 20, replica_fetch_backoff_ms=0)
TOPIC_ID = uuid4()
KEY = (TOPIC_ID, 0)


def new_partition(leader, *, records, start=0, index=0, epoch=1):
    """As its leader wrote it, alone in the ISR."""
    clock = ManualClock()
    directory = LogDirectory(MemoryFiles(), "/data", clock)
    directory.open()
    log = directory.log(TopicPartition("t", index), TopicConfig(), TOPIC_ID)
    partition = Partition(log, TOPIC_ID, LeaderEpoch(0), clock, None, Offset(0))
    partition.follow(LeaderEpoch(-1))
    partition.lead(leader, PartitionRecord((ONE, TWO), (leader,), leader, LeaderEpoch(epoch)))
    append(partition, records)
    if start:
        log.delete_records_before(Offset(start))
    return partition


def append(partition, count):
    for _ in range(count):
        partition.append(BATCH, HEADER)


class Follower:
    """Broker 2's fetcher of broker 1, asked round by round; ``before_cutting`` is what happens while it waits."""

    def __init__(self, partition, *, is_in_sync=True):
        self.partition = partition
        partition.follow(LeaderEpoch(2))
        self.before_cutting = lambda: None

        async def waiting(_):
            self.before_cutting()

        self.fetcher = Fetcher(
            ONE,
            0,
            lambda broker: None,
            lambda: BrokerRecord(TWO, "h", 1),
            CurrentConfig(BrokerConfig(cluster=SETTINGS)),
            ManualClock(),
            SimpleNamespace(took=lambda size, now: 0.0),
            waiting,
        )
        self.fetcher.follow(partition, is_new=False, is_in_sync=is_in_sync)

    def wanted(self):
        self.fetcher._session.changed |= self.fetcher._session.paused
        self.fetcher._session.paused.clear()
        return self.fetcher._session.positions(1 << 20)

    async def take(self, **piece):
        default = {"error_code": ErrorCode.none, "high_watermark": 0, "last_stable_offset": 0, "log_start_offset": 0}
        await self.fetcher._handle_partition(
            self.fetcher._session.followed[KEY],
            FetchResponsePartition(*KEY, **{**default, "records": memoryview(b""), **piece}),
        )

    async def fetch_from(self, leader):
        for position in self.wanted():
            asked = Wanted(
                TOPIC_ID, 0, 2, position.fetch_offset, position.partition_max_bytes, position.last_fetched_epoch
            )
            found = FollowerFetch(TWO, 1).read(leader, asked, 1 << 20, content_of, at_least_one=True)
            await self.take(
                error_code=ErrorCode(found.error_code),
                high_watermark=found.high_watermark,
                log_start_offset=found.log_start_offset,
                records=memoryview(bytes(found.records)),
                diverging_epoch=found.diverging_epoch,
            )


def content_of(found):
    return b"" if found.file is None else found.file.read(found.position, found.size)


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_follower_whose_log_begins_past_the_leaders_end_begins_anew_and_has_all_that_the_leader_has():
    async def scenario():
        leader = new_partition(ONE, records=5, start=2)  # elected uncleanly
        follower = Follower(new_partition(TWO, records=20, start=10))
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(2)))
        append(leader, 3)
        log = follower.partition.log
        await follower.fetch_from(leader)
        assert (log.log_start_offset, log.log_end_offset) == (2, 2), "it is told at once where the leader's log begins"
        for _ in range(5):
            await follower.fetch_from(leader)
        assert (log.log_start_offset, log.log_end_offset) == (2, 8)
        ours = content_of(follower.partition.read(Offset(2), 1 << 20, up_to=Offset(8), at_least_one=True))
        theirs = content_of(leader.read(Offset(2), 1 << 20, up_to=Offset(8), at_least_one=True))
        assert ours == theirs
        assert leader.in_sync.can_join(TWO, leader.high_watermark)

    run(scenario)


@pytest.mark.parametrize("knows_its_epoch", [True, False])
@pytest.mark.parametrize(
    "leader_has", [3, 15], ids=["it ends past the leader's end", "it ends within the leader's log"]
)
def test_a_follower_of_which_all_was_deleted_has_no_hole_where_the_leader_has_records(leader_has, knows_its_epoch):
    async def scenario():
        leader = new_partition(ONE, records=2)  # elected uncleanly
        emptied = new_partition(TWO, records=10, start=10, epoch=3 if knows_its_epoch else 1)
        follower = Follower(emptied, is_in_sync=False)
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(4)))
        append(leader, leader_has - 2)
        log = follower.partition.log
        if not knows_its_epoch:
            log.start_over_at(Offset(10))
        assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (10, 10, 3 if knows_its_epoch else -1)
        follower.partition.follow(LeaderEpoch(4))
        await follower.fetch_from(leader)
        assert not leader.in_sync.can_join(TWO, leader.high_watermark), "its position says nothing yet"
        for _ in range(5):
            await follower.fetch_from(leader)
        assert (log.log_start_offset, log.log_end_offset) == (0, leader_has)

    run(scenario)


def test_a_member_of_the_isr_does_not_begin_anew_where_the_leader_still_has_what_others_had_deleted():
    async def scenario():
        leader = new_partition(ONE, records=10)
        follower = Follower(new_partition(TWO, records=1, start=1))
        log = follower.partition.log
        log.start_over_at(Offset(10))
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(4)))
        follower.partition.follow(LeaderEpoch(4))
        append(leader, 2)
        for _ in range(3):
            await follower.fetch_from(leader)
        assert (log.log_start_offset, log.log_end_offset, leader.high_watermark) == (10, 12, 12)

    run(scenario)


@pytest.mark.parametrize("records", [10, 12], ids=["all is deleted", "two that were not copied are left"])
def test_a_follower_that_led_after_it_deleted_records_keeps_what_was_committed(records):
    """It is in the ISR. The leader has not heard of the deletion, nor of the epoch in which this broker led."""

    async def scenario():
        leader = new_partition(ONE, records=10)
        follower = Follower(new_partition(TWO, records=10))
        partition, log = follower.partition, follower.partition.log
        partition.lead(TWO, PartitionRecord((ONE, TWO), (ONE, TWO), TWO, LeaderEpoch(2)))
        append(partition, records - 10)
        log.delete_records_before(Offset(10))
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE, TWO), ONE, LeaderEpoch(3)))
        append(leader, 1)
        partition.follow(LeaderEpoch(3))
        for _ in range(5):
            await follower.fetch_from(leader)
            assert (log.log_start_offset, log.log_end_offset >= 10) == (10, True)
        assert log.log_end_offset == 11

    run(scenario)


@pytest.mark.parametrize("leader_has", [10, 15])
def test_a_follower_of_which_all_was_deleted_in_an_epoch_that_the_leader_does_not_know_begins_anew(leader_has):
    async def scenario():
        leader = new_partition(ONE, records=leader_has)  # elected uncleanly
        follower = Follower(new_partition(TWO, records=10, start=10, epoch=3))
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(4)))
        follower.partition.follow(LeaderEpoch(4))
        for _ in range(5):
            await follower.fetch_from(leader)
        log = follower.partition.log
        assert (log.log_start_offset, log.log_end_offset) == (0, leader_has)

    run(scenario)


@pytest.mark.parametrize("lost_data", [True, False], ids=["it lost its beginning", "it is empty and knows no epoch"])
def test_a_follower_that_is_to_begin_anew_does_not_join_before_it_has(lost_data):
    async def scenario():
        leader = new_partition(ONE, records=10)
        follower = Follower(new_partition(TWO, records=10, start=4), is_in_sync=False)
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(2)))
        log = follower.partition.log
        log.lost_data = lost_data
        if not lost_data:
            log.start_over_at(Offset(10))
        follower.before_cutting = lambda: follower_states.append(leader.in_sync.can_join(TWO, leader.high_watermark))
        follower_states = []
        await follower.fetch_from(leader)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        assert follower_states == [False]
        for _ in range(3):
            assert not leader.in_sync.can_join(TWO, leader.high_watermark) or log.log_end_offset == 10
            await follower.fetch_from(leader)
        assert leader.in_sync.can_join(TWO, leader.high_watermark)
        assert (log.log_start_offset, log.log_end_offset, log.lost_data) == (0, 10, False)

    run(scenario)


@pytest.mark.parametrize("start", [3, 10])
def test_a_follower_that_begins_where_its_leader_does_joins_as_it_is(start):
    async def scenario():
        leader = new_partition(ONE, records=10, start=start)
        follower = Follower(new_partition(TWO, records=10, start=start), is_in_sync=False)
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(2)))
        log = follower.partition.log
        log.lost_data = True
        for _ in range(3):
            await follower.fetch_from(leader)
            assert (log.log_start_offset, log.log_end_offset) == (start, 10)
        assert leader.in_sync.can_join(TWO, leader.high_watermark)
        assert not log.lost_data

    run(scenario)


def dropped(follower):
    follower.fetcher.forget(follower.partition)


def elected(follower):
    follower.partition.lead(TWO, PartitionRecord((ONE, TWO), (TWO,), TWO, LeaderEpoch(3)))


def told_of_another_leader(follower):
    follower.partition.follow(LeaderEpoch(3))


@pytest.mark.parametrize("what_happens", [dropped, elected, told_of_another_leader])
@pytest.mark.parametrize(
    "piece",
    [
        {"diverging_epoch": (1, 2)},
        {"error_code": ErrorCode.offset_out_of_range, "log_start_offset": 50},
        {"lost_data": True, "error_code": ErrorCode.offset_out_of_range, "log_start_offset": 0},
    ],
    ids=["histories part", "the leader begins later", "records were lost"],
)
def test_a_log_that_is_no_longer_ours_when_its_files_are_free_is_not_cut(what_happens, piece):
    async def scenario():
        follower = Follower(new_partition(TWO, records=6, start=3))
        answered = dict(piece)
        follower.partition.log.lost_data = answered.pop("lost_data", False)
        follower.wanted()
        follower.before_cutting = lambda: what_happens(follower)
        await follower.take(**answered)
        assert (follower.partition.log.log_start_offset, follower.partition.log.log_end_offset) == (3, 6)
        # The next round asks for what is followed, and trips over nothing.
        assert len(follower.wanted()) <= len(follower.fetcher)

    run(scenario)


def test_the_same_log_is_cut_when_nothing_happens_meanwhile():
    async def scenario():
        follower = Follower(new_partition(TWO, records=6, start=3))
        follower.wanted()
        await follower.take(diverging_epoch=(1, 4))
        assert (follower.partition.log.log_start_offset, follower.partition.log.log_end_offset) == (3, 4)
        follower.wanted()
        await follower.take(error_code=ErrorCode.offset_out_of_range, log_start_offset=50)
        assert (follower.partition.log.log_start_offset, follower.partition.log.log_end_offset) == (50, 50)

    run(scenario)


def test_a_log_of_an_earlier_topic_of_the_name_is_not_given_to_the_next():
    directory = LogDirectory(MemoryFiles(), "/data", ManualClock())
    directory.open()
    name = TopicPartition("t", 0)
    first = directory.log(name, TopicConfig(), TOPIC_ID)
    assert directory.log(name, TopicConfig(), TOPIC_ID) is first
    with pytest.raises(StorageError, match="deleted topic of this name"):
        directory.log(name, TopicConfig(), uuid4())


BACKOFF_MS = 1_000
LAG_MS = 30_000


class ScriptedLeader:
    """In the place of the connection to broker 1: refuses with ``refusals``, by partition, what it is asked for anew.

    ``asked`` has of each request the partitions that it names, those that it forgets, and how long it may be held back.
    """

    is_closed = False

    def __init__(self):
        self.refusals = {}
        self.asked = []

    def recycle(self, frame):
        """Nothing is kept here."""

    async def ask_raw(self, api, request, *, version, timeout_s):
        assert (api, version) == (FETCH, FETCH_VERSION)
        body = decode_request(FETCH.key, version, memoryview(request), 0)
        named = [one.partition for topic in body.topics for one in topic.partitions]
        forgotten = [index for topic in body.forgotten_topics_data for index in topic.partitions]
        self.asked.append((sorted(named), forgotten, body.max_wait // timedelta(milliseconds=1)))
        refused = [
            {"partition_index": index, "error_code": self.refusals[index], "high_watermark": -1, "records": None}
            for index in named
            if index in self.refusals
        ]
        response = {
            "error_code": ErrorCode.none,
            "session_id": 7,
            "responses": [{"topic_id": TOPIC_ID, "partitions": refused}] if refused else [],
        }
        frame = response_header(FETCH.key, version, 1) + written(response_class(FETCH.key, version), response)
        return memoryview(frame)


class Rounds:
    """Broker 2's fetcher of two partitions of the scripted leader, with the clock in the test's hand."""

    def __init__(self):
        self.clock = ManualClock()
        self.leader = ScriptedLeader()
        settings = ClusterConfig(
            replica_fetch_max_bytes=1 << 20,
            replica_fetch_response_max_bytes=1 << 20,
            replica_fetch_min_bytes=1,
            replica_fetch_wait_max_ms=500,
            replica_fetch_backoff_ms=BACKOFF_MS,
            replica_socket_timeout_ms=30_000,
            replica_lag_time_max_ms=LAG_MS,
        )
        self.fetcher = Fetcher(
            ONE,
            0,
            lambda broker: None,
            lambda: BrokerRecord(TWO, "h", 1),
            CurrentConfig(BrokerConfig(cluster=settings)),
            self.clock,
            SimpleNamespace(took=lambda size, now: 0.0),
            None,
        )
        self.fetcher._peer = self.leader
        self.partitions = [new_partition(TWO, records=3, index=index) for index in range(2)]
        for partition in self.partitions:
            partition.follow(LeaderEpoch(2))
            self.fetcher.follow(partition, is_new=False, is_in_sync=True)

    async def next(self, *, after_ms=0):
        """What the request of the next round says."""
        self.clock.advance_ms(after_ms)
        before = len(self.leader.asked)
        await self.fetcher._round()
        [asked] = self.leader.asked[before:]
        return asked


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error])
def test_a_partition_that_is_refused_is_left_alone_for_the_backoff_and_then_asked_for_again(code):
    async def scenario():
        rounds = Rounds()
        rounds.leader.refusals = {0: code}
        for named in ([0, 1], [0]):
            assert (await rounds.next())[0] == named
            assert await rounds.next() == ([], [0], 500), "the session goes on without it"
            assert await rounds.next(after_ms=750) == ([], [], 250), "held back no longer than until it is due"
            rounds.clock.advance_ms(250)
        rounds.leader.refusals = {}
        assert await rounds.next() == ([0], [], 500)
        assert await rounds.next(after_ms=BACKOFF_MS) == ([], [], 500), "the session has it again"

    run(scenario)


def test_a_partition_that_is_due_within_a_millisecond_is_waited_for_and_not_asked_for_in_a_circle():
    async def scenario():
        rounds = Rounds()
        rounds.leader.refusals = {0: ErrorCode.not_leader_or_follower}
        await rounds.next()
        rounds.fetcher._session.followed[KEY].wait_until = 0.0004
        assert await rounds.next() == ([], [0], 1)

    run(scenario)


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_replica_that_stays_out_of_the_isr_is_named_again_in_a_new_session(is_in_sync):
    async def scenario():
        rounds = Rounds()
        rounds.fetcher.follow(rounds.partitions[1], is_new=False, is_in_sync=is_in_sync)
        for _ in range(2):
            assert (await rounds.next())[0] == ([] if rounds.leader.asked[1:] and is_in_sync else [0, 1])
            assert (await rounds.next(after_ms=LAG_MS - 1))[0] == []
            rounds.clock.advance_ms(1)

    run(scenario)


def test_news_of_the_leader_ends_the_backoff_of_a_partition():
    async def scenario():
        rounds = Rounds()
        rounds.leader.refusals = {0: ErrorCode.unknown_leader_epoch}
        assert (await rounds.next())[0] == [0, 1]
        assert (await rounds.next())[0] == []
        rounds.leader.refusals = {}
        rounds.partitions[0].follow(LeaderEpoch(3))
        rounds.fetcher.follow(rounds.partitions[0], is_new=False, is_in_sync=True)
        assert await rounds.next() == ([0], [], 500)

    run(scenario)


@pytest.mark.parametrize(
    ("is_new", "is_in_sync", "named", "is_slow"),
    [
        (False, False, (), False),
        (True, False, (), True),
        (False, False, ("*",), True),
        (False, False, ("0:2",), True),
        (False, False, ("1:2", "0:1"), False),
        (True, True, ("*",), False),
    ],
)
def test_a_replica_that_is_added_or_named_catches_up_slowly_and_no_other(is_new, is_in_sync, named, is_slow):
    async def scenario():
        follower = Follower(new_partition(TWO, records=0))
        waits = []
        follower.fetcher._throttle = SimpleNamespace(took=lambda size, now: waits.append(size) or 1.0)
        follower.fetcher.follow(follower.partition, is_new=is_new, is_in_sync=is_in_sync)
        # As when an option of the topic changes: nobody is told to follow anew.
        follower.partition.log.configure(TopicConfig(follower_replication_throttled_replicas=named))
        leader = new_partition(ONE, records=3)
        leader.lead(ONE, PartitionRecord((ONE, TWO), (ONE,), ONE, LeaderEpoch(2)))
        await follower.fetch_from(leader)
        assert follower.partition.log.log_end_offset == 3
        assert (waits, follower.fetcher._session.paused) == (([3 * len(BATCH)], {KEY}) if is_slow else ([], set()))

    run(scenario)


def test_nothing_is_asked_while_all_partitions_are_left_alone():
    async def scenario():
        rounds = Rounds()
        rounds.leader.refusals = dict.fromkeys((0, 1), ErrorCode.not_leader_or_follower)
        assert (await rounds.next())[0] == [0, 1]
        rounds.clock.advance_ms(BACKOFF_MS - 1)
        await rounds.fetcher._round()
        assert len(rounds.leader.asked) == 1
        assert (await rounds.next(after_ms=1))[0] == [0, 1]

    run(scenario)


def test_a_follower_does_not_say_that_it_has_what_it_has_not_synced():
    async def scenario():
        partition = new_partition(TWO, records=5)
        partition.log.flush()
        partition.log.configure(TopicConfig(flush_messages=1))
        follower = Follower(partition)
        [position] = follower.wanted()
        assert position.fetch_offset == 5
        # Copied for one leader, whose response was dropped before the sync; another one is asked now.
        partition.log.append(BATCH, HEADER, LeaderEpoch(2), 0)
        follower.fetcher.follow(partition, is_new=False, is_in_sync=True)
        assert follower.wanted() == []
        await partition.synced()
        [position] = follower.wanted()
        assert position.fetch_offset == 6

    run(scenario)


def test_very_many_positions_are_named_in_several_turns_and_without_what_was_forgotten_meanwhile():
    async def scenario():
        follower = Follower(new_partition(TWO, records=0))
        partitions = [new_partition(TWO, records=0, index=index) for index in range(1, 1200)]
        for partition in partitions:
            follower.fetcher.follow(partition, is_new=False, is_in_sync=True)
        asking = asyncio.ensure_future(follower.fetcher._session.positions_in_slices(1 << 20))
        await asyncio.sleep(0)
        assert not asking.done()
        for partition in partitions[:10]:
            follower.fetcher.forget(partition)
        wanted, turns = await counting_turns(asking)
        assert sorted(position.partition for position in wanted) == [0, *range(11, 1200)]
        assert turns >= 1

    asyncio.run(asyncio.wait_for(scenario(), 60))
