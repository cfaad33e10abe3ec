"""One partition that this broker follows: what the next fetch asks for, and how its log is brought onto the leader's.

The leader's response for a partition tells how the two logs differ:

- a *diverging epoch*: our log has batches that the leader's log does not have. They are truncated down to the point up
  to which both logs can be equal, and the next fetch asks again (KIP-101, KIP-279, over Fetch as in KIP-595);
- OFFSET_OUT_OF_RANGE: our log lies wholly before the start of the leader's log; it starts over at that offset.
"""

import asyncio
import logging
from uuid import UUID

from skep.base.errors import KafkaError
from skep.base.ids import BrokerId, LeaderEpoch, Offset
from skep.replication.partition.partition import Partition
from skep.storage.log.leader_epochs import NO_EPOCH
from skep.storage.log.log import Log
from skep.wire.fetch.fetch_request import FetchPosition
from skep.wire.fetch.fetch_response_reader import FetchResponsePartition

logger = logging.getLogger(__name__)

PAST_ALL_LOGS = Offset(1 << 62)
"""The offset that a follower asks for when its log may start too late. The leader refuses it and says where its own log
starts. It does not count the follower's position: otherwise the follower could join the ISR before its log has
started over."""

Key = tuple[UUID, int]
"""Topic id and partition index."""


class FollowedPartition:
    """A partition in the fetcher of its leader.

    ``sent`` is the position that the leader's fetch session has, None if it has none. The partition is not fetched
    before ``wait_until``. ``is_new``: a reassignment adds this replica. ``compared_in`` is the last leader epoch in
    which the start of the log was compared with the start of the leader's log.
    """

    __slots__ = ("compared_in", "is_in_sync", "is_new", "key", "partition", "sent", "wait_until")

    def __init__(self, partition: Partition, is_new: bool, is_in_sync: bool) -> None:
        self.partition = partition
        self.key: Key = (partition.topic_id, partition.topic_partition.partition)
        self.is_new = is_new
        self.is_in_sync = is_in_sync
        self.sent: FetchPosition | None = None
        self.wait_until = 0.0
        self.compared_in = -1

    def is_throttled(self, node_id: BrokerId) -> bool:
        """Whether the replica catches up at a limited rate. One that is in sync does not: producers wait for it."""
        if self.is_in_sync:
            return False
        replica = (self.partition.topic_partition.partition, node_id)
        return self.is_new or replica in self.partition.log.config.throttled_followers

    def position(self, max_bytes: int) -> FetchPosition:
        """Returns what the next fetch asks for."""
        partition, log = self.partition, self.partition.log
        # A member of the ISR has everything that is committed: what is missing before its start, leaders have deleted.
        may_start_late = not self.is_in_sync and _may_start_late(log)
        is_to_compare = may_start_late and self.compared_in != partition.leader_epoch
        return FetchPosition(
            *self.key,
            partition.leader_epoch,
            PAST_ALL_LOGS if is_to_compare else log.log_end_offset,
            NO_EPOCH if is_to_compare else log.latest_epoch,
            log.log_start_offset,
            max_bytes,
        )

    def start_over(self, leader_start: int) -> "asyncio.Future[None] | None":
        """Replaces the log by an empty one that starts where the leader's log starts."""
        start = Offset(max(0, leader_start))
        logger.info("%s: starting over at %d, where the leader's log starts", self.partition.topic_partition, start)
        return self.partition.start_over_at(start)

    def truncate(self, fetched: FetchResponsePartition, leader: BrokerId) -> "asyncio.Future[None] | None":
        """Removes from the log what the leader does not have. The future is done when this is; None means at once.

        Raises KafkaError when the response gives no reason to truncate.
        """
        partition, log = self.partition, self.partition.log
        if fetched.diverging_epoch is None:
            # Our log lies wholly before the leader's, or is empty and lies past its end.
            if fetched.log_start_offset >= 0 and (fetched.log_start_offset > log.log_end_offset or _is_empty(log)):
                return self.start_over(fetched.log_start_offset)
            # Every batch has an epoch and every leader begins one, so brokers do not make such a history.
            raise KafkaError(
                fetched.error_code, f"the leader has neither offset {log.log_end_offset} nor a diverging epoch"
            )
        if _has_nothing_in_common(log, fetched.diverging_epoch):
            return self.start_over(fetched.log_start_offset)
        epoch, leader_end = fetched.diverging_epoch
        own_epoch, own_end = log.end_offset_for_epoch(LeaderEpoch(epoch))
        # (KIP-279) If we do not have that epoch, the end of our last epoch before it is the furthest common point.
        end = min(leader_end, own_end) if own_epoch >= 0 else leader_end
        logger.info(
            "%s: truncating from %d to %d; broker %d, the leader, does not have the rest",
            partition.topic_partition,
            log.log_end_offset,
            end,
            leader,
        )
        return partition.truncate_to(Offset(max(end, log.log_start_offset)))


def _is_empty(log: Log) -> bool:
    return log.log_start_offset == log.log_end_offset


def _has_nothing_in_common(log: Log, diverging: tuple[int, int]) -> bool:
    """Whether our whole log lies past what the leader has in common with it; or it is empty, and its last batch was of
    an epoch that the leader does not know."""
    epoch, end = diverging
    return end < log.log_start_offset or (_is_empty(log) and log.last_batch_epoch > epoch)


def _may_start_late(log: Log) -> bool:
    """Whether the leader may have records before our first one that we should have: ours were lost, or nothing says
    that we ever had the same log."""
    return log.log_start_offset > 0 and (log.lost_data or (_is_empty(log) and log.latest_epoch < 0))
