"""One partition that this broker follows, as the fetcher of its leader keeps it."""

from skep.base.ids import BrokerId
from skep.replication.partition.partition import Partition
from skep.wire.fetch.fetch_request import FollowerPartition


class Followed:
    """``sent`` is what the leader's session knows of it; until ``wait_until`` it is left alone.

    ``is_new``: a reassignment adds this replica. ``compared_in`` is the last leader epoch in which the beginning of the
    log was compared with that of its leader's.
    """

    __slots__ = ("compared_in", "is_in_sync", "is_new", "partition", "sent", "wait_until")

    def __init__(self, partition: Partition, is_new: bool, is_in_sync: bool) -> None:
        self.partition = partition
        self.is_new = is_new
        self.is_in_sync = is_in_sync
        self.sent: FollowerPartition | None = None
        self.wait_until = 0.0
        self.compared_in = -1

    def is_throttled(self, node_id: BrokerId) -> bool:
        """Whether it is to catch up slowly; once in sync, producers wait for it."""
        if self.is_in_sync:
            return False
        replica = (self.partition.topic_partition.partition, node_id)
        return self.is_new or replica in self.partition.log.config.throttled_followers
