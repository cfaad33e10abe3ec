"""What the group commands show of a group, whichever client it was asked with."""

from dataclasses import dataclass, field

from skep.base.ids import TopicPartition

SHARE = "Share"


@dataclass(frozen=True)
class GroupListing:
    group: str
    state: str
    type: str


@dataclass(frozen=True)
class MemberView:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: list[TopicPartition]
    target: list[TopicPartition] | None = None
    epoch: int | None = None
    """None if the client does not return it."""


@dataclass(frozen=True)
class GroupView:
    group: str
    state: str
    type: str
    assignor: str
    coordinator: str
    coordinator_id: int
    members: list[MemberView] = field(default_factory=list)
    group_epoch: int | None = None
    assignment_epoch: int | None = None
    """None if the client does not return them."""
