"""What a leader knows of its followers, and what follows from it: the high watermark, who is in sync, who is not.

No clock, no disk and no network here, so that a simulation can run the very rules that brokers run.

``isr`` is what the metadata store says. A change of it is *proposed* first, and stands when the store has it. As long
as we do not know, both count: a follower that we want to add must hold what is committed from now on, since the store
may have it in the set already; one that we want to remove still must, since the store may not have let it go. So a
leader that is elected from either set has everything that was acknowledged.
"""

import math
from collections.abc import Collection

from skep.base.ids import BrokerId, Offset
from skep.metadata.model import PartitionRecord

UNKNOWN_OFFSET = Offset(-1)
UNKNOWN_EPOCH = -1


class Follower:
    """How far one follower is. ``caught_up_at`` is the last moment at which it had all that the leader had then,
    ``fetched_at`` the last at which it was heard of."""

    __slots__ = ("_leader_end", "broker_epoch", "caught_up_at", "fetched_at", "log_end_offset", "log_start_offset")

    def __init__(self, now: float, *, is_in_sync: bool) -> None:
        # One that was in sync when we began to lead has the whole time to show itself.
        self.caught_up_at = now if is_in_sync else float("-inf")
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset: int = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.fetched_at = now
        self._leader_end = UNKNOWN_OFFSET

    def fetched(self, offset: Offset, leader_end: Offset, now: float, broker_epoch: int) -> None:
        if offset >= leader_end:
            self.caught_up_at = now
        elif 0 <= self._leader_end <= offset:
            # It has what we had at its last fetch. Without this a follower of a busy leader would never be in sync.
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.broker_epoch = broker_epoch
        self.fetched_at = now
        self._leader_end = leader_end


class InSyncReplicas:
    """The followers of a partition in one leader epoch. Owns the proposal that is under way, if any."""

    __slots__ = (
        "_members",
        "_node_id",
        "_proposed",
        "epoch_start_offset",
        "followers",
        "has_last_isr",
        "is_in_doubt",
        "isr",
        "replicas",
    )

    def __init__(self, node_id: BrokerId, record: PartitionRecord, epoch_start_offset: Offset, now: float) -> None:
        self._node_id = node_id
        self.epoch_start_offset = epoch_start_offset
        self.followers: dict[BrokerId, Follower] = {}
        self.is_in_doubt = False
        self.has_last_isr = False
        self.isr: frozenset[BrokerId] = frozenset()
        self.replicas: tuple[BrokerId, ...] = ()
        self._proposed: frozenset[BrokerId] | None = None
        self._members: tuple[Follower, ...] = ()
        self.follow(record, now)

    def follow(self, record: PartitionRecord, now: float) -> None:
        """The store has this now, in the same leader epoch; what is proposed is not settled by it, see ``settle``."""
        self.isr = frozenset(record.isr)
        self.has_last_isr = bool(record.last_isr)
        self.replicas = record.replicas
        self.followers = {
            broker: self.followers.get(broker) or Follower(now, is_in_sync=broker in self.isr)
            for broker in record.replicas
            if broker != self._node_id
        }
        self._count_members()

    def propose(self, isr: Collection[BrokerId]) -> None:
        """The store is asked to make the ISR this. It counts until ``settle``."""
        proposed = frozenset(isr)
        # Of several proposals nobody knows which the store took: all of them count.
        self._proposed = proposed if self._proposed is None else self._proposed | proposed
        self._count_members()

    def settle(self) -> None:
        """No proposal can take effect any more: ``isr`` is what there is."""
        self._proposed = None
        self.is_in_doubt = False
        self._count_members()

    def _count_members(self) -> None:
        members = self.isr if self._proposed is None else self.isr | self._proposed
        self._members = tuple(state for broker, state in self.followers.items() if broker in members)

    @property
    def is_proposing(self) -> bool:
        return self._proposed is not None

    def fetched(
        self, broker: BrokerId, offset: Offset, leader_end: Offset, now: float, broker_epoch: int = UNKNOWN_EPOCH
    ) -> bool:
        """The follower asks for ``offset``, so it has all before, of our history. Whether it is one of ours."""
        follower = self.followers.get(broker)
        if follower is None:
            return False
        follower.fetched(offset, leader_end, now, broker_epoch)
        return True

    def committed_end(self, own_end: Offset) -> Offset:
        """Below this offset every member of the ISR, as it is or may be, has everything."""
        end = own_end
        for follower in self._members:
            if follower.log_end_offset < end:
                end = follower.log_end_offset
        return end

    def all_heard_at(self) -> float:
        """The moment since which every member of the ISR, as it is or may be, has fetched; infinity: there is none."""
        return min((follower.fetched_at for follower in self._members), default=math.inf)

    def too_few(self, min_insync_replicas: int) -> str | None:
        """How many are in sync and how many should be; None when there are enough."""
        # A topic of two replicas cannot have three in sync: as in Kafka, no more is asked than there are.
        wanted = min(min_insync_replicas, len(self.replicas))
        count = len(self.isr)
        return None if count >= wanted else f"{count} in-sync replicas, min.insync.replicas is {wanted}"

    def can_join(self, broker: BrokerId, high_watermark: Offset) -> bool:
        """Whether to ask the store for a follower outside the ISR."""
        return broker not in self.isr and not self.is_proposing and self.may_be_added(broker, high_watermark)

    def may_be_added(self, broker: BrokerId, high_watermark: Offset) -> bool:
        """Whether a follower has what a member must have: all that is committed, and our epoch.

        To be asked in the same step in which it is proposed: a moment later more may be committed. One that is proposed
        already has been waited for since.
        """
        follower = self.followers.get(broker)
        if follower is None:
            return False
        is_counted = self._proposed is not None and broker in self._proposed
        return is_counted or follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)

    def lagging(self, leader_end: Offset, now: float, max_lag_s: float) -> frozenset[BrokerId]:
        """Members that have not had all of our log for too long, and do not have it now."""
        silent = self.silent(now, max_lag_s)
        return frozenset(broker for broker in silent if self.followers[broker].log_end_offset < leader_end)

    def silent(self, now: float, max_lag_s: float) -> list[BrokerId]:
        """Members that have not said for too long that they have all; they may have it, if nothing was appended."""
        return [
            broker
            for broker, follower in self.followers.items()
            if broker in self.isr and now - follower.caught_up_at > max_lag_s
        ]
