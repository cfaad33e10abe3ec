"""The interface that all kinds of groups have for offsets, listings and deletion."""

from collections.abc import Sequence
from typing import Protocol

from skep.coordination.groups.group_memory import MemoryShare
from skep.coordination.shard import CoordinatorRecord, Waiter


class Group(Protocol):
    """One group of one kind. A group may change its kind (KIP-848); then another object takes its place."""

    group_id: str
    memory: MemoryShare

    @property
    def type_name(self) -> str:
        """``classic``, ``consumer`` or ``share``, as in ListGroups."""
        ...

    @property
    def state_name(self) -> str:
        """The state as clients see it: Empty, Stable, PreparingRebalance, Assigning ..."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumers, ``share`` for share groups; empty for a group that only ever had offsets."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members: it may be deleted, and its offsets expire."""
        ...

    @property
    def commits_offsets(self) -> bool:
        """Whether groups of this kind have committed offsets, and expire without any. Share groups do neither."""
        ...

    def check_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_epoch: int,
        *,
        is_transactional: bool,
        version: int,
    ) -> None:
        """Raises KafkaError if the committer is not a current member. ``version`` is that of the request."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises KafkaError if a member fetches offsets with a stale epoch."""
        ...

    def committed(self, member_id: str) -> None:
        """Called when a member has committed offsets, which may renew its session."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, so that its offsets may be neither deleted nor expired."""
        ...

    def can_read_subscriptions(self) -> bool:
        """Whether the broker can read the subscriptions of the members, which ``is_subscribed_to`` needs."""
        ...

    def offsets_expire_since(self, commit_timestamp: int) -> int | None:
        """The time (ms) from which the retention of an offset committed then counts; None: it does not expire."""
        ...

    def waiters(self) -> Sequence[Waiter]:
        """The waiters of JoinGroup and SyncGroup requests without a response so far."""
        ...

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        """The records that delete the group in a replay, without its offsets."""
        ...
