"""From a classic group to a consumer group and back, while it has members (KIP-848, online migration).

A classic group of consumers becomes a consumer group when the first member of the new protocol joins it. Its members
stay, with the partitions that they have, and go on speaking the classic protocol (``migration_members``): they are told
to rebalance, and what they then get is what the broker's assignor has decided. When the last member of the new protocol
goes, the group becomes a classic group again, and rebalances.

The generation of the one is the epoch of the other. Without members there is nothing to carry over: the group of one
kind is deleted and one of the other kind begun.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.classic_group import ClassicGroup
from skep.coordination.groups.classic_leaving import session_of
from skep.coordination.groups.classic_member import ClassicMember
from skep.coordination.groups.classic_rebalancing import join_key, prepare_rebalance, refusals, sync_key
from skep.coordination.groups.classic_records import stable_record
from skep.coordination.groups.classic_subscriptions import CONSUMER
from skep.coordination.groups.consumer_changes import assignment_epoch_record, target_record
from skep.coordination.groups.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer_member import ConsumerMember, held_since
from skep.coordination.groups.consumer_protocol import (
    Numbers,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from skep.coordination.groups.consumer_subscriptions import metadata_hash
from skep.coordination.groups.consumer_timers import forget_timers
from skep.coordination.groups.group import Group
from skep.coordination.groups.topic_matches import Topics
from skep.coordination.shard import CoordinatorRecord, Outcome, Waiter
from skep.metadata.image import ClusterImage

if TYPE_CHECKING:
    from skep.coordination.groups.shard import GroupShard

logger = logging.getLogger(__name__)

STATELESS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of clients whose user data nobody misses. librdkafka's cooperative-sticky sends some with each assignment,
for which Kafka refuses to upgrade its groups."""

Upgraded = tuple[ConsumerGroup, Sequence[CoordinatorRecord], Sequence[tuple[Waiter, Any]], Callable[[], None]]


# Upgrade.


def upgrade(shard: "GroupShard", group: Group) -> Upgraded:
    """The consumer group that a classic group becomes, with the records, the answers and the rest that this takes."""
    if not isinstance(group, ClassicGroup):
        raise _not_a_consumer_group(group, "it is of another kind")
    replies: list[tuple[Waiter, Any]] = []
    upgraded = ConsumerGroup(group.group_id)
    records = list(group.tombstones())
    if not group.is_empty:
        _check_upgrade(shard, group)
        for record in _upgrade_records(shard, group):
            upgraded.replay(record.key, record.value)
            records.append(record)
        for member in group.members.values():
            replies += refusals(member, ErrorCode.rebalance_in_progress)
        logger.info("group %r: becomes a consumer group with %d members", group.group_id, len(upgraded.members))

    def forget_timers() -> None:
        shard.timers.cancel(join_key(group.group_id))
        shard.timers.cancel(sync_key(group.group_id))
        for member in group.members.values():
            shard.timers.cancel(member.session_key)

    return upgraded, records, replies, forget_timers


def _check_upgrade(shard: "GroupShard", group: ClassicGroup) -> None:
    settings = shard.settings()
    if settings.group_consumer_migration_policy not in ("upgrade", "bidirectional"):
        raise _not_a_consumer_group(group, "online upgrade is disabled")
    if group.protocol_type != CONSUMER:
        raise _not_a_consumer_group(group, "it does not use the consumer embedded protocol")
    if len(group.members) > settings.group_consumer_max_size:
        raise _not_a_consumer_group(group, "its size exceeds the consumer group maximum size")


def _not_a_consumer_group(group: Group, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade {group.type_name} group {group.group_id} to consumer group because {why}.",
    )


