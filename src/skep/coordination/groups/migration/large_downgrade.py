"""The way back of a large consumer group to a classic group (see ``migration``), prepared in slices.

The leave that calls for it is carried out at once and the group goes on as a consumer group, in the same epoch: nobody
is told to rebalance, and all members know the generation in which the classic group begins. Meanwhile the members are
copied one by one. Those that have changed are copied again, until so few are left that the last operation can copy
them. A change of a member takes longer than a copy, so this comes to an end also in a group that does not rest.

Nothing of it is in the log. A coordinator that loads a consumer group with classic members only begins anew.
"""

import functools
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from skep.base.loop.slicer import Work
from skep.coordination.background import run_in_background
from skep.coordination.groups.classic.classic_group import ClassicGroup, chosen_protocol
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import classic_group, prepare_rebalance
from skep.coordination.groups.classic.classic_records import encoded_member, encoded_stable_record
from skep.coordination.groups.classic_subscriptions import CONSUMER
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup, member_keys
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import forget_timers
from skep.coordination.groups.migration.downgrade import SMALL_GROUP, downgraded_member, is_downgrade_due
from skep.coordination.shard import CoordinatorRecord, Outcome, Prepared

if TYPE_CHECKING:
    from skep.coordination.groups.group_shard import GroupShard

logger = logging.getLogger(__name__)

MEMBERS_AT_ONCE = 50
"""Copied in the last operation: some 3 ms."""
SESSIONS_AT_ONCE = 100
"""Begun without a pause: a millisecond."""
RETRY_MS = 60_000
"""After a classic group could not be written, which is for ever so when the record is too large."""


def is_large(group: ConsumerGroup) -> bool:
    """Whether the group is too large to become a classic group without a pause."""
    return len(group.members) > SMALL_GROUP


def is_put_off(shard: "GroupShard", group_id: str) -> bool:
    """Whether the group could not be written, and goes on as a consumer group until the next attempt."""
    return _again_key(group_id) in shard.timers


def begin(shard: "GroupShard", group: ConsumerGroup) -> None:
    """The group becomes a classic group soon, unless a member of the new protocol comes before.

    It rebalances when ``owes_epoch`` is set, or when members are still on their way to their targets.
    """
    key = ("downgrade", group.group_id)
    if key not in shard.timers:
        on_refusal = functools.partial(_refused, group_id=group.group_id)
        run_in_background(shard.timers, key, _Downgrade(shard, group).run(), on_refusal)


class _Copy(NamedTuple):
    """``encoded`` is the part of the member in the record of a classic group with that protocol."""

    source: ConsumerMember
    member: ClassicMember
    protocol_name: str
    encoded: bytes


