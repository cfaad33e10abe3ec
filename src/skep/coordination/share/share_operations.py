"""The requests for the state of a share partition: initialize, read, write, summary, delete.

Two epochs fence. A new leader of the partition reads the state with its leader epoch, and the writes of earlier leaders
are refused from then on. An operator who resets the offsets initializes the state again with a higher state epoch, and
a leader that knows an earlier one has to read the state first.

Writes merge (``state_batches.py``), and neither the start offset nor the delivery complete count goes back: a write may
be repeated when its response is lost.

A leader that opens finished offsets again writes the whole state with a higher generation. That is the one write that
replaces. It may be repeated too: a copy has the current generation, and merges without an effect. Copies of earlier
writes, which would finish those offsets again, have an earlier generation, and are fenced. The state epoch cannot be
used for this: the group coordinator chooses it, and could not distinguish a reset from a leader's write.
"""

from collections.abc import Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import CoordinatorRecord, Freshness, Outcome
from skep.coordination.share.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from skep.coordination.share.share_state import UNINITIALIZED, DeliveryState, SharePartitionKey, ShareState, StateBatch
from skep.coordination.share.share_table import KeptState, ShareTable
from skep.coordination.share.state_batches import merge

MAX_STATE_BATCHES = 70_000
"""Of one share partition, and of one write. The window of a leader has at most 65,000 runs (``share_window.py``), and a
snapshot of so many has 2.4 MB, half of what a record of the topic may have."""
MAX_DELIVERY_COUNT = 0x7FFF
MAX_TIME_MS = (1 << 63) - 1
NO_STATE = ShareState(state_epoch=0, leader_epoch=0, start_offset=UNINITIALIZED)
"""The summary of a share partition that is not initialized, as in Kafka."""

_WRITTEN_STATES = frozenset(DeliveryState) - {DeliveryState.ACQUIRED}


def initialize(table: ShareTable, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Outcome:
    """Replaces the state by an empty one. Does nothing when that has been done in this state epoch.

    A repeated request cannot be distinguished from one that moves the start back within a state epoch, because the
    requested start is not stored. Such a reset needs a higher state epoch.
    """
    _check_not_negative("state epoch", state_epoch)
    _check_not_below_minus_one("start offset", start_offset)
    _check_exists(table, key)
    before = table.states.get(key)
    if before is not None:
        if before.state_epoch > state_epoch:
            raise _fenced_state_epoch(key, before, state_epoch)
        if before.state_epoch == state_epoch and start_offset <= before.start_offset:
            return Outcome(freshness=Freshness.PROVEN)
    elif len(table.states) >= (limit := table.config.max_share_partitions):
        raise KafkaError(
            ErrorCode.policy_violation, f"this shard has {limit} share partitions already (skep.max.share.partitions)"
        )
    now_ms = table.clock.now_ms()
    snapshot = ShareSnapshotValue(
        snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
        state_epoch=state_epoch,
        leader_epoch=UNINITIALIZED if before is None else before.leader_epoch,
        start_offset=start_offset,
        # Without a start nothing can be counted from it.
        delivery_complete_count=UNINITIALIZED if start_offset == UNINITIALIZED else 0,
        create_timestamp=now_ms,
        write_timestamp=now_ms,
        generation=before.generation if before is not None and before.state_epoch == state_epoch else 0,
    )
    return Outcome(records=[CoordinatorRecord(ShareSnapshotKey(key), snapshot)])


def read(table: ShareTable, key: SharePartitionKey, leader_epoch: int) -> Outcome:
    """Responds with the state, without the delivery complete count, as the protocol has it. A higher leader epoch is
    written to the log, so that it fences earlier leaders after a restart too."""
    _check_not_negative("leader epoch", leader_epoch)
    _check_exists(table, key)
    state = _state_of(table, key)
    _check_leader_epoch(key, state, leader_epoch)
    response = ShareState(
        state.state_epoch,
        leader_epoch,
        state.start_offset,
        batches=tuple(state.batches),
        generation=state.generation,
    )
    if leader_epoch == state.leader_epoch:
        return Outcome(response, freshness=Freshness.PROVEN)
    return Outcome(response, [_record(table, key, state, response._replace(batches=()))])


def write(table: ShareTable, key: SharePartitionKey, written: ShareState) -> Outcome:
    if min(written[:4]) < 0:
        _check_not_negative("leader epoch", written.leader_epoch)
        _check_not_negative("state epoch", written.state_epoch)
        _check_not_below_minus_one("start offset", written.start_offset)
        _check_not_below_minus_one("delivery complete count", written.delivery_complete_count)
    _check_batches(written.batches)
    _check_exists(table, key)
    state = _state_of(table, key)
    _check_leader_epoch(key, state, written.leader_epoch)
    if written.state_epoch != state.state_epoch:
        # A higher epoch was never assigned to this state: the leader has read a state that was deleted since.
        raise _fenced_state_epoch(key, state, written.state_epoch)
    if written.generation > state.generation:
        return Outcome(records=[_replacement(table, key, state, written)])
    if written.generation < state.generation:
        raise KafkaError(
            ErrorCode.fenced_state_epoch,
            f"generation {written.generation} of {key.coordinator_key} is over: {state.generation} has begun",
        )
    _check_size(key, state, written)
    return Outcome(records=[_record(table, key, state, written)])


def summary(table: ShareTable, key: SharePartitionKey) -> Outcome:
    state = table.states.get(key)
    if state is None:
        return Outcome(NO_STATE, freshness=Freshness.LEASED)
    response = ShareState(state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count)
    return Outcome(response, freshness=Freshness.LEASED)


def delete(table: ShareTable, key: SharePartitionKey) -> Outcome:
    """Deletes the state; what does not exist is deleted already. The topic may be deleted too."""
    if key not in table.states:
        return Outcome(freshness=Freshness.PROVEN)
    return Outcome(records=[CoordinatorRecord(ShareSnapshotKey(key), None)])


def _record(table: ShareTable, key: SharePartitionKey, state: KeptState, change: ShareState) -> CoordinatorRecord:
    """Returns an update, or a snapshot if there are enough updates since the last one."""
    update = ShareUpdateValue(
        state.snapshot_epoch,
        max(state.leader_epoch, change.leader_epoch),
        max(state.start_offset, change.start_offset),
        state.complete_count_after(change.start_offset, change.delivery_complete_count),
        change.batches,
    )
    if state.updates < table.config.share_snapshot_update_records_per_snapshot:
        return CoordinatorRecord(ShareUpdateKey(key), update)
    batches = list(state.batches)
    merge(batches, update.batches, update.start_offset)
    snapshot = state.snapshot(table.clock.now_ms())._replace(
        leader_epoch=update.leader_epoch,
        start_offset=update.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        batches=batches,
    )
    return CoordinatorRecord(ShareSnapshotKey(key), snapshot)


def _replacement(table: ShareTable, key: SharePartitionKey, state: KeptState, written: ShareState) -> CoordinatorRecord:
    if written.start_offset == UNINITIALIZED:
        raise KafkaError(ErrorCode.invalid_request, "a state that replaces another needs a start offset")
    batches: list[StateBatch] = []
    merge(batches, written.batches, written.start_offset)
    snapshot = state.snapshot(table.clock.now_ms())._replace(
        leader_epoch=written.leader_epoch,
        start_offset=written.start_offset,
        delivery_complete_count=written.delivery_complete_count,
        batches=batches,
        generation=written.generation,
    )
    return CoordinatorRecord(ShareSnapshotKey(key), snapshot)


def _check_size(key: SharePartitionKey, state: KeptState, written: ShareState) -> None:
    if len(state.batches) + len(written.batches) <= MAX_STATE_BATCHES:
        return
    # A write mostly replaces batches. Whether there would be too many is known when they are merged.
    batches = list(state.batches)
    merge(batches, written.batches, max(state.start_offset, written.start_offset))
    if len(batches) > MAX_STATE_BATCHES:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"the state of {key.coordinator_key} has {len(state.batches)} batches and would have {len(batches)}; "
            f"at most {MAX_STATE_BATCHES} are kept",
        )


