"""Downgrades a consumer group with members to a classic group (KIP-848, online migration).

When the last member of the consumer protocol leaves an upgraded group, the group becomes a classic group again and
rebalances. The generation is the epoch. A large group is downgraded in slices (``large_downgrade``).
"""

import logging
from collections.abc import Mapping
from typing import Any

from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import prepare_rebalance
from skep.coordination.groups.classic.classic_records import stable_record
from skep.coordination.groups.classic.consumer_protocol import (
    CONSUMER,
    read_subscription,
    write_assignment,
)
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.member_timers import cancel_timers
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.shard import Outcome
from skep.metadata.cluster_image import ClusterImage

logger = logging.getLogger(__name__)

SMALL_GROUP = 100
"""A group of up to this many members changes its kind without a pause: some 10 ms."""


def is_downgrade_due(table: GroupTable, left: ConsumerGroup) -> bool:
    """Whether ``left``, a group that members have just left, has to become a classic group."""
    settings = table.config
    return 0 < len(
        left.members
    ) == left.classic_count <= settings.group_max_size and settings.group_consumer_migration_policy in (
        "downgrade",
        "bidirectional",
    )


def downgrade(table: GroupTable, group: ConsumerGroup, left: ConsumerGroup, *, reason: str | None) -> Outcome:
    """Deletes ``group`` and creates a classic group with the members of ``left``.

    It rebalances if there is a ``reason``.
    The generation is the epoch that the members have, so their heartbeats tell them to rebalance, and they give up no
    partitions before.
    """
    image = table.image()
    classic = ClassicGroup(group.group_id, table.clock, table.timers)
    for member in left.members.values():
        classic.add(downgraded_member(group.group_id, member, image))
    classic.protocol_type = CONSUMER
    classic.generation_id = group.group_epoch
    classic.protocol_name = classic.chosen_protocol(classic.members.values())
    assignments = {member.member_id: member.assignment for member in classic.members.values()}
    record = stable_record(classic, classic.members.values(), classic.leader_id, assignments, table.clock.now_ms())
    logger.info("group %r: becomes a classic group with %d members", group.group_id, len(classic.members))

    def then() -> None:
        current = table.groups[group.group_id]
        assert isinstance(current, ClassicGroup)
        for member in current.members.values():
            cancel_timers(table.timers, group.group_id, member.member_id)
            # The record has only the chosen protocol.
            current.update(member, classic.members[member.member_id].protocols, None)
            current.renew_session(member)
        if reason is not None:
            prepare_rebalance(table, current, reason)

    return Outcome(records=[*group.tombstones(), record], then=then)


def downgraded_member(group_id: str, member: ConsumerMember, image: ClusterImage) -> ClassicMember:
    assert member.classic is not None
    session_key, on_session_expired = session_of(group_id, member.member_id)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
        session_key=session_key,
        on_session_expired=on_session_expired,
        assignment=assignment_bytes(member, image),
    )


def assignment_bytes(member: ConsumerMember, image: ClusterImage) -> bytes:
    """Encodes the partitions of a classic member, in the version of its subscription."""
    assert member.classic is not None
    version = read_subscription(member.classic.supported_protocols[0].metadata).version
    topics: Mapping[Any, Any] = image.topics_by_id
    return write_assignment(
        version, {topics[topic].name: numbers for topic, numbers in member.assigned.items() if topic in topics}
    )
