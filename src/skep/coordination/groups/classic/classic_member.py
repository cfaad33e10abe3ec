"""One member of a classic group: its JoinGroup, its assignment, and the response that it waits for."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from skep.coordination.groups.metadata_size import protocols_bytes, text_bytes
from skep.coordination.shard import Operation, Waiter

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors that a member supports, the preferred first, each with its metadata for the leader."""


@dataclass(slots=True)
class ClassicMember:
    """``join_waiter`` and ``sync_waiter`` are never both set.

    While the group is stable the log has the other fields, and of the protocols only the chosen one.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session_key: Hashable
    """The key of its session timer."""
    on_session_expired: Operation
    assignment: bytes = b""
    join_waiter: Waiter | None = field(default=None, compare=False)
    sync_waiter: Waiter | None = field(default=None, compare=False)
    is_new: bool = field(default=False, compare=False)
    """Whether it waits for its first generation. It has no id yet and sends no heartbeats. Its session may expire while
    it waits, or members that gave up and joined again with another id would pile up."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.join_waiter is not None or self.sync_waiter is not None

    @property
    def metadata_bytes(self) -> int:
        """The size of what it sent."""
        return text_bytes(self.client_id, self.client_host, self.group_instance_id) + protocols_bytes(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Returns its metadata for that protocol; empty if it does not support it."""
        for name, metadata in self.protocols:  # Not a generator: large groups call this for each member.
            if name == protocol_name:
                return metadata
        return b""


class Returning(NamedTuple):
    """A static member that was restarted: ``successor`` replaces the member with the old id."""

    successor: ClassicMember
    more_bytes: int
    """By how much its metadata has grown."""
    version: int
    """The version of its JoinGroup."""
    waiter: Waiter
