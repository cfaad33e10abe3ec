"""The memory that groups and offsets take, and its limit.

Each shard keeps a sum that changes with its groups and offsets. The limit applies to the sum over all shards of a
broker. What is in the log is always loaded, whatever it takes; only requests that would take more are refused.
"""

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.errors import ErrorCode, KafkaError

OFFSET_BYTES = 400
"""Memory of an offset, without its metadata."""
GROUP_BYTES = 2_000
"""Memory of a group without members, and of the offsets of a group without the offsets themselves."""
MEMBER_BYTES = 1_000
"""Memory of a member, without its metadata."""


class Memory:
    """A sum of bytes, kept up to date by the owners of what it counts."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class MemoryShare:
    """The memory of one group. It counts while the group is in a shard, and not while the group is a copy."""

    __slots__ = ("_bytes", "_memory")

    def __init__(self) -> None:
        self._bytes = GROUP_BYTES
        self._memory: Memory | None = None

    def set(self, members: int, metadata_bytes: int) -> None:
        before, self._bytes = self._bytes, GROUP_BYTES + members * MEMBER_BYTES + metadata_bytes
        if self._memory is not None:
            self._memory.bytes += self._bytes - before

    def join(self, memory: Memory) -> None:
        self._memory = memory
        memory.bytes += self._bytes

    def leave(self) -> None:
        if self._memory is not None:
            self._memory.bytes -= self._bytes
            self._memory = None


def check_memory(
    settings: CoordinatorConfig, used: int, more: int, code: ErrorCode = ErrorCode.policy_violation
) -> None:
    """Raises ``code`` if ``more`` bytes in addition to ``used`` exceed the limit."""
    if not has_memory(settings, used, more):
        raise KafkaError(
            code,
            f"The groups and offsets of this broker take {used} bytes; {more} more would exceed"
            f" skep.max.groups.memory.bytes ({settings.max_groups_memory_bytes}).",
        )


def has_memory(settings: CoordinatorConfig, used: int, more: int) -> bool:
    return used + more <= settings.max_groups_memory_bytes
