"""A classic group: its members, how many of them wait, and what offsets and listings need of it (``Group``).

Everything that a join needs is kept as a number (how many wait, how many support each protocol), so a join costs the
same in a group of five and of five thousand. The operations on a group are in the modules beside this one.

The log has only a part of a classic group: its members and their assignments while it is stable
(``classic_records``). Operations change the rest at once, without records.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.group_records import GroupMetadataKey
from skep.coordination.groups.classic.classic_member import ClassicMember, Protocols, Returning
from skep.coordination.groups.classic.classic_state import (
    COMPLETING_REBALANCE,
    EMPTY,
    NEXT_STATES,
    PREPARING_REBALANCE,
    STABLE,
    ClassicState,
)
from skep.coordination.groups.classic.consumer_protocol import CONSUMER, subscribed_topics
from skep.coordination.groups.group_memory import MemoryShare
from skep.coordination.shard import CoordinatorRecord, Waiter
from skep.coordination.timers import Timers


class ClassicGroup:
    """Owns the members of one group.

    Between calls ``static_ids``, ``waiting_to_join``, ``support`` and ``metadata_bytes`` agree with the members, and a
    group with members has a leader among them and at least one protocol that all of them support.

    ``pending``: member ids that were handed out and not used yet (KIP-394). ``pending_sync``: members that have joined
    the generation and not sent SyncGroup. ``returning``: static members, by instance id, that joined with new member
    ids and wait until these are in the log.
    """

    type_name = "classic"
    commits_offsets = True

    def __init__(self, group_id: str, clock: Clock, timers: Timers) -> None:
        self.group_id = group_id
        self._clock = clock
        self._timers = timers
        self.state = EMPTY
        self.state_timestamp = clock.now_ms()
        self.is_initial_rebalance = False
        self.has_grown = False
        """Whether a member has joined, or got its id to join with, since the initial delay was last extended."""
        self.is_logged = False
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_ids: dict[str, str] = {}
        self.pending: set[str] = set()
        self.pending_sync: set[str] = set()
        self.waiting_to_join = 0
        self.support: Counter[str] = Counter()
        self.metadata_bytes = 0
        self.memory = MemoryShare()
        self.changes = 0
        """Counts the changes of the state, the generation and the members, but not of waiters."""
        self.is_upgrading = False
        self.returning: dict[str, Returning] = {}
        self._assigned_bytes = 0
        self._topics: frozenset[str] | None = None
        self._topics_are_current = False

    # States.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    def become(self, state: ClassicState) -> None:
        if state not in NEXT_STATES[self.state]:
            raise AssertionError(f"group {self.group_id!r}: {state.value} after {self.state.value}")
        self.is_initial_rebalance = self.state is EMPTY and state is PREPARING_REBALANCE
        self.state = state
        self.state_timestamp = self._clock.now_ms()
        self.changes += 1

    def begin_generation(self) -> None:
        """Starts the next generation, once all members have joined."""
        self.generation_id += 1
        self.protocol_name = self.chosen_protocol(self.members.values())
        self.pending_sync = set(self.members)
        self._topics_are_current = False
        self.become(COMPLETING_REBALANCE)

    # Members.

    def add(self, member: ClassicMember) -> None:
        if not self.members:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        self._count(member, 1)

    def remove(self, member: ClassicMember) -> None:
        """The caller replies to the waiters of the member."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        self._count(member, -1)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace(self, successors: Mapping[str, ClassicMember]) -> None:
        """Replaces static members by successors with other ids, which keep their places and the leadership."""
        before = self.members
        for member_id in successors:
            self._count(before[member_id], -1)
        members = [successors.get(member_id, member) for member_id, member in before.items()]
        self.members = {member.member_id: member for member in members}
        self.pending_sync.difference_update(successors)
        for successor in successors.values():
            self._count(successor, 1)
        if self.leader_id is not None and self.leader_id in successors:
            self.leader_id = successors[self.leader_id].member_id

    def update(self, member: ClassicMember, protocols: Protocols, join_waiter: Waiter | None) -> None:
        self._count(member, -1)
        member.protocols = protocols
        member.join_waiter = join_waiter
        self._count(member, 1)

    def replace_all(self, members: Iterable[ClassicMember]) -> None:
        """Makes these the members, in this order."""
        self.members = {member.member_id: member for member in members}
        self.pending_sync &= self.members.keys()
        self.static_ids, self.support, self.waiting_to_join, self.metadata_bytes = {}, Counter(), 0, 0
        for member in self.members.values():
            self._count(member, 1)
        self._topics_are_current = False
        self.changes += 1
        self._assigned_bytes = sum(len(member.assignment) for member in self.members.values())
        self._count_memory()

    def assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """Makes the group stable with these assignments, which are in the log."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.become(STABLE)
        self.rest(now_ms)

    def rest(self, now_ms: int) -> None:
        """Called when the log has the group as it is: stable, with the assignments of its members."""
        self.state = STABLE
        self.state_timestamp = now_ms
        self.is_logged = True
        self._assigned_bytes = sum(len(member.assignment) for member in self.members.values())
        self._count_memory()

    def _count_memory(self) -> None:
        self.memory.set(len(self.members), self.metadata_bytes + self._assigned_bytes)

    def _count(self, member: ClassicMember, step: int) -> None:
        """Adds a member to the sums, or subtracts it; it must not have changed since it was added."""
        self.metadata_bytes += step * member.metadata_bytes
        for name, _ in member.protocols:
            self.support[name] += step
            if not self.support[name]:
                del self.support[name]
        if member.join_waiter is not None:
            self.waiting_to_join += step
        if member.group_instance_id is not None:
            if step > 0:
                self.static_ids[member.group_instance_id] = member.member_id
            else:
                self.static_ids.pop(member.group_instance_id, None)
        self._topics_are_current = False
        self.changes += 1
        self._count_memory()

    def take_join_waiter(self, member: ClassicMember) -> Waiter:
        waiter, member.join_waiter = member.join_waiter, None
        self.waiting_to_join -= 1
        return waiter

    @property
    def have_all_joined(self) -> bool:
        return self.waiting_to_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """Returns the member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a replaced one (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_ids.get(group_instance_id)
            if current is not None and current != member_id:
                raise KafkaError(
                    ErrorCode.fenced_instance_id, f"instance {group_instance_id!r} is now member {current!r}"
                )
            if current is None:
                raise KafkaError(
                    ErrorCode.unknown_member_id, f"group {self.group_id!r} has no instance {group_instance_id!r}"
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"group {self.group_id!r} has no member {member_id!r}")
        return member

    def renew_session(self, member: ClassicMember) -> None:
        """Restarts the session of a member."""
        self._timers.schedule(member.session_key, member.session_timeout_ms, member.on_session_expired)

    # The choice of a protocol.

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join: all members must support one of them."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self.support[name] == count for name, _ in protocols)

    def chosen_protocol(self, members: Iterable[ClassicMember]) -> str:
        """Returns the protocol with the most votes. A member votes for the first of its own that all support."""
        return chosen_protocol([[name for name, _ in member.protocols] for member in members])

    # ``Group``.

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        *,
        is_transactional: bool,
        version: int,
    ) -> None:
        if self.state is EMPTY and generation_or_epoch < 0:
            return  # A tool that sets the offsets of an inactive group, or a consumer without a group.
        if generation_or_epoch >= 0 or member_id or group_instance_id is not None:
            self.check_member(member_id, group_instance_id)
            if generation_or_epoch != self.generation_id:
                raise KafkaError(
                    ErrorCode.illegal_generation,
                    f"generation {generation_or_epoch} is not the current {self.generation_id}",
                )
        elif not is_transactional and self.state is not EMPTY:
            raise KafkaError(ErrorCode.unknown_member_id, f"group {self.group_id!r} has members, and only they commit")
        if not is_transactional and self.state is COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.rebalance_in_progress, f"group {self.group_id!r} rebalances")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Every client may read the offsets of a classic group."""

    def committed(self, member_id: str) -> None:
        if (member := self.members.get(member_id)) is not None:
            self.renew_session(member)

    def can_read_subscriptions(self) -> bool:
        return self.protocol_type == CONSUMER

    def is_subscribed_to(self, topic: str) -> bool:
        """True for all topics if the metadata of a consumer cannot be read, so that no offset it needs is lost."""
        topics = self._subscribed_topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self._topics_are_current:
            self._topics, self._topics_are_current = self._read_topics(), True
        return self._topics

    def _read_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for metadata in {member.metadata(self.protocol_name) for member in self.members.values()}:
            of_member = subscribed_topics(metadata)
            if of_member is None:
                return None
            topics |= of_member
        return frozenset(topics)

    def offsets_expire_since(self, commit_timestamp: int) -> int | None:
        if not self.protocol_type:
            return commit_timestamp
        if self.state is EMPTY:
            return self.state_timestamp if self.state_timestamp >= 0 else commit_timestamp
        return commit_timestamp if self.state is STABLE and self._subscribed_topics() is not None else None

    def waiters(self) -> Sequence[Waiter]:
        of_members = [
            waiter
            for member in self.members.values()
            for waiter in (member.join_waiter, member.sync_waiter)
            if waiter is not None
        ]
        return [*of_members, *(returning.waiter for returning in self.returning.values())]

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        return [CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)]


def chosen_protocol(preferences: Sequence[Sequence[str]]) -> str:
    """``ClassicGroup.chosen_protocol`` for members with these protocols, each with its preferred one first."""
    support = Counter(name for names in preferences for name in names)
    candidates = {name for name, count in support.items() if count == len(preferences)}
    if len(candidates) == 1:
        return candidates.pop()
    # There is a common protocol: a member without one may not join.
    votes = Counter(next(name for name in names if name in candidates) for names in preferences)
    [(name, _)] = votes.most_common(1)
    return name
