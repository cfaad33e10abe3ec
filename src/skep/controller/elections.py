"""Who leads a partition and who is in sync, when brokers come and go: one partition at a time, without any memory.

What everything here rests on: *each member of an ISR has all that was ever acknowledged with acks=all*, for a leader
waits for all of them. So any live member may lead. So, too, the ISR of a partition that has no leader stays as it is,
however many of its members are dead: nothing can be acknowledged meanwhile, and the first to come back may lead. Only
its leader adds a member to an ISR, having seen it catch up; what is here takes members out.

A broker that may have lost records says so itself (``broker/membership.py``): a controller could only guess it from a
new registration, and a new controller not even that.
"""

from collections.abc import Mapping
from typing import NamedTuple

from skep.base.ids import BrokerId
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord


class Liveness(NamedTuple):
    """The brokers that are registered, and those of them that can be given something to do: not the stopping ones."""

    live: frozenset[BrokerId]
    active: frozenset[BrokerId]

    @classmethod
    def of(cls, brokers: Mapping[BrokerId, BrokerRecord]) -> "Liveness":
        return cls(frozenset(brokers), frozenset(broker.id for broker in brokers.values() if not broker.stopping))


def settled(partition: PartitionRecord, brokers: Liveness, *, unclean: bool = False) -> PartitionRecord:
    """The partition led by a broker that can; the very same record when nothing is to be done.

    ``unclean``: rather lose records than be without a leader, when nobody in sync is there.
    """
    active, leader = brokers.active, partition.leader
    if leader in active and leader in partition.isr and active.issuperset(partition.isr):
        return partition
    isr = tuple(broker for broker in partition.isr if broker in active)
    if isr:
        return partition._replace(isr=isr) if leader in isr else partition.elected(_first(partition.replicas, isr), isr)
    if leader in brokers.live and leader in partition.isr:
        # It is stopping, and nobody can take over. It leads to the end; what is dead already must not hold it up.
        live = tuple(broker for broker in partition.isr if broker in brokers.live)
        return partition if live == partition.isr else partition._replace(isr=live)
    if unclean and (heir := _least_bad(partition, active)) != NO_LEADER:
        return partition.elected(heir, (heir,))
    return partition if leader == NO_LEADER else partition.elected(NO_LEADER, partition.isr)


def preferred(partition: PartitionRecord, brokers: Liveness) -> PartitionRecord:
    """The partition led by the first of its replicas; the very same record when that one leads already, or cannot."""
    first = partition.target[0]
    if partition.leader == first or first not in partition.isr or first not in brokers.active:
        return partition
    return partition.elected(first, partition.isr)


def _first(replicas: tuple[BrokerId, ...], among: tuple[BrokerId, ...]) -> BrokerId:
    # Those wanted in the end stand first in replicas, so during a reassignment one of them is taken if one can be.
    return next((broker for broker in replicas if broker in among), NO_LEADER)


def _least_bad(partition: PartitionRecord, active: frozenset[BrokerId]) -> BrokerId:
    """A live replica, of those that a reassignment adds only if there is no other: they may have next to nothing."""
    candidates = sorted(partition.replicas, key=lambda broker: broker in partition.adding)
    return next((broker for broker in candidates if broker in active), NO_LEADER)
