"""Moving a partition to other brokers: grow first, shrink later (KIP-455).

From [1, 2, 3] to [1, 4, 5]::

    begun       replicas [1, 4, 5, 2, 3]  adding [4, 5]  removing [2, 3]      4 and 5 begin to copy
                                                                             the leader takes them into the ISR
    finished    replicas [1, 4, 5]                                            when 1, 4 and 5 are all in it

So there are never fewer copies than before. Beginning another one meanwhile replaces the first: what was only being
added for that goes at once. Cancelling is going back to what was there before.

Whenever a replica goes, the partition gets a new leader epoch. It deletes its copy, and if it is given the partition
back the leader, who may have seen neither change by itself, must not take it for what it was.
"""

from collections.abc import Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.controller.elections import Liveness
from skep.metadata.model import NO_LEADER, PartitionRecord


def begun(
    partition: PartitionRecord, target: Sequence[BrokerId], brokers: Liveness, *, unclean: bool = False
) -> PartitionRecord:
    """The partition on its way to ``target``, or there at once where nobody has to copy anything.

    INVALID_REPLICA_ASSIGNMENT when everybody in sync is one that would go at once, unless ``unclean``.
    """
    original = _original(partition)
    removing = tuple(broker for broker in original if broker not in target)
    changed = _narrowed(partition, (*target, *removing), brokers, unclean)
    adding = tuple(broker for broker in target if broker not in original)
    return finished(changed._replace(adding=adding, removing=removing), brokers)


def cancelled(partition: PartitionRecord, brokers: Liveness, *, unclean: bool = False) -> PartitionRecord:
    """The partition without what the reassignment added. NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT."""
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    return _narrowed(partition, _original(partition), brokers, unclean)._replace(adding=(), removing=())


def finished(partition: PartitionRecord, brokers: Liveness) -> PartitionRecord:
    """The partition without what is to go, if all that is to stay is in sync; the very same record otherwise.

    Kafka finishes as soon as those added are in sync. Waiting for all leaves as many good copies as are wanted.
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
    heir = next((broker for broker in target if broker in brokers.active), NO_LEADER)
    return partition if heir == NO_LEADER else done.elected(heir, isr)


def _original(partition: PartitionRecord) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def _narrowed(
    partition: PartitionRecord, replicas: tuple[BrokerId, ...], brokers: Liveness, unclean: bool
) -> PartitionRecord:
    """With these replicas; who is not one of them is not in sync any more, and does not lead."""
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    last_isr = tuple(broker for broker in partition.last_isr if broker in replicas)
    changed = partition._replace(replicas=replicas, isr=isr, last_isr=last_isr)
    if isr:
        if partition.leader in (*replicas, NO_LEADER):
            is_smaller = not set(partition.replicas) <= set(replicas)
            return changed.elected(partition.leader, isr) if is_smaller else changed
        heir = next((broker for broker in replicas if broker in isr and broker in brokers.active), NO_LEADER)
        return changed.elected(heir, isr)
    if not unclean:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "No replica that would stay is in sync; going on would require an unclean leader election.",
        )
    held = [broker for broker in replicas if broker in partition.replicas and broker not in partition.adding]
    heir = next((broker for broker in held if broker in brokers.active), NO_LEADER)
    return changed.elected(heir, (heir,) if heir != NO_LEADER else held[:1])
