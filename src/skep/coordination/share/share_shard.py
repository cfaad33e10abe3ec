"""The shard behind one partition of ``__share_group_state``: what the runtime loads, runs operations on and unloads."""

import uuid

from skep.base.loop.slicer import Work
from skep.coordination.shard import CoordinatorRecord, Outcome, ProducerStamp
from skep.coordination.share import share_upkeep
from skep.coordination.share.share_records import ShareSnapshotKey
from skep.coordination.share.share_state import SharePartitionKey
from skep.coordination.share.share_table import ShareTable

NO_CHANGE = CoordinatorRecord(ShareSnapshotKey(SharePartitionKey("", uuid.UUID(int=0), -1)), None)


class ShareShard(ShareTable):
    """A ``ShareTable`` that keeps its log short once it is loaded."""

    @property
    def no_change(self) -> CoordinatorRecord:
        return NO_CHANGE

    def replay_end_of_transaction(self, producer: ProducerStamp, *, is_committed: bool) -> None:
        """Does nothing: no transaction writes to ``__share_group_state``."""

    def loaded(self) -> Work[Outcome]:
        share_upkeep.schedule_scan(self)
        yield
        return Outcome()

    def unloaded(self) -> Outcome:
        """No client waits in this shard."""
        return Outcome()
