"""What every kind of group is to offsets, listings and deletions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from skep.coordination.shard import CoordinatorRecord, Waiter

if TYPE_CHECKING:
    from skep.coordination.groups.group_memory import MemoryShare


class Group(Protocol):
    """One group of one kind; a group may change its kind (KIP-848), then another object takes its place."""

    group_id: str
    memory: "MemoryShare"
    """What it takes of its shard's memory."""

    @property
    def type_name(self) -> str:
        """``classic`` or ``consumer``, as ListGroups has it."""
        ...

    @property
    def state_name(self) -> str:
        """As clients see it: Empty, Stable, PreparingRebalance, Assigning ..."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumers; empty for a group that only ever had offsets committed."""
        ...

    @property
    def is_empty(self) -> bool:
        """No members: it may be deleted, and its offsets expire."""
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
        """KafkaError when who commits is not a member of now (``version`` is that of the request)."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """KafkaError when a member reads offsets with an epoch that is over."""
        ...

    def committed(self, member_id: str) -> None:
        """A member has committed offsets, which is a sign of life."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the topic's offsets are in use, and so may be neither deleted nor expired."""
        ...

    def knows_subscriptions(self) -> bool:
        """Whether ``is_subscribed_to`` can be asked; not so for members whose protocol is not ours to read."""
        ...

    def offsets_expire_since(self, commit_timestamp: int) -> int | None:
        """The moment (ms) from which the retention of an offset committed then counts; None: it does not expire."""
        ...

    def waiters(self) -> Sequence[Waiter]:
        """Those whose JoinGroup or SyncGroup has not been answered."""
        ...

    def tombstones(self) -> Sequence[CoordinatorRecord]:
        """The records that make a replay forget the group (its offsets are not in them)."""
        ...
