"""Downgrades a large consumer group to a classic group (see ``downgrade``), prepared in slices.

The leave that causes it is carried out at once, and the group stays a consumer group in the same epoch: no member is
told to rebalance, and all members know the generation in which the classic group starts. Meanwhile the members are
copied one by one. Those that changed are copied again, until so few are left that the last operation can copy them. A
change of a member takes longer than a copy, so this ends also in a group that keeps changing.

Nothing of it is in the log. A coordinator that loads a consumer group with only classic members starts again.
"""

import functools
import logging
from collections.abc import Hashable
from typing import NamedTuple

from skep.base.loop.slicer import Work
from skep.coordination.background import run_in_background
from skep.coordination.groups.classic.classic_group import ClassicGroup, chosen_protocol
from skep.coordination.groups.classic.classic_member import ClassicMember
from skep.coordination.groups.classic.classic_rebalance import classic_group, prepare_rebalance
from skep.coordination.groups.classic.classic_records import encoded_member, encoded_stable_record
from skep.coordination.groups.classic.consumer_protocol import CONSUMER
from skep.coordination.groups.consumer.consumer_group import ConsumerGroup
from skep.coordination.groups.consumer.consumer_member import ConsumerMember
from skep.coordination.groups.consumer.group_change import GroupChange
from skep.coordination.groups.consumer.member_timers import cancel_timers
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.migration.downgrade import SMALL_GROUP, downgraded_member, is_downgrade_due
from skep.coordination.shard import CoordinatorRecord, Outcome, Prepared

logger = logging.getLogger(__name__)

MEMBERS_AT_ONCE = 50
"""Members copied in the last operation: some 3 ms."""
SESSIONS_AT_ONCE = 100
"""Sessions started in one operation: a millisecond."""
RETRY_MS = 60_000
"""The pause after the classic group could not be written. If its record is too large, no attempt succeeds."""


def is_large(group: ConsumerGroup) -> bool:
    """Whether the group is too large to be downgraded without a pause."""
    return len(group.members) > SMALL_GROUP


def is_put_off(table: GroupTable, group_id: str) -> bool:
    """Whether the group could not be written, and stays a consumer group until the next attempt."""
    return _again_key(group_id) in table.timers


def begin(table: GroupTable, group: ConsumerGroup) -> None:
    """Starts the downgrade, which is given up if a member of the consumer protocol joins before it ends.

    The classic group rebalances if ``is_epoch_due`` is set, or if members have not reached their targets.
    """
    key = ("downgrade", group.group_id)
    if key not in table.timers:
        on_refusal = functools.partial(_refused, group_id=group.group_id)
        run_in_background(table.timers, key, _Downgrade(table, group).run(), on_refusal)


class _Copy(NamedTuple):
    """``encoded`` is the member's part of the record of a classic group with that protocol."""

    source: ConsumerMember
    member: ClassicMember
    protocol_name: str
    encoded: bytes


