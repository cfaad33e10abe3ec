"""Moves a partition to other brokers: adds replicas first, removes replicas later (KIP-455).

From [1, 2, 3] to [1, 4, 5]::

    begun       replicas [1, 4, 5, 2, 3]  adding [4, 5]  removing [2, 3]      4 and 5 begin to copy
                                                                             the leader adds them to the ISR
    finished    replicas [1, 4, 5]                                            when 1, 4 and 5 are all in the ISR

So there are never fewer copies than before. A new reassignment replaces the one in progress: replicas that only the
first one was adding are removed at once. Cancelling returns to the replicas from before.

Whenever a replica is removed, the partition gets a new leader epoch. The replica deletes its log, and if it gets the
partition back, the leader, which may have seen neither change, must not take it for the replica that it was.
"""

from collections.abc import Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.controller.elections import Liveness
from skep.metadata.model import NO_LEADER, PartitionRecord


def begun(
    partition: PartitionRecord, target: Sequence[BrokerId], brokers: Liveness, *, unclean: bool = False
) -> PartitionRecord:
    """Returns the partition on its way to ``target``, or at ``target`` if no broker has to copy anything.

    Raises INVALID_REPLICA_ASSIGNMENT when all in-sync replicas would be removed at once, unless ``unclean``.
    """
    original = _original(partition)
    removing = tuple(broker for broker in original if broker not in target)
    changed = _narrowed(partition, (*target, *removing), brokers, unclean)
    adding = tuple(broker for broker in target if broker not in original)
    return finished(changed._replace(adding=adding, removing=removing), brokers)


def cancelled(partition: PartitionRecord, brokers: Liveness, *, unclean: bool = False) -> PartitionRecord:
    """Returns the partition without the added replicas. Raises NO_REASSIGNMENT_IN_PROGRESS or
    INVALID_REPLICA_ASSIGNMENT."""
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    return _narrowed(partition, _original(partition), brokers, unclean)._replace(adding=(), removing=())


def finished(partition: PartitionRecord, brokers: Liveness) -> PartitionRecord:
    """Returns the partition without the removed replicas if all of the target is in sync; the same object otherwise.

    Kafka finishes as soon as the added replicas are in sync. Waiting for the whole target leaves as many good copies as
    are wanted.
    """
    if not partition.is_reassigning:
        return partition
    target = partition.target
    if not set(target) <= set(partition.isr):
        return partition
    isr = tuple(broker for broker in partition.isr if broker in target)
    done = partition._replace(replicas=target, isr=isr, adding=(), removing=(), last_isr=())
    if partition.leader in target:
        return done.elected(partition.leader, isr) if partition.removing else done
    new_leader = next((broker for broker in target if broker in brokers.active), NO_LEADER)
    return partition if new_leader == NO_LEADER else done.elected(new_leader, isr)


def _original(partition: PartitionRecord) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def _narrowed(
    partition: PartitionRecord, replicas: tuple[BrokerId, ...], brokers: Liveness, unclean: bool
) -> PartitionRecord:
    """Returns the partition with these replicas only; the others leave the ISR and do not lead."""
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    last_isr = tuple(broker for broker in partition.last_isr if broker in replicas)
    changed = partition._replace(replicas=replicas, isr=isr, last_isr=last_isr)
    if isr:
        if partition.leader in (*replicas, NO_LEADER):
            is_smaller = not set(partition.replicas) <= set(replicas)
            return changed.elected(partition.leader, isr) if is_smaller else changed
        new_leader = next((broker for broker in replicas if broker in isr and broker in brokers.active), NO_LEADER)
        return changed.elected(new_leader, isr)
    if not unclean:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "None of the remaining replicas is in sync; continuing would require an unclean leader election.",
        )
    held = [broker for broker in replicas if broker in partition.replicas and broker not in partition.adding]
    new_leader = next((broker for broker in held if broker in brokers.active), NO_LEADER)
    return changed.elected(new_leader, (new_leader,) if new_leader != NO_LEADER else held[:1])
