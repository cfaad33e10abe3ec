"""The followers of a partition as its leader sees them: the high watermark, and which of them are in sync.

This module has no clock, no disk and no network, so that the simulation runs the same rules as the brokers.

``isr`` is what the metadata store has. A change of it is *proposed* first, and takes effect when the store has it.
While the outcome is unknown, both sets count. A follower that we want to add must have everything that is committed
from now on, because the store may already have it in the ISR; a follower that we want to remove must have it as well,
because the store may still have it in the ISR. So a leader that is elected from either set has everything that was
acknowledged.

After a failover the store's record also names a *last ISR*, whose logs are compared if all replicas lose power
(``controller/elections.py``). Nothing is committed until a write of the leader has cleared it; see ``is_unconfirmed``.
"""

import math
from collections.abc import Collection

from skep.base.ids import BrokerId, Offset
from skep.metadata.model import PartitionRecord

UNKNOWN_OFFSET = Offset(-1)
UNKNOWN_EPOCH = -1


class Follower:
    """The progress of one follower. ``caught_up_at`` is the last moment at which it had everything that the leader had
    at that moment, ``fetched_at`` the moment of its last fetch."""

    __slots__ = ("_leader_end", "broker_epoch", "caught_up_at", "fetched_at", "log_end_offset", "log_start_offset")

    def __init__(self, now: float, *, is_in_sync: bool) -> None:
        # A follower that is in sync when we begin to lead has the whole lag time to fetch.
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
            # It has everything that we had at its previous fetch. Without this rule a follower of a busy leader would
            # never be in sync.
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.log_end_offset = offset
        self.broker_epoch = broker_epoch
        self.fetched_at = now
        self._leader_end = leader_end


class InSyncReplicas:
    """The followers of a partition in one leader epoch. Owns the proposal in progress, if there is one."""

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
        """Takes over the store's record, of the same leader epoch. This does not settle a proposal; see ``settle``."""
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
        """Proposes an ISR to the store. Its members count until ``settle``."""
        proposed = frozenset(isr)
        # It is unknown which of several proposals the store has accepted: all of them count.
        self._proposed = proposed if self._proposed is None else self._proposed | proposed
        self._count_members()

    def settle(self) -> None:
        """No proposal can take effect any more: ``isr`` is current."""
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
        """The follower asks for ``offset``, so it has everything before it, of our history. Returns whether it is a
        replica."""
        follower = self.followers.get(broker)
        if follower is None:
            return False
        follower.fetched(offset, leader_end, now, broker_epoch)
        return True

    def committed_end(self, own_end: Offset) -> Offset:
        """Returns the offset below which every member of the current and of a proposed ISR has everything."""
        end = own_end
        for follower in self._members:
            if follower.log_end_offset < end:
                end = follower.log_end_offset
        return end

    def all_heard_at(self) -> float:
        """Returns the moment since which every member of the current and of a proposed ISR has fetched; infinity
        without members."""
        return min((follower.fetched_at for follower in self._members), default=math.inf)

    def too_few(self, min_insync_replicas: int) -> str | None:
        """Returns a text with the number of in-sync replicas and the number required; None when there are enough."""
        # As in Kafka, no more than the number of replicas is required: a topic with two replicas cannot have three in
        # sync.
        wanted = min(min_insync_replicas, len(self.replicas))
        count = len(self.isr)
        return None if count >= wanted else f"{count} in-sync replicas; min.insync.replicas is {wanted}"

    def is_unconfirmed(self, min_insync_replicas: int) -> bool:
        """Whether the leader has to write its ISR, which clears the last ISR, before the high watermark may move.

        A member of the last ISR may have an uncommitted batch of an epoch between that of our last records and ours. If
        our records were committed now, and all replicas lost power before the write, that batch would win the
        comparison of logs. With too few members nothing is acknowledged with acks=all, and the last ISR has to stay.
        """
        return self.has_last_isr and self.too_few(min_insync_replicas) is None

    def can_join(self, broker: BrokerId, high_watermark: Offset) -> bool:
        """Whether to propose a follower that is not in the ISR."""
        return broker not in self.isr and not self.is_proposing and self.may_be_added(broker, high_watermark)

    def may_be_added(self, broker: BrokerId, high_watermark: Offset) -> bool:
        """Whether a follower has what a member must have: everything that is committed, and our epoch.

        Must be called in the same step of the event loop in which the follower is proposed: more may be committed a
        moment later. A follower that is already proposed counts for the high watermark since then.
        """
        follower = self.followers.get(broker)
        if follower is None:
            return False
        is_counted = self._proposed is not None and broker in self._proposed
        return is_counted or follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)

    def lagging(self, leader_end: Offset, now: float, max_lag_s: float) -> frozenset[BrokerId]:
        """Returns the members that have not had our whole log for too long, and do not have it now."""
        silent = self.silent(now, max_lag_s)
        return frozenset(broker for broker in silent if self.followers[broker].log_end_offset < leader_end)

    def silent(self, now: float, max_lag_s: float) -> list[BrokerId]:
        """Returns the members that have not shown for too long that they have our whole log; they may have it, if
        nothing was appended."""
        return [
            broker
            for broker, follower in self.followers.items()
            if broker in self.isr and now - follower.caught_up_at > max_lag_s
        ]
