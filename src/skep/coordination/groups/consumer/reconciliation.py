"""Moves a member from its current partitions to its target (KIP-848), one heartbeat at a time.

A partition moves to its new owner only after the old owner has confirmed the revocation. So a member first revokes what
is not in its target and stays in its epoch. Then it moves to the target's epoch and gets the partitions that are free,
and the others as they become free::

    epoch 4: [0 1 2 3]      target of epoch 5: [0 1 4]      4 is still held by another member
    epoch 4: [0 1], revoke 2 and 3      UNREVOKED_PARTITIONS
    ... the member owns only [0 1]: 2 and 3 are free
    epoch 5: [0 1]                      UNRELEASED_PARTITIONS
    ... the other member has revoked 4
    epoch 5: [0 1 4]                    STABLE

This is a pure function from a member and ``ReconcileInputs`` to the member after the step.
"""

import uuid
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, Held, MemberState


class ReconcileInputs(NamedTuple):
    """What a step depends on besides the member.

    ``owned`` are the partitions that the member reports, None if it does not. ``is_free`` returns whether no other
    member holds a partition.
    """

    target_epoch: int
    target: Partitions
    subscribed_topic_ids: Container[uuid.UUID]
    has_subscription_changed: bool
    owned: Partitions | None
    is_free: Callable[[uuid.UUID, int], bool]


def reconcile(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    """Returns the member after the step; the same object if nothing changes."""
    return _STEPS[member.state](member, inputs)


def _from_stable(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    if member.member_epoch != inputs.target_epoch:
        return _towards_target(member, inputs)
    return _within_subscription(member, inputs) if inputs.has_subscription_changed else member


def _from_unrevoked(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    if not _still_has(inputs.owned, member.pending_revocation):
        return _towards_target(member, inputs)
    return _within_subscription(member, inputs) if inputs.has_subscription_changed else member


def _from_unreleased(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    moved = _towards_target(member, inputs)
    return member if moved == member else moved


def _from_unknown(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    """Only a member without partitions can get a known state."""
    if inputs.owned is None or inputs.owned:
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return _towards_target(member, inputs)


_STEPS: Mapping[MemberState, Callable[[ConsumerMember, ReconcileInputs], ConsumerMember]] = {
    MemberState.STABLE: _from_stable,
    MemberState.UNREVOKED_PARTITIONS: _from_unrevoked,
    MemberState.UNRELEASED_PARTITIONS: _from_unreleased,
    MemberState.UNKNOWN: _from_unknown,
}


def _towards_target(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    stays: dict[uuid.UUID, dict[int, int]] = {}
    revoked: dict[uuid.UUID, dict[int, int]] = {}
    for topic, epochs in member.assigned.items():
        wanted = _wanted(inputs, topic)
        for partition, epoch in epochs.items():
            (stays if partition in wanted else revoked).setdefault(topic, {})[partition] = epoch
    if revoked and _still_has(inputs.owned, revoked):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, stays, revoked)
    is_waiting = False
    for topic in inputs.target:
        for partition in sorted(_wanted(inputs, topic)):
            if partition in stays.get(topic, ()):
                continue
            if inputs.is_free(topic, partition):
                stays.setdefault(topic, {})[partition] = inputs.target_epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return member.at_epoch(inputs.target_epoch, state, stays, {})


def _within_subscription(member: ConsumerMember, inputs: ReconcileInputs) -> ConsumerMember:
    """Revokes the topics that the member no longer subscribes to, without waiting for the next target."""
    unsubscribed = {
        topic: epochs for topic, epochs in member.assigned.items() if topic not in inputs.subscribed_topic_ids
    }
    if not unsubscribed:
        return member
    stays = {topic: epochs for topic, epochs in member.assigned.items() if topic not in unsubscribed}
    revoked = dict(member.pending_revocation)
    for topic, epochs in unsubscribed.items():
        revoked[topic] = {**revoked.get(topic, {}), **epochs}
    if _still_has(inputs.owned, revoked):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, stays, revoked)
    return member.at_epoch(member.member_epoch, member.state, stays, member.pending_revocation)


def _wanted(inputs: ReconcileInputs, topic: uuid.UUID) -> frozenset[int]:
    """Returns the target's partitions of the topic; none if the member no longer subscribes to it."""
    return inputs.target.get(topic, frozenset()) if topic in inputs.subscribed_topic_ids else frozenset()


def _still_has(owned: Partitions | None, revoked: Held) -> bool:
    """Whether the member may still own a revoked partition. One that reports nothing may own any."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(revoked.get(topic, ())) for topic, partitions in owned.items())
