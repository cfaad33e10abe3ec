"""Upgrades a classic group with members to a consumer group (KIP-848, online migration).

A classic group of consumers becomes a consumer group when the first member of the consumer protocol joins it. Its
members stay in the group with their partitions and keep using the classic protocol (``mixed_group``). They are told to
rebalance, and then get what the broker's assignor has decided. ``downgrade`` is the opposite direction.

The generation of the classic group is the epoch of the consumer group. A group without members has nothing to carry
over: it is deleted, and a group of the other kind is created.

All records of an upgrade are in one batch, so a coordinator that fails leaves a group of one kind or of the other. The
records of a large group (``large_group``) are made in slices, and the operation that writes them checks that the
classic group has not changed meanwhile.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
)
from skep.coordination.groups.assignors.spec import Partitions
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import classic_group, join_key, refusals, sync_key
from skep.coordination.groups.classic.classic_state import DEAD
from skep.coordination.groups.classic.consumer_protocol import (
    CONSUMER,
    Numbers,
    Subscription,
    read_assignment,
    read_subscription,
)
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember, held_since
from skep.coordination.groups.consumer.consumer_subscriptions import metadata_hash
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.migration.downgrade import SMALL_GROUP
from skep.coordination.groups.migration.large_downgrade import sessions_key
from skep.coordination.groups.topic_patterns.topic_matches import Topics
from skep.coordination.shard import CoordinatorRecord, Prepared, Waiter

logger = logging.getLogger(__name__)

STATELESS_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of clients whose user data can be dropped. librdkafka's cooperative-sticky sends some with each assignment,
and Kafka refuses to upgrade its groups for that."""


class Upgrade(NamedTuple):
    """The consumer group that a classic group becomes, and its records.

    They were made from the classic group after that many ``changes``.
    """

    classic: ClassicGroup
    changes: int
    group: ConsumerGroup
    prepared: Prepared

    def check_current(self, table: GroupTable) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS, on which clients retry, if the classic group has changed since."""
        is_there = table.groups.get(self.classic.group_id) is self.classic
        if not is_there or self.classic.changes != self.changes:
            raise _not_yet(self.classic.group_id)

    def refusals(self) -> Sequence[tuple[Waiter, Any]]:
        """The responses to JoinGroup and SyncGroup requests that wait in the classic group."""
        return [
            reply
            for member in self.classic.members.values()
            for reply in refusals(member, ErrorCode.rebalance_in_progress)
        ]

    def cancel_classic_timers(self, table: GroupTable) -> None:
        """To be called once the records are written. The sessions of members are left to the caller."""
        group_id = self.group.group_id
        table.timers.cancel(join_key(group_id))
        table.timers.cancel(sync_key(group_id))
        if self.classic.members:
            logger.info("group %r: becomes a consumer group with %d members", group_id, len(self.group.members))


def large_group(table: GroupTable, group_id: str) -> ClassicGroup | None:
    """Returns the group if it is a classic group that is too large to be upgraded without a pause."""
    group = classic_group(table, group_id)
    return group if group is not None and len(group.members) > SMALL_GROUP else None


def upgrade(table: GroupTable, group: Group) -> Work[Upgrade]:
    """Makes the upgrade. Raises GROUP_ID_NOT_FOUND if the group cannot become a consumer group.

    Raises COORDINATOR_LOAD_IN_PROGRESS if another upgrade of the group is under way, or if the group changes meanwhile.
    """
    if not isinstance(group, ClassicGroup):
        raise _not_a_consumer_group(group, "it is of another kind")
    if not group.is_empty:
        _check_upgrade(table, group)
    if group.is_upgrading or sessions_key(group.group_id) in table.timers:
        # The second condition: the group was downgraded, and some timers of the consumer group still run.
        raise _not_yet(group.group_id)
    upgraded = ConsumerGroup(group.group_id)
    prepared = Prepared(table.clock.now_ms())
    made = Upgrade(group, group.changes, upgraded, prepared)

    def install() -> None:
        group.become(DEAD)
        table.groups[group.group_id] = upgraded

    prepared.install = install
    for record in group.tombstones():
        prepared.add(record)
    if not group.is_empty:
        group.is_upgrading = True
        try:
            yield from _add_members(table, made)
        finally:
            group.is_upgrading = False
    return made


def _check_upgrade(table: GroupTable, group: ClassicGroup) -> None:
    settings = table.config
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


def _add_members(table: GroupTable, made: Upgrade) -> Work[None]:
    """Adds the members. One that was never in a generation is left out: it has no partitions and is told to rejoin."""
    group, topics = made.classic, table.image().topics
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
        made.check_current(table)
    names = made.group.subscribed_topics()
    add(made.group.epoch_record(epoch, metadata_hash(names, topics)))
    for upgraded, held in members:
        add(made.group.target_record(upgraded.member_id, held))
        yield
    add(made.group.assignment_epoch_record(epoch, 0))
    for upgraded, _ in members:
        add(upgraded.assignment_record(group_id))
        yield


def _read(
    group: ClassicGroup, member: ClassicMember, topics: Topics, taken: dict[Any, set[int]]
) -> tuple[Subscription, Partitions]:
    """Returns the member's subscription and its partitions, without those in ``taken``, and adds them to ``taken``."""
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
    """Returns the partitions by topic id. Topics that do not exist are left out."""
    return {topics[name].topic_id: numbers for name, numbers in partitions.items() if name in topics}