def _state_of(table: ShareTable, key: SharePartitionKey) -> KeptState:
    state = table.states.get(key)
    if state is None:
        raise KafkaError(ErrorCode.invalid_request, f"the state of {key.coordinator_key} is not initialized")
    return state


def _check_not_negative(name: str, number: int) -> None:
    if number < 0:
        raise KafkaError(ErrorCode.invalid_request, f"the {name} {number} is negative")


def _check_not_below_minus_one(name: str, number: int) -> None:
    if number < UNINITIALIZED:
        raise KafkaError(ErrorCode.invalid_request, f"the {name} {number} is below -1, which means unknown")


def _check_exists(table: ShareTable, key: SharePartitionKey) -> None:
    if not table.has_partition(key):
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition,
            f"partition {key.partition} of the topic with id {key.topic_id} does not exist",
        )


def _check_leader_epoch(key: SharePartitionKey, state: KeptState, leader_epoch: int) -> None:
    if leader_epoch < state.leader_epoch:
        raise KafkaError(
            ErrorCode.fenced_leader_epoch,
            f"leader epoch {leader_epoch} of {key.coordinator_key} is over: epoch {state.leader_epoch} has begun",
        )


def _fenced_state_epoch(key: SharePartitionKey, state: KeptState, state_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_state_epoch,
        f"state epoch {state_epoch} of {key.coordinator_key} is not the current one, {state.state_epoch}",
    )


def _check_batches(batches: Sequence[StateBatch]) -> None:
    if len(batches) > MAX_STATE_BATCHES:
        raise KafkaError(
            ErrorCode.invalid_request, f"a write has {len(batches)} batches, more than {MAX_STATE_BATCHES}"
        )
    for first, last, state, count, failures, not_before_ms, _ in batches:
        if not 0 <= first <= last or state not in _WRITTEN_STATES or not 0 <= count <= MAX_DELIVERY_COUNT:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"offsets {first} to {last} in state {int(state)} with delivery count {count} are not a state batch",
            )
        if not 0 <= failures <= MAX_DELIVERY_COUNT or not 0 <= not_before_ms <= MAX_TIME_MS:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"offsets {first} to {last}, failed {failures} times, not before {not_before_ms}: not a state batch",
            )