class _Downgrade:
    """Owns the classic group in the making. Between two steps ``_copies`` are its members."""

    def __init__(self, shard: "GroupShard", group: ConsumerGroup) -> None:
        self._shard = shard
        self._group = group
        self._classic = ClassicGroup(group.group_id, shard.clock, shard.timers)
        self._copies: dict[str, _Copy] = {}
        self._prepared = Prepared(shard.clock.now_ms())
        self._forgotten: set[str] = set()
        """Members whose tombstones are among the prepared records. One too many does no harm."""

    def run(self) -> Work[Outcome]:
        shard, group = self._shard, self._group
        while self._is_due:
            protocol_name = _chosen_protocol(group)
            changed = self._changed(protocol_name)
            if len(changed) <= MEMBERS_AT_ONCE:
                for member in changed:
                    self._copy(member, protocol_name)
                return self._end(protocol_name)
            yield
            for member in changed:
                if not self._is_due:
                    break
                if group.members.get(member.member_id) is member:
                    self._copy(member, protocol_name)
                yield
        return _goes_on(shard, group)

    @property
    def _is_due(self) -> bool:
        return self._shard.groups.get(self._group.group_id) is self._group and is_downgrade_due(
            self._shard, self._group
        )

    def _changed(self, protocol_name: str) -> list[ConsumerMember]:
        """Members to be copied, again or for the first time. Copies of members that are gone go."""
        members = self._group.members
        for gone in self._copies.keys() - members.keys():
            self._classic.remove(self._copies.pop(gone).member)
        return [
            member
            for member_id, member in members.items()
            if (copy := self._copies.get(member_id)) is None
            or copy.source is not member
            or copy.protocol_name != protocol_name
        ]

    def _copy(self, member: ConsumerMember, protocol_name: str) -> None:
        group_id, member_id = self._group.group_id, member.member_id
        if member_id not in self._forgotten:
            self._forgotten.add(member_id)
            for key in member_keys(group_id, member_id):
                self._prepared.add(CoordinatorRecord(key, None))
        if (before := self._copies.get(member_id)) is not None:
            self._classic.remove(before.member)
        copied = downgraded_member(group_id, member, self._shard.image())
        self._classic.add(copied)
        encoded = encoded_member(copied, protocol_name, copied.assignment)
        self._copies[member_id] = _Copy(member, copied, protocol_name, encoded)

    def _end(self, protocol_name: str) -> Outcome:
        shard, group, classic, prepared = self._shard, self._group, self._classic, self._prepared
        now_ms = shard.clock.now_ms()
        is_settled = not group.owes_epoch and group.state_name == "Stable"
        classic.protocol_type, classic.protocol_name = CONSUMER, protocol_name
        classic.generation_id = group.group_epoch
        for record in group.own_tombstones():
            prepared.add(record)
        encoded = [self._copies[member_id].encoded for member_id in classic.members]
        prepared.add_encoded(*encoded_stable_record(classic, classic.leader_id, encoded, now_ms))

        def install() -> None:
            classic.rest(now_ms)
            shard.groups[group.group_id] = classic

        def then() -> None:
            logger.info("group %r: becomes a classic group with %d members", group.group_id, len(classic.members))
            if not is_settled:
                prepare_rebalance(shard, classic, "the last member of the new protocol is gone")
            watch_sessions(shard, group_id=group.group_id, copies=list(self._copies.values()))

        prepared.install = install
        return Outcome(prepared=prepared, then=then)


def _chosen_protocol(group: ConsumerGroup) -> str:
    common = [name for name, count in group.classic_protocol_counts.items() if count == group.classic_count]
    if len(common) == 1:
        return common[0]
    return chosen_protocol(
        [
            [protocol.name for protocol in member.classic.supported_protocols]
            for member in group.members.values()
            if member.classic is not None
        ]
    )


def _refused(shard: "GroupShard", *, group_id: str) -> Outcome:
    """The classic group could not be written. The members share the partitions of those that are gone."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return Outcome()
    outcome = _goes_on(shard, group)
    outcome.then = lambda: shard.timers.schedule(
        _again_key(group_id), RETRY_MS, functools.partial(_try_again, group_id=group_id)
    )
    return outcome


def _again_key(group_id: str) -> Hashable:
    return ("downgrade again", group_id)


def _try_again(shard: "GroupShard", *, group_id: str) -> Outcome:
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup) and is_downgrade_due(shard, group):
        begin(shard, group)
    return Outcome()


def _goes_on(shard: "GroupShard", group: ConsumerGroup) -> Outcome:
    """It stays a consumer group. The epoch that the leave called for begins now, unless a join has begun one."""
    is_there = shard.groups.get(group.group_id) is group
    if not is_there or not group.owes_epoch:
        return Outcome()
    change = GroupChange(group, shard.image().topics, shard.clock)
    change.members_have_left()
    return Outcome(records=change.records)


# Sessions.


def sessions_key(group_id: str) -> Hashable:
    """Among the timers while members are still watched by those of the consumer group."""
    return ("downgraded sessions", group_id)


def watch_sessions(shard: "GroupShard", *, group_id: str, copies: list[_Copy]) -> Outcome:
    """Timers of the consumer group end, sessions of the classic group begin, some at a time.

    A timer of the consumer group that goes off before does nothing. ``copies`` are dropped along the way: they are the
    last to refer to the members of the consumer group, and these take their time to be freed.
    """
    group = classic_group(shard, group_id)
    for copy in copies[-SESSIONS_AT_ONCE:]:
        forget_timers(shard.timers, group_id, copy.source.member_id)
        member = None if group is None else group.members.get(copy.source.member_id)
        if group is not None and member is not None:
            group.heard_from(member)
    del copies[-SESSIONS_AT_ONCE:]
    if copies:
        go_on = functools.partial(watch_sessions, group_id=group_id, copies=copies)
        shard.timers.schedule(sessions_key(group_id), 0, go_on)
    return Outcome()
