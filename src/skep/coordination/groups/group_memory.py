"""How much memory groups and offsets take, and how much they may.

Each shard keeps a sum, which changes with its groups and offsets; the limit is for the sum over all shards of a broker.
What is in the log is loaded whatever it takes: only what would make it more is refused.
"""

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.group import Group

OFFSET_BYTES = 400
"""What an offset takes beside its metadata."""
GROUP_BYTES = 2_000
"""What a group takes without members, or the offsets of a group beside the offsets."""
MEMBER_BYTES = 1_000
"""What a member takes beside what it says."""


class Memory:
    """A sum of bytes, kept up to date by whoever owns what is counted."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class MemoryShare:
    """What one group takes. It counts while the group is one of a shard, not while it is a copy in the making."""

    __slots__ = ("_bytes", "_memory")

    def __init__(self) -> None:
        self._bytes = GROUP_BYTES
        self._memory: Memory | None = None

    def set(self, members: int, said_bytes: int) -> None:
        before, self._bytes = self._bytes, GROUP_BYTES + members * MEMBER_BYTES + said_bytes
        if self._memory is not None:
            self._memory.bytes += self._bytes - before

    def join(self, memory: Memory) -> None:
        self._memory = memory
        memory.bytes += self._bytes

    def leave(self) -> None:
        if self._memory is not None:
            self._memory.bytes -= self._bytes
            self._memory = None


class CountedGroups(dict[str, Group]):
    """The groups of a shard. Each of them is counted as long as it is here."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def __setitem__(self, group_id: str, group: Group) -> None:
        before = self.get(group_id)
        if before is group:
            return
        if before is not None:
            before.memory.leave()
        super().__setitem__(group_id, group)
        group.memory.join(self._memory)

    def __delitem__(self, group_id: str) -> None:
        self[group_id].memory.leave()
        super().__delitem__(group_id)


def check_memory(
    settings: CoordinatorConfig, used: int, more: int, code: ErrorCode = ErrorCode.policy_violation
) -> None:
    """Raises ``code`` when ``more`` bytes, beside the ``used``, are too many."""
    if not has_memory(settings, used, more):
        raise KafkaError(
            code,
            f"The groups and offsets of this broker take {used} bytes, {more} more are too many"
            f" (skep.max.groups.memory.bytes is {settings.max_groups_memory_bytes}).",
        )


def has_memory(settings: CoordinatorConfig, used: int, more: int) -> bool:
    return used + more <= settings.max_groups_memory_bytes
