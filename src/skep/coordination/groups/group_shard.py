"""The state behind one partition of ``__consumer_offsets``: its groups and their offsets.

What the groups of each kind do is in modules of their own (``classic_*``, ``consumer_*``); they work on the shard they
are given. This one finds groups, and passes each record of a replay on to whom it concerns.
"""

from collections.abc import Callable, Iterator
from typing import Any

from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.classic import classic_replay as classic_loading
from skep.coordination.groups.committed_offsets import Offsets
from skep.coordination.groups.group import Group
from skep.coordination.groups.group_memory import GROUP_BYTES, CountedGroups, Memory, check_memory
from skep.coordination.groups.membership import consumer_replay as consumer_loading
from skep.coordination.groups.offset_scan import Piece
from skep.coordination.groups.offsets import offset_expiry as expiring
from skep.coordination.groups.offsets.deleted_topics import Forgetting
from skep.coordination.shard import CoordinatorRecord, Outcome, ProducerStamp, ShardContext
from skep.metadata.cluster_image import ClusterImage

_REPLAYS: dict[type, Callable[["GroupShard", Any, Any], None]] = {
    **classic_loading.REPLAYS,
    **consumer_loading.REPLAYS,
}


NO_CHANGE = CoordinatorRecord(OffsetCommitKey("", "", -1), None)


class GroupShard:
    """Owns the groups and offsets of one partition.

    Between calls every group has a member, an offset, or somebody who waits; what is said in the log of both is here.
    ``settings`` and ``image`` give the broker's options and the cluster's topics as they are at that moment,
    ``used_bytes`` the memory that the groups and offsets of all shards of this broker take.
    """

    def __init__(
        self,
        context: ShardContext,
        settings: Callable[[], BrokerConfig],
        image: Callable[[], ClusterImage],
        used_by_all: Callable[[], int] | None = None,
    ) -> None:
        self.partition = context.partition
        self.clock = context.clock
        self.timers = context.timers
        self.settings = settings
        self.image = image
        self.memory = Memory()
        self.groups: dict[str, Group] = CountedGroups(self.memory)
        self.offsets = Offsets(self.memory)
        self.used_bytes = used_by_all or (lambda: self.memory.bytes)
        self.gone_topics: set[str] = set()
        """Deleted, and their offsets not forgotten yet."""
        self.forgetting: Forgetting | None = None
        self.expiring: Iterator[Piece] | None = None
        """How far the scan for offsets that have expired has come; None between two of them."""

    @property
    def no_change(self) -> CoordinatorRecord:
        return NO_CHANGE

    # Replay.

    def replay(self, offset: int, key: Any, value: Any, producer: ProducerStamp | None) -> None:
        if type(key) is OffsetCommitKey:
            self.offsets.replay(offset, key, value, producer.producer_id if producer is not None else None)
            return
        replay = _REPLAYS.get(type(key))
        if replay is not None:
            replay(self, key, value)

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        self.offsets.end_of_transaction(producer.producer_id, is_committed=is_committed)

    def loaded(self) -> Work[Outcome]:
        """Members that the log knows get a session from now on: they may have been silent only because we were."""
        yield from classic_loading.loaded(self)
        yield from consumer_loading.loaded(self)
        expiring.schedule_expiry(self)
        return Outcome()

    def unloaded(self) -> Outcome:
        error = KafkaError(ErrorCode.not_coordinator, "the coordinator of the group has moved")
        return Outcome(replies=[(waiter, error) for group in self.groups.values() for waiter in group.waiters()])

    # Finding groups.

    def group(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def check_room(self) -> None:
        """POLICY_VIOLATION when there are as many groups as there may be; before a new one is begun."""
        check_memory(self.settings(), self.used_bytes(), GROUP_BYTES)
        limit = self.settings().max_groups
        # Groups with members mostly have offsets too: the sum is an upper bound, counted exactly only near the limit.
        if len(self.groups) + len(self.offsets) >= limit and len({*self.groups, *self.offsets.groups()}) >= limit:
            raise KafkaError(
                ErrorCode.policy_violation, f"there are {limit} groups here already; skep.max.groups is the limit"
            )
