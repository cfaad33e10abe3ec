"""Who leads a partition and who is in sync, when brokers come and go: one partition at a time, without any memory.

What everything here rests on: *each member of an ISR has all that was ever acknowledged with acks=all*, for a leader
waits for all of them. So any live member may lead. So, too, the ISR of a partition that has no leader stays as it is,
however many of its members are dead: nothing can be acknowledged meanwhile, and the first to come back may lead. Only
its leader adds a member to an ISR, having seen it catch up; what is here takes members out.

A broker that may have lost records says so itself (``broker/cluster/membership.py``): a controller could only guess it
from a new registration, and a new controller not even that. It leaves the ISR.

When all members have left the ISR that way (the whole cluster lost power), the partition is *undecided*: each of the
last ISR may lack the end of its log, and no other replica is known to have more. So the longest log leads, once all of
the last ISR are back and have said how long theirs is (``replication/log_end_reporter.py``). Of two logs the longer is
the one whose last batch has the higher leader epoch and, in the same epoch, the one that ends later. It has all that is
committed and in any of them: batches of one epoch are one leader's, and that leader had all that was committed before.

Worked example, (last epoch, log end)::

    broker 1  (4, 900)     lost 100 records of epoch 4
    broker 2  (4, 1000)    leads: 1 and 3 take the rest from it, and cut what it does not have
    broker 3  (3, 1100)    was away during epoch 4; 1000 to 1099 of epoch 3 were never committed
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from skep.base.ids import BrokerId
from skep.metadata.model import NEW_DISK, NO_LEADER, BrokerRecord, LogReport, PartitionRecord


class Liveness(NamedTuple):
    """The brokers that are registered, and those of them that can be given something to do: not the stopping ones.

    ``epochs`` are the epochs of their registrations.
    """

    live: frozenset[BrokerId]
    active: frozenset[BrokerId]
    epochs: Mapping[BrokerId, int] = MappingProxyType({})

    @classmethod
    def of(cls, brokers: Mapping[BrokerId, BrokerRecord]) -> "Liveness":
        return cls(
            frozenset(brokers),
            frozenset(broker.id for broker in brokers.values() if not broker.stopping),
            {broker.id: broker.epoch for broker in brokers.values()},
        )


def settled(partition: PartitionRecord, brokers: Liveness, *, unclean: bool = False) -> PartitionRecord:
    """The partition led by a broker that can; the very same record when nothing is to be done.

    ``unclean``: rather lose records than be without a leader, when nobody in sync is there.
    """
    active, leader = brokers.active, partition.leader
    if leader in active and leader in partition.isr and active.issuperset(partition.isr):
        return partition
    isr = tuple(broker for broker in partition.isr if broker in active)
    if isr:
        return partition.with_isr(isr) if leader in isr else partition.elected(_first(partition.replicas, isr), isr)
    if leader in brokers.live and leader in partition.isr:
        # It is stopping, and nobody can take over. It leads to the end; what is dead already must not hold it up.
        live = tuple(broker for broker in partition.isr if broker in brokers.live)
        return partition if live == partition.isr else partition.with_isr(live)
    is_compared = partition.is_undecided and not missing(partition, brokers)
    if is_compared and (heir := _longest(partition, brokers)) != NO_LEADER:
        return partition.elected(heir, (heir,))
    if unclean and (heir := _least_bad(partition, brokers)) != NO_LEADER:
        # The others are given up: nobody waits for them the next time.
        return partition.elected(heir, (heir,))._replace(last_isr=())
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


def missing(partition: PartitionRecord, brokers: Liveness) -> frozenset[BrokerId]:
    """Of an undecided partition, the replicas that have yet to say how long their log is before one is elected.

    These are the last ISR, and whoever else is there: it will say so in a moment, and may have more than all of them.
    When all that have spoken have nothing at all, and one of them has a new disk, it takes all replicas.
    """
    reports = _reports(partition, brokers)
    wanted = set(partition.awaited) | brokers.live.intersection(partition.replicas)
    epochs = {report.last_epoch for report in reports.values()}
    if NEW_DISK in epochs and max(epochs) < 0:
        wanted |= set(partition.replicas) - set(partition.adding)
    return frozenset(wanted - reports.keys())


def unheard(partition: PartitionRecord, brokers: Liveness) -> frozenset[BrokerId]:
    """The live replicas of a partition without a leader that have yet to say how long their log is."""
    return brokers.live.intersection(partition.replicas) - _reports(partition, brokers).keys()


def _reports(partition: PartitionRecord, brokers: Liveness) -> dict[BrokerId, LogReport]:
    """Those that the brokers of now have made. Between two registrations of a broker its log may become shorter."""
    return {
        report.broker: report
        for report in partition.reports
        if brokers.epochs.get(report.broker) == report.broker_epoch
    }


def _longest(partition: PartitionRecord, brokers: Liveness) -> BrokerId:
    """Of logs that are equal, that of a broker which is not stopping, then that of the first replica.

    A replica that was not in the last ISR counts if its last batch is of the same epoch as theirs. One of a later epoch
    may never have been committed, while what they have of an earlier epoch was committed by a leader that came after.
    """
    reports = _reports(partition, brokers)
    last_epoch = max((reports[broker].last_epoch for broker in partition.awaited if broker in reports), default=-1)
    reported = [
        broker
        for broker in partition.replicas
        if broker in reports
        and (broker in partition.awaited or last_epoch < 0 or reports[broker].last_epoch == last_epoch)
    ]
    return max(reported, key=lambda broker: (*_length(reports[broker]), broker in brokers.active), default=NO_LEADER)


def _length(report: LogReport) -> tuple[int, int]:
    return report.last_epoch, report.log_end_offset


def _least_bad(partition: PartitionRecord, brokers: Liveness) -> BrokerId:
    """The live replica with the longest log, as far as they have said; NO_LEADER when none is there.

    One that a reassignment adds comes last: it may have next to nothing.
    """
    reports = _reports(partition, brokers)
    there = [broker for broker in partition.replicas if broker in brokers.active]
    nothing = (-1, -1)
    return max(
        there,
        key=lambda broker: (
            broker not in partition.adding,
            _length(reports[broker]) if broker in reports else nothing,
        ),
        default=NO_LEADER,
    )
