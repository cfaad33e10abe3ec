"""How a member comes from the partitions it has to those it is to have (KIP-848), one heartbeat at a time.

A partition goes to its new owner only when the old one has said that it has let go of it. So a member first gives up
what is not in its target, staying in its epoch, and then moves to the target's epoch and gets what is free, and the
rest as it becomes free::

    epoch 4: [0 1 2 3]      target of epoch 5: [0 1 4]      4 is still held by another member
    epoch 4: [0 1], revoke 2 and 3      UNREVOKED_PARTITIONS
    ... the member says that it has [0 1]: 2 and 3 are free
    epoch 5: [0 1]                      UNRELEASED_PARTITIONS
    ... the other member lets go of 4
    epoch 5: [0 1 4]                    STABLE

All of this is pure: from a member and what is known to the member as it is to be.
"""

import uuid
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, Held, MemberState


class Surroundings(NamedTuple):
    """What a member is reconciled with.

    ``owned`` is what the member says that it has, None when it does not say. ``is_free`` tells of a partition whether
    no other member holds it.
    """

    target_epoch: int
    target: Partitions
    subscribed_topic_ids: Container[uuid.UUID]
    has_subscription_changed: bool
    owned: Partitions | None
    is_free: Callable[[uuid.UUID, int], bool]


def reconcile(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    """The member as it is from now on; the very same when there is nothing to change."""
    return _STEPS[member.state](member, around)


def _from_stable(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    if member.member_epoch != around.target_epoch:
        return _towards_target(member, around)
    return _within_subscription(member, around) if around.has_subscription_changed else member


def _from_unrevoked(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    if not _still_has(around.owned, member.pending_revocation):
        return _towards_target(member, around)
    return _within_subscription(member, around) if around.has_subscription_changed else member


def _from_unreleased(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    moved = _towards_target(member, around)
    return member if moved == member else moved


def _from_unknown(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    """Only a member that has nothing can be brought into a state that is known."""
    if around.owned is None or around.owned:
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    return _towards_target(member, around)


_STEPS: Mapping[MemberState, Callable[[ConsumerMember, Surroundings], ConsumerMember]] = {
    MemberState.STABLE: _from_stable,
    MemberState.UNREVOKED_PARTITIONS: _from_unrevoked,
    MemberState.UNRELEASED_PARTITIONS: _from_unreleased,
    MemberState.UNKNOWN: _from_unknown,
}


def _towards_target(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    stays: dict[uuid.UUID, dict[int, int]] = {}
    revoked: dict[uuid.UUID, dict[int, int]] = {}
    for topic, epochs in member.assigned.items():
        wanted = _wanted(around, topic)
        for partition, epoch in epochs.items():
            (stays if partition in wanted else revoked).setdefault(topic, {})[partition] = epoch
    if revoked and _still_has(around.owned, revoked):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, stays, revoked)
    is_waiting = False
    for topic in around.target:
        for partition in sorted(_wanted(around, topic)):
            if partition in stays.get(topic, ()):
                continue
            if around.is_free(topic, partition):
                stays.setdefault(topic, {})[partition] = around.target_epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return member.at_epoch(around.target_epoch, state, stays, {})


def _within_subscription(member: ConsumerMember, around: Surroundings) -> ConsumerMember:
    """Gives up at once what the member does not subscribe to any more, whatever target there will be."""
    gone = {topic: epochs for topic, epochs in member.assigned.items() if topic not in around.subscribed_topic_ids}
    if not gone:
        return member
    stays = {topic: epochs for topic, epochs in member.assigned.items() if topic not in gone}
    revoked = dict(member.pending_revocation)
    for topic, epochs in gone.items():
        revoked[topic] = {**revoked.get(topic, {}), **epochs}
    if _still_has(around.owned, revoked):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, stays, revoked)
    return member.at_epoch(member.member_epoch, member.state, stays, member.pending_revocation)


def _wanted(around: Surroundings, topic: uuid.UUID) -> frozenset[int]:
    """A topic that the member does not subscribe to any more is not wanted even if the target has it still."""
    return around.target.get(topic, frozenset()) if topic in around.subscribed_topic_ids else frozenset()


def _still_has(owned: Partitions | None, revoked: Held) -> bool:
    """A member that does not say what it owns may own anything."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(revoked.get(topic, ())) for topic, partitions in owned.items())
