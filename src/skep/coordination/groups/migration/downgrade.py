"""From a consumer group to a classic group, while it has members (KIP-848, online migration).

When the last member of the new protocol leaves a group that was a classic group (``upgrade``), the group becomes a
classic group again, and rebalances. The generation is the epoch. A large group does so in slices (``downgrade``).
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import prepare_rebalance
from skep.coordination.groups.classic.classic_records import stable_record
from skep.coordination.groups.classic.consumer_protocol import (
    read_subscription,
    write_assignment,
)
from skep.coordination.groups.classic_subscriptions import CONSUMER
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.member_timers import forget_timers
from skep.coordination.shard import Outcome
from skep.metadata.cluster_image import ClusterImage

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

SMALL_GROUP = 100
"""Members with which a group changes its kind without a pause: some 10 ms."""


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
        classic.add(downgraded_member(group.group_id, member, image))
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


def downgraded_member(group_id: str, member: ConsumerMember, image: ClusterImage) -> ClassicMember:
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
