"""The groups and offsets of one partition of ``__consumer_offsets``.

The operations on the table are in the rooms beside this module: ``classic``, ``membership``, ``offsets``.
``GroupShard`` is the table as the runtime sees it: it adds the replay of records, on which no operation depends.
"""

from collections.abc import Callable, Iterator

from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.share_config import ShareConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.committed_offsets import CommittedOffsets
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_memory import GROUP_BYTES, Memory, check_memory
from skep.coordination.groups.offset_scan import DeletedTopicScan, Piece
from skep.coordination.shard import ShardContext
from skep.metadata.cluster_image import ClusterImage


class GroupsById(dict[str, Group]):
    """The groups of a shard. The memory of each group counts while the group is in here."""

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


def _ignore(_group_id: str, _member_id: str) -> None:
    pass


class GroupTable:
    """Owns the groups and offsets of one partition.

    Between calls every group has a member, an offset, or a request that waits, or it is a share group: those are kept
    until they are deleted.
    ``image`` returns the current image of the cluster, and ``used_bytes`` the memory that the groups and offsets of all
    shards of this broker take. ``share_member_fenced`` is told of members of share groups whose session has expired.
    """

    def __init__(
        self,
        context: ShardContext,
        config: CurrentConfig,
        image: Callable[[], ClusterImage],
        used_by_all: Callable[[], int] | None = None,
        share_member_fenced: Callable[[str, str], None] = _ignore,
    ) -> None:
        self.partition = context.partition
        self.clock = context.clock
        self.timers = context.timers
        self._config = config
        self.image = image
        self.memory = Memory()
        self.groups: dict[str, Group] = GroupsById(self.memory)
        self.offsets = CommittedOffsets(self.memory)
        self.used_bytes = used_by_all or (lambda: self.memory.bytes)
        self.share_member_fenced = share_member_fenced
        self.deleted_topics: set[str] = set()
        """Topics that were deleted and may still have offsets here."""
        self.deleted_topic_scan: DeletedTopicScan | None = None
        self.expiry_scan: Iterator[Piece] | None = None
        """The position of the scan for expired offsets; None between two scans."""

    @property
    def config(self) -> CoordinatorConfig:
        """The options in force."""
        return self._config.value.coordinator

    @property
    def share_config(self) -> ShareConfig:
        """The options of share groups in force."""
        return self._config.value.share

    def check_room(self) -> None:
        """Raises POLICY_VIOLATION if one more group is too many. To be called before a group is created."""
        check_memory(self.config, self.used_bytes(), GROUP_BYTES)
        limit = self.config.max_groups
        # Groups with members mostly have offsets too: the sum is an upper bound, counted exactly only near the limit.
        if len(self.groups) + len(self.offsets) >= limit and len({*self.groups, *self.offsets.groups()}) >= limit:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"partition {self.partition} has {limit} groups, which is the limit (skep.max.groups)",
            )
