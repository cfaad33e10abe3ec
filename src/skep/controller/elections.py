"""Elections: the leader and the ISR of one partition when brokers come and go. Stateless.

Everything here rests on one fact: *each member of an ISR has everything that was ever acknowledged with acks=all*,
because a leader waits for all of them. So any live member may lead. For the same reason the ISR of a partition without
a leader stays as it is, however many of its members are dead: nothing can be acknowledged meanwhile, and the first one
to come back may lead. Only a leader adds members to an ISR, after it has seen them catch up; this module removes
members.

A broker that may have lost records says so itself (``membership.py``) and leaves the ISR: a controller could only guess
it from a new registration, and a new controller not even that.

When all members have left the ISR that way (the whole cluster lost power), the partition is *undecided*: each member of
the last ISR may lack the end of its log, and no other replica is known to have more. So the longest log leads, once all
of the last ISR are back and have reported their log ends (``replication/log_end_reporter.py``). Of two logs the longer
is the one whose last batch has the higher leader epoch and, in the same epoch, the one that ends later. It has
everything that is committed and is in any of the logs: all batches of one epoch come from one leader, and that leader
had everything that was committed before. The exception, an uncommitted batch of an epoch between, is excluded by the
leaders: they commit nothing before the last ISR is their own (``InSyncReplicas.is_unconfirmed``).

Worked example, (last epoch, log end)::

    broker 1  (4, 900)     lost 100 records of epoch 4
    broker 2  (4, 1000)    leads: 1 and 3 fetch the rest from it, and truncate what it does not have
    broker 3  (3, 1100)    was away during epoch 4; 1000 to 1099 of epoch 3 were never committed
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from skep.base.ids import BrokerId
from skep.metadata.model import NEW_DISK, NO_LEADER, BrokerRecord, LogReport, PartitionRecord


class Liveness(NamedTuple):
    """The registered brokers, and those of them that can be given work, which excludes stopping ones.

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
    """Returns the partition with a leader that can lead; the same object if nothing changes.

    ``unclean``: with no in-sync replica live, prefer losing records to having no leader.
    """
    active, leader = brokers.active, partition.leader
    if leader in active and leader in partition.isr and active.issuperset(partition.isr):
        return partition
    isr = tuple(broker for broker in partition.isr if broker in active)
    if isr:
        return partition.with_isr(isr) if leader in isr else partition.elected(_first(partition.replicas, isr), isr)
    if leader in brokers.live and leader in partition.isr:
        # The leader is stopping, and no other broker can take over. It leads to the end; dead members must not hold it
        # up.
        live = tuple(broker for broker in partition.isr if broker in brokers.live)
        return partition if live == partition.isr else partition.with_isr(live)
    is_compared = partition.is_undecided and not missing(partition, brokers)
    if is_compared and (new_leader := _longest_log(partition, brokers)) != NO_LEADER:
        return partition.elected(new_leader, (new_leader,))
    if unclean and (new_leader := _unclean_leader(partition, brokers)) != NO_LEADER:
        # The other replicas are given up: no later election waits for them.
        return partition.elected(new_leader, (new_leader,))._replace(last_isr=())
    return partition if leader == NO_LEADER else partition.elected(NO_LEADER, partition.isr)


def preferred(partition: PartitionRecord, brokers: Liveness) -> PartitionRecord:
    """Returns the partition led by its first replica; the same object if that one leads already, or cannot lead."""
    first = partition.target[0]
    if partition.leader == first or first not in partition.isr or first not in brokers.active:
        return partition
    return partition.elected(first, partition.isr)


def _first(replicas: tuple[BrokerId, ...], among: tuple[BrokerId, ...]) -> BrokerId:
    # The target replicas come first in ``replicas``, so during a reassignment one of them is chosen if possible.
    return next((broker for broker in replicas if broker in among), NO_LEADER)


def missing(partition: PartitionRecord, brokers: Liveness) -> frozenset[BrokerId]:
    """Returns the replicas of an undecided partition whose reports are needed before one is elected.

    These are the last ISR, and all other live replicas: they will report in a moment, and may have more than all of
    them. If all reported logs are empty and one of the brokers has a new disk, the reports of all replicas are needed.
    """
    reports = _reports(partition, brokers)
    wanted = set(partition.awaited) | brokers.live.intersection(partition.replicas)
    epochs = {report.last_epoch for report in reports.values()}
    if NEW_DISK in epochs and max(epochs) < 0:
        wanted |= set(partition.replicas) - set(partition.adding)
    return frozenset(wanted - reports.keys())


def unreported(partition: PartitionRecord, brokers: Liveness) -> frozenset[BrokerId]:
    """Returns the live replicas of a partition without a leader that have not reported their log ends yet."""
    return brokers.live.intersection(partition.replicas) - _reports(partition, brokers).keys()


def _reports(partition: PartitionRecord, brokers: Liveness) -> dict[BrokerId, LogReport]:
    """Returns the reports of current registrations. Between two registrations of a broker its log may become
    shorter."""
    return {
        report.broker: report
        for report in partition.reports
        if brokers.epochs.get(report.broker) == report.broker_epoch
    }


def _longest_log(partition: PartitionRecord, brokers: Liveness) -> BrokerId:
    """Returns the replica with the longest log. Of equal logs it is one whose broker is not stopping, then the first
    replica.

    A replica that was not in the last ISR counts if its last batch has the same epoch as theirs. A batch of a later
    epoch may never have been committed, while what the last ISR has of an earlier epoch was committed by a later
    leader.
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


def _unclean_leader(partition: PartitionRecord, brokers: Liveness) -> BrokerId:
    """Returns the live replica with the longest reported log; NO_LEADER when none is live.

    A replica that a reassignment adds comes last: it may have next to nothing.
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
