"""Which fetcher follows what, and that following goes on when something fails and ends when it is stopped."""

import asyncio
import contextlib

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.ids import BrokerId, LeaderEpoch, TopicPartition
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord
from skep.replication.follower.fetcher import Fetcher
from skep.replication.follower.fetcher_manager import FetcherManager
from tests.manual_clock import ManualClock

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
SETTINGS = ClusterConfig(
    follower_replication_throttled_rate=1 << 40, replica_fetch_backoff_ms=1, num_replica_fetchers=2
)


def record(leader, epoch=4):
    return PartitionRecord((ONE, TWO, THREE), (ONE, TWO, THREE), leader, LeaderEpoch(epoch))


class Followed:
    """Of a partition, what says which fetcher it belongs to."""

    topic_id = 7
    is_leader = False

    def __init__(self, index=0):
        self.topic_partition = TopicPartition("t", index)


async def nothing(partition):
    return


@contextlib.asynccontextmanager
async def following_as(node_id):
    image = ClusterImage.of("c")
    followers = FetcherManager(
        lambda: BrokerRecord(node_id, "h", 1),
        lambda: image,
        CurrentConfig(BrokerConfig(cluster=SETTINGS)),
        ManualClock(),
        nothing,
    )
    try:
        yield followers
    finally:
        await followers.stop()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 60))


class Rounds:
    """What fetchers do instead of fetching; ``failures`` are raised first."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.began = asyncio.Queue()

    async def __call__(self):
        self.began.put_nowait(None)
        if self.failures:
            raise self.failures.pop(0)
        await asyncio.Event().wait()


def test_a_fetcher_goes_on_after_a_bug(monkeypatch):
    async def scenario():
        rounds = Rounds(KeyError("not followed any more"), ZeroDivisionError())
        monkeypatch.setattr(Fetcher, "_round", lambda self: rounds())
        async with following_as(ONE) as followers:
            followers.role_changed(Followed(), record(TWO))
            for _ in range(3):
                await rounds.began.get()

    run(scenario)


def test_after_the_stop_nothing_is_followed_whatever_the_role(monkeypatch):
    async def scenario():
        rounds = Rounds()
        monkeypatch.setattr(Fetcher, "_round", lambda self: rounds())
        async with following_as(ONE) as followers:
            partition = Followed()
            followers.role_changed(partition, record(TWO))
            await rounds.began.get()
            await followers.stop()
            followers.role_changed(partition, record(THREE, epoch=5))
            followers.role_changed(Followed(1), record(TWO))
            assert not followers._tasks
            assert not followers._fetchers

    run(scenario)


def test_a_partition_moves_from_the_fetcher_of_one_leader_to_that_of_the_next(monkeypatch):
    async def scenario():
        monkeypatch.setattr(Fetcher, "_round", lambda self: Rounds()())
        async with following_as(ONE) as followers:
            partition = Followed()
            followers.role_changed(partition, record(TWO))
            (task,) = followers._tasks.values()
            followers.role_changed(partition, record(THREE, epoch=5))
            assert [place[0] for place in followers._fetchers] == [THREE]
            await asyncio.wait([task])
            assert task.cancelled()
            for role in (record(NO_LEADER, epoch=6), record(TWO, epoch=7), None):
                followers.role_changed(partition, role)
            assert not followers._fetchers

    run(scenario)


def test_the_partitions_of_a_leader_are_shared_by_as_many_fetchers_as_are_set(monkeypatch):
    async def scenario():
        monkeypatch.setattr(Fetcher, "_round", lambda self: Rounds()())
        async with following_as(ONE) as followers:
            partitions = [Followed(index) for index in range(40)]
            for partition in partitions:
                followers.role_changed(partition, record(TWO))
            assert len(followers._fetchers) == SETTINGS.num_replica_fetchers
            assert sum(len(fetcher) for fetcher in followers._fetchers.values()) == len(partitions)
            for partition in partitions:
                followers.role_changed(partition, None)
            assert not followers._fetchers

    run(scenario)
