"""Offsets for the state machines of groups: rules that commit them in every way, and that none is ever lost.

What has been committed is remembered beside the coordinator. After every step, whatever the group has been through, the
coordinator knows just that: nothing acknowledged is missing, nothing refused is there.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import NO_OFFSET, Committer
from skep.coordination.shard import Outcome, ProducerStamp
from tests.unit.coordination.driver import ShardDriver

GROUP, TOPIC = "g", "t"
PARTITIONS = range(3)
NOBODY = Committer("", None, -1)
"""Who does not commit as a member: a tool, or a producer that does not say for whom."""

whoever = st.integers(0, 20)
partitions = st.sampled_from(PARTITIONS)
producers = st.sampled_from([1, 2])


class CommitsOffsets:
    """To be inherited from beside RuleBasedStateMachine, by a machine that says who there is to commit."""

    def __init__(self) -> None:
        super().__init__()
        self.next_offset = 0
        self.committed: dict[int, tuple[int, int]] = {}
        """By partition: where in the log its record lies, and the offset. The later record wins."""
        self.in_transactions: dict[int, dict[int, tuple[int, int]]] = {}
        """The same by producer, of transactions that have not ended."""

    @property
    def driver(self) -> ShardDriver:
        raise NotImplementedError

    def committers(self) -> list[Committer]:
        """All that are, or believe to be, members."""
        raise NotImplementedError

    def is_member_of_now(self, group: Any, committer: Committer) -> bool:
        raise NotImplementedError

    # Rules.

    @rule(who=whoever, partition=partitions)
    def commit(self, who: int, partition: int) -> None:
        offset, place = self._new_offset(), len(self.driver.log)
        if self._commit(self._committer(who), partition, offset):
            self.committed[partition] = (place, offset)

    @rule(who=whoever, partition=partitions)
    def commit_when_nothing_can_be_written(self, who: int, partition: int) -> None:
        self.driver.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
        assert not self._commit(self._committer(who), partition, self._new_offset())
        self.driver.refuse_writes = None

    @rule(who=whoever, partition=partitions, producer_id=producers)
    def commit_in_a_transaction(self, who: int, partition: int, producer_id: int) -> None:
        offset, place = self._new_offset(), len(self.driver.log)
        if self._commit(self._committer(who), partition, offset, ProducerStamp(producer_id, 0)):
            self.in_transactions.setdefault(producer_id, {})[partition] = (place, offset)

    @rule(producer_id=producers, is_committed=st.booleans())
    def end_a_transaction(self, producer_id: int, is_committed: bool) -> None:
        self.driver.end_transaction(ProducerStamp(producer_id, 0), is_committed=is_committed)
        ended = self.in_transactions.pop(producer_id, {})
        if is_committed:
            for partition, written in ended.items():
                self.committed[partition] = max(written, self.committed.get(partition, written))

    def _committer(self, who: int) -> Committer:
        """Nobody, one that believes to be a member, or one that has missed the last generation."""
        believers = self.committers()
        late = [one._replace(generation_or_epoch=one.generation_or_epoch - 1) for one in believers]
        everybody = [NOBODY, *believers, *(one for one in late if one.generation_or_epoch >= 0)]
        return everybody[who % len(everybody)]

    def _new_offset(self) -> int:
        self.next_offset += 1
        return self.next_offset

    def _commit(self, committer: Committer, partition: int, offset: int, producer: ProducerStamp | None = None) -> bool:
        """Whether it is acknowledged. Plain commits are for members of now, or for anybody while there are none."""
        offsets = [(TOPIC, partition, offset, -1, "")]

        def operation(shard: Any) -> Outcome:
            if producer is None:
                return offset_operations.commit(shard, GROUP, committer, offsets, 9)
            return offset_operations.commit_transactional(shard, GROUP, committer, producer, offsets, 3)

        try:
            codes = self.driver.submit(operation)
        except KafkaError:
            return False
        assert codes == [ErrorCode.none]
        group = self.driver.shard.groups.get(GROUP)
        if committer.generation_or_epoch >= 0:
            assert self.is_member_of_now(group, committer), f"{committer} is a member no longer"
        else:
            assert producer is not None or group is None or group.is_empty
        return True

    # What is true.

    @invariant()
    def no_committed_offset_is_lost(self) -> None:
        self.check_offsets(self.driver.shard)

    def check_offsets(self, shard: Any) -> None:
        expected = {partition: offset for partition, (_, offset) in self.committed.items()}
        assert _offsets(shard, require_stable=False) == expected
        pending = {partition for written in self.in_transactions.values() for partition in written}
        stable = {partition: offset for partition, offset in expected.items() if partition not in pending}
        assert _offsets(shard, require_stable=True) == stable | dict.fromkeys(pending, ErrorCode.unstable_offset_commit)

    def teardown(self) -> None:
        self.check_offsets(self.driver.replayed())


def _offsets(shard: Any, *, require_stable: bool) -> dict[int, Any]:
    """What OffsetFetch tells of each partition that has an offset, or why it tells nothing."""
    wanted = [(TOPIC, partition) for partition in PARTITIONS]
    fetched = offset_operations.fetch(shard, GROUP, None, -1, wanted, require_stable=require_stable).response
    found = {partition: fetched.offset(TOPIC, partition) for partition in PARTITIONS}
    return {
        partition: one.offset if one.code is ErrorCode.none else one.code
        for partition, one in found.items()
        if one.offset != NO_OFFSET or one.code is not ErrorCode.none
    }
