"""One member of a classic group: what it said when it joined, what it was given, and what it waits for."""

from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from skep.coordination.groups.metadata_size import protocols_bytes, text_bytes
from skep.coordination.shard import Operation, Waiter

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors that a member knows, the preferred first, each with what it wants the leader to know."""


@dataclass(slots=True)
class ClassicMember:
    """``join_waiter`` and ``sync_waiter`` are never both set. The rest is in the log once a generation is stable, of
    the protocols only the one that was chosen."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session_key: Hashable
    """Under which the timer of its silence runs."""
    on_silence: Operation
    assignment: bytes = b""
    join_waiter: Waiter | None = field(default=None, compare=False)
    sync_waiter: Waiter | None = field(default=None, compare=False)
    is_new: bool = field(default=False, compare=False)
    """It does not have its id yet and so cannot send a heartbeat: while it waits, time may run out for it all the
    same, or members that gave up and came back under another id would pile up."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.join_waiter is not None or self.sync_waiter is not None

    @property
    def metadata_bytes(self) -> int:
        """How much it has said of itself."""
        return text_bytes(self.client_id, self.client_host, self.group_instance_id) + protocols_bytes(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it said for that protocol; nothing if it does not know it."""
        for name, metadata in self.protocols:  # Not a generator: large groups ask this of each member.
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Container[str]) -> str | None:
        """The one it likes best among the candidates."""
        return next((name for name, _ in self.protocols if name in candidates), None)


class Returning(NamedTuple):
    """A static member that was started anew: ``successor`` takes the place of its earlier self."""

    successor: ClassicMember
    more_bytes: int
    """How much more it says of itself than before."""
    version: int
    """Of JoinGroup."""
    waiter: Waiter