class _Downgrade:
    """Owns the classic group that is being made. Between two steps ``_copies`` are its members."""

    def __init__(self, table: GroupTable, group: ConsumerGroup) -> None:
        self._table = table
        self._group = group
        self._classic = ClassicGroup(group.group_id, table.clock, table.timers)
        self._copies: dict[str, _Copy] = {}
        self._prepared = Prepared(table.clock.now_ms())
        self._deleted: set[str] = set()
        """Members whose tombstones are among the prepared records. A superfluous tombstone does no harm."""

    def run(self) -> Work[Outcome]:
        table, group = self._table, self._group
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
        return _stay_consumer_group(table, group)

    @property
    def _is_due(self) -> bool:
        return self._table.groups.get(self._group.group_id) is self._group and is_downgrade_due(
            self._table, self._group
        )

    def _changed(self, protocol_name: str) -> list[ConsumerMember]:
        """Returns the members to copy, for the first time or again. Drops the copies of members that have left."""
        members = self._group.members
        for left in self._copies.keys() - members.keys():
            self._classic.remove(self._copies.pop(left).member)
        return [
            member
            for member_id, member in members.items()
            if (copy := self._copies.get(member_id)) is None
            or copy.source is not member
            or copy.protocol_name != protocol_name
        ]

    def _copy(self, member: ConsumerMember, protocol_name: str) -> None:
        group_id, member_id = self._group.group_id, member.member_id
        if member_id not in self._deleted:
            self._deleted.add(member_id)
            for key in self._group.member_keys(member_id):
                self._prepared.add(CoordinatorRecord(key, None))
        if (before := self._copies.get(member_id)) is not None:
            self._classic.remove(before.member)
        copied = downgraded_member(group_id, member, self._table.image())
        self._classic.add(copied)
        encoded = encoded_member(copied, protocol_name, copied.assignment)
        self._copies[member_id] = _Copy(member, copied, protocol_name, encoded)

    def _end(self, protocol_name: str) -> Outcome:
        table, group, classic, prepared = self._table, self._group, self._classic, self._prepared
        now_ms = table.clock.now_ms()
        is_settled = not group.is_epoch_due and group.state_name == "Stable"
        classic.protocol_type, classic.protocol_name = CONSUMER, protocol_name
        classic.generation_id = group.group_epoch
        for record in group.own_tombstones():
            prepared.add(record)
        encoded = [self._copies[member_id].encoded for member_id in classic.members]
        prepared.add_encoded(*encoded_stable_record(classic, classic.leader_id, encoded, now_ms))

        def install() -> None:
            classic.rest(now_ms)
            table.groups[group.group_id] = classic

        def then() -> None:
            logger.info("group %r: becomes a classic group with %d members", group.group_id, len(classic.members))
            if not is_settled:
                prepare_rebalance(table, classic, "the last member of the consumer protocol has left")
            watch_sessions(table, group_id=group.group_id, copies=list(self._copies.values()))

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


def _refused(table: GroupTable, *, group_id: str) -> Outcome:
    """The classic group could not be written. The members share the partitions of those that left."""
    group = table.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return Outcome()
    outcome = _stay_consumer_group(table, group)
    outcome.then = lambda: table.timers.schedule(
        _again_key(group_id), RETRY_MS, functools.partial(_try_again, group_id=group_id)
    )
    return outcome


def _again_key(group_id: str) -> Hashable:
    return ("downgrade again", group_id)


def _try_again(table: GroupTable, *, group_id: str) -> Outcome:
    group = table.groups.get(group_id)
    if isinstance(group, ConsumerGroup) and is_downgrade_due(table, group):
        begin(table, group)
    return Outcome()


def _stay_consumer_group(table: GroupTable, group: ConsumerGroup) -> Outcome:
    """The group stays a consumer group. The epoch that the leave called for starts now, unless a join started one."""
    is_there = table.groups.get(group.group_id) is group
    if not is_there or not group.is_epoch_due:
        return Outcome()
    change = GroupChange(group, table.image().topics, table.clock)
    change.members_have_left()
    return Outcome(records=change.records)


# Sessions.


def sessions_key(group_id: str) -> Hashable:
    """The key of the timer that runs while some members still have the timers of the consumer group."""
    return ("downgraded sessions", group_id)


def watch_sessions(table: GroupTable, *, group_id: str, copies: list[_Copy]) -> Outcome:
    """Replaces the timers of the consumer group by the sessions of the classic group, some at a time.

    A timer of the consumer group that expires before does nothing. ``copies`` are dropped along the way: they hold the
    last references to the members of the consumer group, which take a while to free.
    """
    group = classic_group(table, group_id)
    for copy in copies[-SESSIONS_AT_ONCE:]:
        cancel_timers(table.timers, group_id, copy.source.member_id)
        member = None if group is None else group.members.get(copy.source.member_id)
        if group is not None and member is not None:
            group.renew_session(member)
    del copies[-SESSIONS_AT_ONCE:]
    if copies:
        go_on = functools.partial(watch_sessions, group_id=group_id, copies=copies)
        table.timers.schedule(sessions_key(group_id), 0, go_on)
    return Outcome()
