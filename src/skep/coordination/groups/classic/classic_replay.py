"""Replays the GroupMetadata records of classic groups, and starts the sessions of members once all are replayed.

A group that has just written its record replays it too. Then its members keep what the record does not have: waiters,
and the protocols that were not chosen.
"""

from collections.abc import Callable
from typing import Any

from skep.base.loop.slicer import Work
from skep.coordination.group_records import GroupMemberValue, GroupMetadataKey, GroupMetadataValue
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import prepare_rebalance
from skep.coordination.groups.classic.classic_state import DEAD, EMPTY, STABLE
from skep.coordination.groups.group_table import GroupTable

MEMBERS_AT_ONCE = 100
"""Sessions started without a pause."""


def replay_group_metadata(table: GroupTable, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    group = table.groups.get(key.group)
    if value is None:
        # The tombstone of a group that was upgraded to a consumer group (KIP-848) is skipped.
        if isinstance(group, ClassicGroup):
            group.become(DEAD)
            del table.groups[key.group]
        return
    if not isinstance(group, ClassicGroup):
        group = table.groups[key.group] = ClassicGroup(key.group, table.clock, table.timers)
    members = [_member(group, value, member) for member in value.members]
    group.is_logged = True
    # Not ``become``: the log has only Stable and Empty, each of which may follow the other and itself.
    group.state = STABLE if members else EMPTY
    group.is_initial_rebalance = False
    group.state_timestamp = value.current_state_timestamp
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    group.replace_all(members)


def _member(group: ClassicGroup, value: GroupMetadataValue, logged: GroupMemberValue) -> ClassicMember:
    member = group.members.get(logged.member_id)
    if member is None or member.metadata(value.protocol) != logged.subscription:
        session_key, on_session_expired = session_of(group.group_id, logged.member_id)
        member = ClassicMember(
            member_id=logged.member_id,
            group_instance_id=logged.group_instance_id,
            client_id=logged.client_id,
            client_host=logged.client_host,
            rebalance_timeout_ms=logged.session_timeout,
            session_timeout_ms=logged.session_timeout,
            protocols=((value.protocol or "", logged.subscription),),
            session_key=session_key,
            on_session_expired=on_session_expired,
        )
    if logged.rebalance_timeout >= 0:  # -1 in records older than the field
        member.rebalance_timeout_ms = logged.rebalance_timeout
    member.session_timeout_ms = logged.session_timeout
    member.assignment = logged.assignment
    return member


def loaded(table: GroupTable) -> Work[None]:
    """Gives every member a full session. A group that exceeds group.max.size rebalances."""
    limit = table.config.group_max_size
    for group in list(table.groups.values()):
        if isinstance(group, ClassicGroup):
            for number, member in enumerate(group.members.values()):
                group.renew_session(member)
                if not number % MEMBERS_AT_ONCE:
                    yield
            if len(group.members) > limit:
                prepare_rebalance(table, group, f"{len(group.members)} members exceed group.max.size ({limit})")
        yield


REPLAYS: dict[type, Callable[[GroupTable, Any, Any], None]] = {GroupMetadataKey: replay_group_metadata}
