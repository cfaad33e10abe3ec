"""From a classic group to a consumer group, while it has members (KIP-848, online migration).

A classic group of consumers becomes a consumer group when the first member of the new protocol joins it. Its members
stay, with the partitions that they have, and go on speaking the classic protocol (``migration_members``): they are told
to rebalance, and what they then get is what the broker's assignor has decided. The way back is in ``migration``.

The generation of the one is the epoch of the other. Without members there is nothing to carry over: the group of one
kind is deleted and one of the other kind begun.

All records of an upgrade are in one batch, so a coordinator that fails leaves a group of one kind or of the other. For
a large group they are made in slices (``large_group``), and the operation that writes them checks that the classic
group has not changed meanwhile.
"""

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import classic_group, join_key, refusals, sync_key
from skep.coordination.groups.classic.classic_state import DEAD
from skep.coordination.groups.classic.consumer_protocol import Numbers, Subscription, read_assignment, read_subscription
from skep.coordination.groups.classic_subscriptions import CONSUMER
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, held_since
from skep.coordination.groups.consumer.consumer_subscriptions import metadata_hash
from skep.coordination.groups.consumer.group_change import assignment_epoch_record, target_record
from skep.coordination.groups.group import Group
from skep.coordination.groups.membership.consumer_departure import config_of, watch_session
from skep.coordination.groups.migration.downgrade import SMALL_GROUP
from skep.coordination.groups.migration.large_downgrade import sessions_key
from skep.coordination.groups.topic_patterns.topic_matches import Topics
from skep.coordination.shard import CoordinatorRecord, Outcome, Prepared, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