def _upgrade_records(shard: "GroupShard", group: ClassicGroup) -> list[CoordinatorRecord]:
    """Members that have never been in a generation are left out: they are told to join again, and have nothing yet."""
    topics, epoch = shard.image().topics, group.generation_id
    taken: dict[Any, set[int]] = {}
    members: list[ConsumerMember] = []
    targets: list[CoordinatorRecord] = []
    for member in group.members.values():
        if member.is_new:
            continue
        try:
            subscription = read_subscription(member.metadata(group.protocol_name))
            assignment = read_assignment(member.assignment)
        except ValueError as error:
            raise _not_a_consumer_group(group, f"the embedded consumer protocol is malformed: {error}") from None
        if assignment.user_data and group.protocol_name not in STATELESS_ASSIGNORS:
            raise _not_a_consumer_group(group, "a custom assignor is in use whose data would be lost")
        held = {
            topic: numbers - taken.get(topic, set()) for topic, numbers in by_id(assignment.partitions, topics).items()
        }
        held = {topic: numbers for topic, numbers in held.items() if numbers}
        for topic, numbers in held.items():
            taken.setdefault(topic, set()).update(numbers)
        members.append(_upgraded_member(member, subscription, held, epoch))
        targets.append(target_record(group.group_id, member.member_id, held))
    names = {name for member in members for name in member.topic_names}
    return [
        *(member.metadata_record(group.group_id) for member in members),
        CoordinatorRecord(
            ConsumerGroupMetadataKey(group_id=group.group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash(names, topics)),
        ),
        *targets,
        assignment_epoch_record(group.group_id, epoch, 0),
        *(member.assignment_record(group.group_id) for member in members),
    ]


def _upgraded_member(member: ClassicMember, subscription: Subscription, held: Partitions, epoch: int) -> ConsumerMember:
    return ConsumerMember(
        member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=subscription.topics,
        classic=classic_metadata(member.session_timeout_ms, member.protocols),
        member_epoch=epoch,
        previous_member_epoch=epoch,
        assigned=held_since(held, epoch),
    )


def classic_metadata(session_timeout_ms: int, protocols: Sequence[tuple[str, bytes]]) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=tuple(ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols),
    )


# Downgrade.


def is_downgrade_due(shard: "GroupShard", left: ConsumerGroup) -> bool:
    """Whether ``left``, a group from which somebody has just gone, is to be a classic group from now on."""
    settings = shard.settings()
    return 0 < len(
        left.members
    ) == left.classic_count <= settings.group_max_size and settings.group_consumer_migration_policy in (
        "downgrade",
        "bidirectional",
    )


def downgrade(shard: "GroupShard", group: ConsumerGroup, left: ConsumerGroup, *, reason: str | None) -> Outcome:
    """``group`` is deleted, and a classic group with the members of ``left`` begins; it rebalances for ``reason``.

    The generation is the epoch that the members know, so that they learn of the rebalance in the usual way and give
    nothing up before.
    """
    image = shard.image()
    classic = ClassicGroup(group.group_id, shard.clock, shard.timers)
    for member in left.members.values():
        classic.add(_downgraded_member(group.group_id, member, image))
    classic.protocol_type = CONSUMER
    classic.generation_id = group.group_epoch
    classic.protocol_name = classic.chosen_protocol(classic.members.values())
    assignments = {member.member_id: member.assignment for member in classic.members.values()}
    record = stable_record(classic, classic.members.values(), classic.leader_id, assignments, shard.clock.now_ms())
    logger.info("group %r: becomes a classic group with %d members", group.group_id, len(classic.members))

    def then() -> None:
        current = shard.groups[group.group_id]
        assert isinstance(current, ClassicGroup)
        for member in current.members.values():
            forget_timers(shard.timers, group.group_id, member.member_id)
            # The record holds only the protocol that was chosen.
            current.update(member, classic.members[member.member_id].protocols, None)
            current.heard_from(member)
        if reason is not None:
            prepare_rebalance(shard, current, reason)

    return Outcome(records=[*group.tombstones(), record], then=then)


def _downgraded_member(group_id: str, member: ConsumerMember, image: ClusterImage) -> ClassicMember:
    assert member.classic is not None
    session_key, on_silence = session_of(group_id, member.member_id)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
        session_key=session_key,
        on_silence=on_silence,
        assignment=assignment_bytes(member, image),
    )


def assignment_bytes(member: ConsumerMember, image: ClusterImage) -> bytes:
    """What a member of the classic protocol is told that it has, in the version in which it said what it wants."""
    assert member.classic is not None
    version = read_subscription(member.classic.supported_protocols[0].metadata).version
    topics: Mapping[Any, Any] = image.topics_by_id
    return write_assignment(
        version, {topics[topic].name: numbers for topic, numbers in member.assigned.items() if topic in topics}
    )


def by_id(partitions: Numbers, topics: Topics) -> Partitions:
    """Topics that are gone are left out."""
    return {topics[name].topic_id: numbers for name, numbers in partitions.items() if name in topics}
