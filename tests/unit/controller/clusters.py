"""Partitions and brokers as the tests of the controller write them, and as Hypothesis makes them up."""

from uuid import UUID

from hypothesis import strategies as st

from skep.controller.elections import Liveness
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord


def partition(replicas, isr=None, leader=None, epoch=5, adding=(), removing=(), last_isr=(), reports=()):
    """In sync and led by its first replica unless told otherwise."""
    isr = replicas if isr is None else isr
    leader = replicas[0] if leader is None else leader
    moves = tuple(adding), tuple(removing)
    return PartitionRecord(tuple(replicas), tuple(isr), leader, epoch, *moves, tuple(last_isr), tuple(reports))


def liveness(*live, stopping=()):
    """Broker 3 is registered with epoch 30."""
    there = frozenset(live) | frozenset(stopping)
    return Liveness(there, frozenset(live) - frozenset(stopping), {broker: 10 * broker for broker in there})


def broker(number, rack=None, machine="m", stopping=False):
    return BrokerRecord(number, "h", 9000 + number, rack, 1, machine, stopping)


def topic(name, *partitions, **config):
    config = {option.replace("_", "."): text for option, text in config.items()}
    return TopicRecord(name, UUID(int=sum(name.encode()) + 1), partitions, config, version=1)


def image(brokers, *topics):
    return ClusterImage.of("c", [broker(one) if isinstance(one, int) else one for one in brokers], topics)


BROKERS = range(1, 7)


@st.composite
def partitions(draw, may_be_reassigning=True):
    """Any record that can lie in the store: the leader is in the ISR, which is never empty, or there is none."""
    replicas = draw(st.permutations(BROKERS))[: draw(st.integers(1, 5))]
    adding, removing = [], []
    if len(replicas) > 1 and may_be_reassigning and draw(st.booleans()):
        # Those to be removed stand last; those added are among the others; somebody was there before.
        removing = replicas[len(replicas) - draw(st.integers(0, len(replicas) - 1)) :]
        target = replicas[: len(replicas) - len(removing)]
        most = len(target) if removing else len(target) - 1
        adding = draw(st.permutations(target))[: draw(st.integers(0 if removing else 1, most))]
    isr = draw(st.permutations(replicas))[: draw(st.integers(1, len(replicas)))]
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    return partition(replicas, isr, leader, draw(st.integers(0, 9)), adding, removing)


@st.composite
def livenesses(draw):
    live = draw(st.sets(st.sampled_from(BROKERS)))
    return liveness(*live, stopping=draw(st.sets(st.sampled_from(sorted(live)))) if live else ())
