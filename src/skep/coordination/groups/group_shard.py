"""The shard behind one partition of ``__consumer_offsets``: replays records into the state of its groups.

Each record is replayed by the module of its kind: offsets, classic groups, consumer groups, share groups. Other
kinds of records are skipped.
"""

from collections.abc import Callable
from typing import Any

from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.slicer import Work
from skep.coordination.group_records import OffsetCommitKey
from skep.coordination.groups.classic import classic_replay
from skep.coordination.groups.group_table import GroupTable
from skep.coordination.groups.membership import consumer_departure
from skep.coordination.groups.offsets.offset_expiry import schedule_expiry
from skep.coordination.groups.share import share_membership
from skep.coordination.shard import CoordinatorRecord, Outcome, ProducerStamp

_REPLAYS: dict[type, Callable[[GroupTable, Any, Any], None]] = {
    **classic_replay.REPLAYS,
    **consumer_departure.REPLAYS,
    **share_membership.REPLAYS,
}

NO_CHANGE = CoordinatorRecord(OffsetCommitKey("", "", -1), None)


class GroupShard(GroupTable):
    """A ``GroupTable`` that changes by the replay of records, and starts timers once it is loaded."""

    @property
    def no_change(self) -> CoordinatorRecord:
        return NO_CHANGE

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
        """Starts a full session for every logged member: it could not reach a coordinator while this one loaded."""
        yield from classic_replay.loaded(self)
        yield from consumer_departure.loaded(self)
        yield from share_membership.loaded(self)
        schedule_expiry(self)
        return Outcome()

    def unloaded(self) -> Outcome:
        error = KafkaError(ErrorCode.not_coordinator, "the coordinator of the group has moved")
        return Outcome(replies=[(waiter, error) for group in self.groups.values() for waiter in group.waiters()])
