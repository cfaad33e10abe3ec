"""How much a leader gives to replicas that are to catch up slowly."""

from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.broker_config import BrokerConfig
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import NEVER, TopicConfig
from skep.base.ids import TopicPartition
from skep.broker.fetch.follower_fetch import ThrottledReplicas
from tests.manual_clock import ManualClock
from tests.unit.broker.clusters import partition

RATE = 1_000
LEFT = 50_000


class Leader:
    """Broker 1 leads partition 0 of a topic; it is asked on behalf of broker 3."""

    def __init__(self, record, named=(), rate=RATE):
        self.clock = ManualClock()
        topic = SimpleNamespace(topic_id=uuid4(), partitions=[record])
        catalog = SimpleNamespace(image=SimpleNamespace(topics={"t": topic}))
        config = TopicConfig(leader_replication_throttled_replicas=named)
        self._partition = SimpleNamespace(topic_partition=TopicPartition("t", 0), log=SimpleNamespace(config=config))
        self._replicas = ThrottledReplicas(
            catalog,
            1,
            self.clock,
            CurrentConfig(BrokerConfig(cluster=ClusterConfig(leader_replication_throttled_rate=rate))),
        )

    def room(self):
        return self._replicas.room(3, self._partition, LEFT)

    def give(self, size):
        self._replicas.gave(size)


BEHIND = partition([1, 2, 3], isr=[1, 2])


@pytest.mark.parametrize(
    ("record", "named", "room"),
    [
        (BEHIND, (), None),
        (partition([1, 2, 3], isr=[1, 2], adding=[3]), (), RATE),
        (BEHIND, ("*",), RATE),
        (BEHIND, ("0:1",), RATE),
        (BEHIND, ("1:1", "0:2", "0:3"), None),
        (partition([1, 2, 3]), ("*",), None),
        (partition([1, 2, 3], adding=[3]), (), None),
    ],
    ids=["behind", "added", "all", "leader named", "others named", "in sync", "added and in sync"],
)
def test_a_replica_that_is_added_or_whose_leader_is_named_is_given_little_until_it_is_in_sync(record, named, room):
    assert Leader(record, named).room() == room


def test_without_a_rate_nobody_is_held_back():
    assert Leader(BEHIND, ("*",), rate=NEVER).room() is None


def test_what_was_given_is_waited_for():
    leader = Leader(BEHIND, ("*",))
    leader.give(2 * RATE)
    assert leader.room() == 0
    leader.clock.advance_ms(1_600)
    assert leader.room() == RATE
