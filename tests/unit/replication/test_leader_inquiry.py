"""What another broker says of later elections is believed, and nothing else that it says."""

import asyncio
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.ids import BrokerId, LeaderEpoch
from skep.client.errors import Unreachable
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord
from skep.replication.leader_inquiry import LeaderInquiry

ONE, TWO, THREE, FOUR = (BrokerId(number) for number in (1, 2, 3, 4))
TOPIC_ID = uuid4()
KNOWN = PartitionRecord((ONE, TWO, THREE), (ONE, TWO), ONE, LeaderEpoch(5))


class Catalog:
    def __init__(self):
        brokers = [BrokerRecord(broker, "host", 9092) for broker in (ONE, TWO, THREE)]
        self.image = ClusterImage.of("c", brokers, [TopicRecord("t", TOPIC_ID, (KNOWN,))])

    async def apply_elections(self, name, change):
        if name in self.image.topics:
            self.image = self.image.with_topic(change(self.image.topics[name]))


def told(leader, epoch, *, name="t", topic_id=TOPIC_ID, index=0):
    partition = SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=epoch, isr_nodes=[THREE])
    return SimpleNamespace(topics=[SimpleNamespace(name=name, topic_id=topic_id, partitions=[partition])])


def heard(**responses):
    """The partition after what brokers 2 and 3 answer; an exception is a response that does not come."""

    async def ask(broker, api, body):
        response = responses[f"broker_{broker.id}"]
        if isinstance(response, Exception):
            raise response
        return response

    async def scenario():
        catalog = Catalog()
        leader_inquiry = LeaderInquiry(ONE, catalog)
        leader_inquiry._peers = SimpleNamespace(ask=ask)
        await leader_inquiry.ask(["t"])
        return catalog.image.topics["t"].partitions[0]

    return asyncio.run(scenario())


@pytest.mark.parametrize("leader", [TWO, THREE, NO_LEADER])
def test_a_later_election_is_believed_also_when_the_other_is_silent(leader):
    after = PartitionRecord((ONE, TWO, THREE), (THREE,), leader, LeaderEpoch(6))
    assert heard(broker_2=Unreachable("gone"), broker_3=told(leader, 6)) == after


def test_of_two_the_later_one():
    assert heard(broker_2=told(TWO, 7), broker_3=told(THREE, 6)).leader == TWO
    assert heard(broker_2=told(TWO, 6), broker_3=told(THREE, 7)).leader == THREE


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(told(TWO, 5), id="the epoch that we know"),
        pytest.param(told(TWO, 4), id="an older epoch"),
        pytest.param(told(FOUR, 6), id="a leader that holds no replica"),
        pytest.param(told(ONE, 6), id="that we lead, which only the store may say"),
        pytest.param(told(TWO, 6, topic_id=uuid4()), id="another topic of the name"),
        pytest.param(told(TWO, 6, name="u"), id="a topic that we do not know"),
        pytest.param(told(TWO, 6, index=1), id="a partition that we do not know"),
        pytest.param(SimpleNamespace(topics=[]), id="nothing"),
    ],
)
def test_nothing_else_is(nonsense):
    assert heard(broker_2=nonsense, broker_3=nonsense) == KNOWN