STATELESS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of clients whose user data nobody misses. librdkafka's cooperative-sticky sends some with each assignment,
for which Kafka refuses to upgrade its groups."""

SESSIONS_AT_ONCE = 200
"""Begun without a pause: a millisecond."""


class Upgrade(NamedTuple):
    """The consumer group that a classic group becomes, and the records of it. ``changes`` is what it was made from."""

    classic: ClassicGroup
    changes: int
    group: ConsumerGroup
    prepared: Prepared

    def check_current(self, shard: "GroupShard") -> None:
        """COORDINATOR_LOAD_IN_PROGRESS, after which clients ask again, when the classic group has changed since."""
        is_there = shard.groups.get(self.classic.group_id) is self.classic
        if not is_there or self.classic.changes != self.changes:
            raise _not_yet(self.classic.group_id)

    def refusals(self) -> Sequence[tuple[Waiter, Any]]:
        """The responses to members that wait for the classic group."""
        return [
            reply
            for member in self.classic.members.values()
            for reply in refusals(member, ErrorCode.rebalance_in_progress)
        ]

    def then(self, shard: "GroupShard") -> None:
        """Members are watched by the timers of consumer groups from now on."""
        group_id, members = self.group.group_id, list(self.classic.members.values())
        shard.timers.cancel(join_key(group_id))
        shard.timers.cancel(sync_key(group_id))
        _watch_sessions(shard, group_id=group_id, members=members)
        if members:
            logger.info("group %r: becomes a consumer group with %d members", group_id, len(self.group.members))


def large_group(shard: "GroupShard", group_id: str) -> ClassicGroup | None:
    """The group if it is a classic group that is too large for an upgrade without a pause."""
    group = classic_group(shard, group_id)
    return group if group is not None and len(group.members) > SMALL_GROUP else None


def upgrade(shard: "GroupShard", group: Group) -> Work[Upgrade]:
    """Makes the upgrade. GROUP_ID_NOT_FOUND when the group cannot become a consumer group.

    COORDINATOR_LOAD_IN_PROGRESS when another upgrade of the group is under way, or when the group changes meanwhile.
    """
    if not isinstance(group, ClassicGroup):
        raise _not_a_consumer_group(group, "it is of another kind")
    if not group.is_empty:
        _check_upgrade(shard, group)
    if group.is_upgrading or sessions_key(group.group_id) in shard.timers:
        # In the second case the timers of the consumer group that it was are still to be cancelled.
        raise _not_yet(group.group_id)
    upgraded = ConsumerGroup(group.group_id)
    prepared = Prepared(shard.clock.now_ms())
    made = Upgrade(group, group.changes, upgraded, prepared)

    def install() -> None:
        group.become(DEAD)
        shard.groups[group.group_id] = upgraded

    prepared.install = install
    for record in group.tombstones():
        prepared.add(record)
    if not group.is_empty:
        group.is_upgrading = True
        try:
            yield from _add_members(shard, made)
        finally:
            group.is_upgrading = False
    return made


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


def _not_yet(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.coordinator_load_in_progress, f"Group {group_id} is becoming a consumer group.")


def _add_members(shard: "GroupShard", made: Upgrade) -> Work[None]:
    """Members that have never been in a generation are left out: they are told to join again, and have nothing yet."""
    group, topics = made.classic, shard.image().topics
    group_id, epoch = group.group_id, group.generation_id
    taken: dict[Any, set[int]] = {}
    members: list[tuple[ConsumerMember, Partitions]] = []

    def add(record: CoordinatorRecord) -> None:
        made.group.replay(record.key, record.value)
        made.prepared.add(record)

    for member in list(group.members.values()):
        if not member.is_new:
            subscription, held = _read(group, member, topics, taken)
            upgraded = _upgraded_member(member, subscription, held, epoch)
            members.append((upgraded, held))
            add(upgraded.metadata_record(group_id))
        yield
        made.check_current(shard)
    names = made.group.subscribed_topics()
    add(
        CoordinatorRecord(
            ConsumerGroupMetadataKey(group_id=group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash(names, topics)),
        )
    )
    for upgraded, held in members:
        add(target_record(group_id, upgraded.member_id, held))
        yield
    add(assignment_epoch_record(group_id, epoch, 0))
    for upgraded, _ in members:
        add(upgraded.assignment_record(group_id))
        yield


def _read(
    group: ClassicGroup, member: ClassicMember, topics: Topics, taken: dict[Any, set[int]]
) -> tuple[Subscription, Partitions]:
    """What a member subscribes to and what it has, but for what is ``taken`` by another, to which this is added."""
    try:
        subscription = read_subscription(member.metadata(group.protocol_name))
        assignment = read_assignment(member.assignment)
    except ValueError as error:
        raise _not_a_consumer_group(group, f"the embedded consumer protocol is malformed: {error}") from None
    if assignment.user_data and group.protocol_name not in STATELESS_ASSIGNORS:
        raise _not_a_consumer_group(group, "a custom assignor is in use whose data would be lost")
    held = {}
    for topic, numbers in by_id(assignment.partitions, topics).items():
        if free := numbers - taken.get(topic, set()):
            held[topic] = free
            taken.setdefault(topic, set()).update(free)
    return subscription, held


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


def by_id(partitions: Numbers, topics: Topics) -> Partitions:
    """Topics that are gone are left out."""
    return {topics[name].topic_id: numbers for name, numbers in partitions.items() if name in topics}


def _watch_sessions(shard: "GroupShard", *, group_id: str, members: Sequence[ClassicMember]) -> Outcome:
    """Sessions of the classic group end, those of the consumer group begin, some at a time.

    Until then a member has a timer of the classic group, which does nothing when it goes off.
    """
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        # A classic group again: its members have their timers, under the same keys as before.
        return Outcome()
    timeout_ms = config_of(shard, group_id).consumer_session_timeout_ms
    for member in members[:SESSIONS_AT_ONCE]:
        shard.timers.cancel(member.session_key)
        if member.member_id in group.members:
            watch_session(shard, group_id, group.members[member.member_id], timeout_ms)
    if left := members[SESSIONS_AT_ONCE:]:
        go_on = functools.partial(_watch_sessions, group_id=group_id, members=left)
        shard.timers.schedule(("upgraded sessions", group_id), 0, go_on)
    return Outcome()
