"""Classic groups out of the log: the replay of GroupMetadata, and what begins when all of it has been replayed.

The same replay takes in what a running group has just written. Then members keep what is not in the record: who waits,
and the protocols that were not chosen.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skep.base.loop.slicer import Work
from skep.coordination.group_records import GroupMemberValue, GroupMetadataKey, GroupMetadataValue
from skep.coordination.groups.classic.classic_group import ClassicGroup
from skep.coordination.groups.classic.classic_leave import session_of
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import prepare_rebalance
from skep.coordination.groups.classic.classic_state import DEAD, EMPTY, STABLE

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

MEMBERS_AT_ONCE = 100
"""Whose sessions begin without a pause."""


def replay_group_metadata(shard: "GroupShard", key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    group = shard.groups.get(key.group)
    if value is None:
        # A group that has become one of another kind (KIP-848) has left its tombstone for us to pass over.
        if isinstance(group, ClassicGroup):
            group.become(DEAD)
            del shard.groups[key.group]
        return
    if not isinstance(group, ClassicGroup):
        group = shard.groups[key.group] = ClassicGroup(key.group, shard.clock, shard.timers)
    members = [_member(group, value, member) for member in value.members]
    group.is_logged = True
    # Not ``become``: a log has only the states at rest, each of which may follow each.
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
        session_key, on_silence = session_of(group.group_id, logged.member_id)
        member = ClassicMember(
            member_id=logged.member_id,
            group_instance_id=logged.group_instance_id,
            client_id=logged.client_id,
            client_host=logged.client_host,
            rebalance_timeout_ms=logged.session_timeout,
            session_timeout_ms=logged.session_timeout,
            protocols=((value.protocol or "", logged.subscription),),
            session_key=session_key,
            on_silence=on_silence,
        )
    if logged.rebalance_timeout >= 0:  # -1 in records older than the field
        member.rebalance_timeout_ms = logged.rebalance_timeout
    member.session_timeout_ms = logged.session_timeout
    member.assignment = logged.assignment
    return member


def loaded(shard: "GroupShard") -> Work[None]:
    """Members get a whole session to be heard from. A group that is larger than it may be by now rebalances."""
    limit = shard.settings().group_max_size
    for group in list(shard.groups.values()):
        if isinstance(group, ClassicGroup):
            for number, member in enumerate(group.members.values()):
                group.heard_from(member)
                if not number % MEMBERS_AT_ONCE:
                    yield
            if len(group.members) > limit:
                prepare_rebalance(shard, group, f"there are {len(group.members)} members where {limit} may be")
        yield


REPLAYS: dict[type, Callable[["GroupShard", Any, Any], None]] = {GroupMetadataKey: replay_group_metadata}
