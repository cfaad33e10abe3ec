"""The requests for the state of a share partition: fencing, merging, snapshots, and what a restart reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Freshness
from skep.coordination.share import share_operations
from skep.coordination.share.share_records import ShareSnapshotKey, ShareUpdateKey
from skep.coordination.share.share_state import DeliveryState, SharePartitionKey, ShareState, StateBatch
from skep.metadata.model import random_id
from tests.unit.coordination.share.scene import (
    ARCHIVED,
    AVAILABLE,
    KEY,
    ORDERS,
    OTHER,
    ShareScene,
    accepted,
    fields,
)


@pytest.fixture
def scene() -> ShareScene:
    scene = ShareScene()
    scene.initialize()
    return scene


def refused(code: ErrorCode):
    return pytest.raises(KafkaError, check=lambda error: error.code is code)


def test_a_new_state_is_empty():
    scene = ShareScene()
    assert scene.summary() == ShareState(0, 0, -1, -1)
    scene.initialize(state_epoch=3, start_offset=-1)
    assert scene.read(leader_epoch=2) == ShareState(3, 2, -1, -1, ())
    assert scene.summary() == ShareState(3, 2, -1, -1)


def test_what_is_written_is_read_also_after_a_restart(scene):
    scene.write(accepted(0, 4), StateBatch(5, 9, AVAILABLE, 1), start_offset=0, complete=5)
    scene.write(StateBatch(7, 7, ARCHIVED, 2), start_offset=5, complete=1)
    expected = ShareState(
        0, 0, 5, -1, (StateBatch(5, 6, AVAILABLE, 1), StateBatch(7, 7, ARCHIVED, 2), StateBatch(8, 9, AVAILABLE, 1))
    )
    assert scene.read() == expected
    assert scene.summary().delivery_complete_count == 1
    scene.restart()
    assert scene.read() == expected
    assert scene.summary() == ShareState(0, 0, 5, 1)


def test_a_read_with_a_higher_leader_epoch_fences_earlier_leaders_for_good(scene):
    scene.write(accepted(0, 4), leader_epoch=1)
    assert scene.read(leader_epoch=4).batches == (accepted(0, 4),)
    for _ in range(2):
        with refused(ErrorCode.fenced_leader_epoch):
            scene.write(accepted(5, 9), leader_epoch=3)
        with refused(ErrorCode.fenced_leader_epoch):
            scene.read(leader_epoch=3)
        scene.restart()
    assert scene.read(leader_epoch=4).batches == (accepted(0, 4),)


def test_a_write_with_a_higher_leader_epoch_fences_too(scene):
    scene.write(accepted(0, 0), leader_epoch=5)
    with refused(ErrorCode.fenced_leader_epoch):
        scene.write(accepted(1, 1), leader_epoch=4)


def test_a_read_in_the_known_epoch_writes_nothing_and_must_not_be_stale(scene):
    scene.read(leader_epoch=4)
    before = len(scene.log)
    outcome = share_operations.read(scene.shard, KEY, 4)
    assert not outcome.records
    assert outcome.freshness is Freshness.PROVEN
    assert len(scene.log) == before


def test_only_the_current_state_epoch_may_write(scene):
    scene.initialize(state_epoch=2, start_offset=50)
    for epoch in (1, 3):
        with refused(ErrorCode.fenced_state_epoch):
            scene.write(accepted(60, 60), state_epoch=epoch)
    with refused(ErrorCode.fenced_state_epoch):
        scene.initialize(state_epoch=1, start_offset=70)
    scene.write(accepted(60, 60), state_epoch=2)
    assert scene.read() == ShareState(2, 0, 50, -1, (accepted(60, 60),))


def test_a_reset_forgets_the_deliveries_and_keeps_the_fence_of_the_leader(scene):
    scene.read(leader_epoch=6)
    scene.write(accepted(0, 9), leader_epoch=6, start_offset=10)
    scene.initialize(state_epoch=1, start_offset=3)
    with refused(ErrorCode.fenced_leader_epoch):
        scene.read(leader_epoch=5)
    assert scene.read(leader_epoch=6) == ShareState(1, 6, 3)
    assert scene.summary() == ShareState(1, 6, 3, 0)


def test_a_repeated_initialize_does_not_undo_what_followed(scene):
    scene.initialize(OTHER, start_offset=-1)
    scene.write(accepted(100, 104), key=OTHER, start_offset=100, complete=5)
    before = len(scene.log)
    scene.initialize(OTHER, start_offset=-1)
    assert len(scene.log) == before
    assert scene.read(OTHER).batches == (accepted(100, 104),)


def test_neither_the_start_nor_the_count_goes_back(scene):
    scene.write(start_offset=10, complete=4)
    scene.write(start_offset=5, complete=9)
    assert scene.summary() == ShareState(0, 0, 10, 4)
    scene.write(start_offset=10, complete=3)
    assert scene.summary() == ShareState(0, 0, 10, 4)
    scene.write(start_offset=-1, complete=6)
    assert scene.summary() == ShareState(0, 0, 10, 6)
    scene.write(start_offset=20, complete=0)
    assert scene.summary() == ShareState(0, 0, 20, 0)
    scene.restart()
    assert scene.summary() == ShareState(0, 0, 20, 0)


def test_a_write_below_the_start_is_no_state(scene):
    scene.write(start_offset=10)
    scene.write(accepted(3, 5), accepted(8, 12))
    assert scene.read().batches == (accepted(10, 12),)


def test_an_uninitialized_state_is_neither_read_nor_written(scene):
    with refused(ErrorCode.invalid_request):
        scene.read(OTHER)
    with refused(ErrorCode.invalid_request):
        scene.write(accepted(0, 0), key=OTHER)


@pytest.mark.parametrize("key", [SharePartitionKey("kitchen", random_id(), 0), KEY._replace(partition=2)])
def test_a_partition_that_does_not_exist_is_refused(scene, key):
    for request in (lambda: scene.initialize(key), lambda: scene.read(key), lambda: scene.write(key=key)):
        with refused(ErrorCode.unknown_topic_or_partition):
            request()
    assert scene.summary(key) == share_operations.NO_STATE
    scene.delete(key)


def test_a_deleted_state_is_gone_and_deleting_it_again_is_fine(scene):
    scene.write(accepted(0, 4))
    scene.delete()
    scene.delete()
    assert scene.summary() == share_operations.NO_STATE
    scene.restart()
    assert not scene.shard.states
    scene.initialize()
    assert scene.read().batches == ()


@pytest.mark.parametrize("epochs", [{"leader_epoch": -1}, {"state_epoch": -1}])
def test_a_sentinel_epoch_is_refused(scene, epochs):
    with refused(ErrorCode.invalid_request):
        scene.write(accepted(0, 0), **epochs)


def test_a_read_or_initialize_with_a_sentinel_epoch_is_refused(scene):
    with refused(ErrorCode.invalid_request):
        scene.read(leader_epoch=-1)
    with refused(ErrorCode.invalid_request):
        scene.initialize(state_epoch=-1)
    with refused(ErrorCode.invalid_request):
        scene.initialize(start_offset=-2)


@pytest.mark.parametrize(
    "batch",
    [
        accepted(-1, 3),
        accepted(4, 3),
        StateBatch(0, 1, DeliveryState.ACQUIRED, 1),
        StateBatch(0, 1, 7, 1),  # type: ignore[arg-type]
        StateBatch(0, 1, AVAILABLE, -1),
        StateBatch(0, 1, AVAILABLE, 1 << 15),
    ],
)
def test_a_batch_that_cannot_be_is_refused(scene, batch):
    before = len(scene.log)
    with refused(ErrorCode.invalid_request):
        scene.write(accepted(0, 0), batch)
    assert len(scene.log) == before


@pytest.mark.parametrize("numbers", [{"start_offset": -2}, {"complete": -2}])
def test_a_number_below_minus_one_is_refused(scene, numbers):
    with refused(ErrorCode.invalid_request):
        scene.write(**numbers)


def test_the_batches_of_a_state_are_limited(scene):
    half = share_operations.MAX_STATE_BATCHES // 2
    scene.write(*(accepted(2 * offset, 2 * offset) for offset in range(half)))
    scene.write(*(accepted(2 * offset, 2 * offset, 2) for offset in range(half + 1)))
    before = len(scene.log)
    with refused(ErrorCode.invalid_request):
        scene.write(*(accepted(2 * offset, 2 * offset) for offset in range(half, 2 * half + 2)))
    assert len(scene.log) == before


@pytest.mark.parametrize("more", [(-1,), (1 << 15,), (1, -1), (1, 1 << 63)])
def test_failures_and_times_out_of_range_are_refused(scene, more):
    with refused(ErrorCode.invalid_request):
        scene.write(accepted(0, 0)._replace(**dict(zip(("failures", "not_before_ms"), more, strict=False))))


def test_the_next_generation_replaces_the_state_and_fences_writes_of_the_one_before(scene):
    scene.write(accepted(5, 9), start_offset=5, complete=5)
    before = ShareState(0, 0, 9, 1, [accepted(9, 9)])
    opened = ShareState(0, 0, 2, 6, [StateBatch(2, 3, AVAILABLE, 0), accepted(4, 9)], generation=1)
    scene.write_state(opened)
    scene.write_state(opened)
    assert scene.read() == ShareState(0, 0, 2, batches=tuple(opened.batches), generation=1)
    with refused(ErrorCode.fenced_state_epoch):
        scene.write_state(before)
    scene.write_state(before._replace(generation=1, start_offset=3, batches=[StateBatch(3, 3, AVAILABLE, 1)]))
    # A late copy of the replacement.
    scene.write_state(opened)
    scene.restart()
    kept = (StateBatch(3, 3, AVAILABLE, 1), accepted(4, 9))
    assert scene.read() == ShareState(0, 0, 3, batches=kept, generation=1)
    # A leader that does not know whether its second replacement will arrive makes a third one.
    scene.write_state(opened._replace(generation=3))
    with refused(ErrorCode.fenced_state_epoch):
        scene.write_state(opened._replace(generation=2))


def test_a_reset_begins_with_generation_0_and_a_replacement_needs_a_start(scene):
    with refused(ErrorCode.invalid_request):
        scene.write_state(ShareState(0, 0, -1, generation=1))
    scene.write_state(ShareState(0, 0, 4, generation=1))
    scene.initialize(state_epoch=1, start_offset=7)
    scene.write_state(ShareState(1, 0, 8))
    assert scene.read().generation == 0


def test_the_share_partitions_of_a_shard_are_limited():
    scene = ShareScene(max_share_partitions=1)
    scene.initialize()
    with refused(ErrorCode.policy_violation):
        scene.initialize(OTHER)
    scene.initialize(state_epoch=1)
    scene.delete()
    scene.initialize(OTHER)


def test_a_snapshot_follows_after_so_many_updates():
    scene = ShareScene(share_snapshot_update_records_per_snapshot=2)
    scene.initialize()
    for offset in range(7):
        scene.write(accepted(offset, offset, offset + 1), start_offset=min(offset, 4))
    kinds = [type(key) for key, _ in scene.records()]
    snapshot, update = ShareSnapshotKey, ShareUpdateKey
    assert kinds == [snapshot, update, update, snapshot, update, update, snapshot, update]
    assert [value.snapshot_epoch for _, value in scene.records()] == [0, 0, 0, 1, 1, 1, 2, 2]
    last_snapshot = scene.records()[6][1]
    assert list(last_snapshot.batches) == [accepted(4, 4, 5), accepted(5, 5, 6)]
    assert scene.shard.states[KEY].snapshot_offset == 6


BATCHES = st.builds(
    lambda first, size, state, count: StateBatch(first, first + size, state, count),
    st.integers(0, 20),
    st.integers(0, 5),
    st.sampled_from([AVAILABLE, DeliveryState.ACKNOWLEDGED, ARCHIVED]),
    st.integers(1, 3),
)
WRITES = st.lists(st.tuples(st.lists(BATCHES, max_size=4), st.integers(-1, 20), st.integers(-1, 9)), max_size=12)


@given(WRITES, st.integers(0, 3))
def test_a_restart_finds_the_state_wherever_the_snapshots_are(writes, updates_per_snapshot):
    scene = ShareScene(share_snapshot_update_records_per_snapshot=updates_per_snapshot)
    scene.initialize()
    whole = ShareScene()
    whole.initialize()
    for batches, start, complete in writes:
        for one in (scene, whole):
            one.write(*batches, start_offset=start, complete=complete)
    assert fields(scene.replayed().states[KEY]) == fields(scene.shard.states[KEY])
    assert scene.read() == whole.read()
    assert scene.summary() == whole.summary()
    # A log that begins at the last snapshot has the same state.
    begin = scene.shard.states[KEY].snapshot_offset
    scene.log[:begin] = [scene.log[begin]] * begin
    assert scene.replayed().states[KEY].batches == scene.shard.states[KEY].batches


def test_an_update_without_a_snapshot_is_skipped(scene):
    scene.write(accepted(0, 4))
    del scene.log[0]
    scene.restart()
    assert not scene.shard.states


def test_partitions_of_one_topic_and_group_are_apart(scene):
    scene.initialize(OTHER)
    scene.write(accepted(0, 4))
    assert scene.read(OTHER).batches == ()
    assert ORDERS.topic_id == KEY.topic_id
