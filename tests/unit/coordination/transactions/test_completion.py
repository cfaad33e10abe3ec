"""From the decision to the end: the order of what is written, what fails on the way, and restarts at every point."""

from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import TopicPartition
from skep.coordination.transactions.completion import MARKERS_AT_ONCE, advance
from skep.coordination.transactions.transaction_state import State
from tests.unit.coordination.transactions.scene import DONE, ID, ORDERS_0, ORDERS_1, Marker, Promise, Scene, refusal

RESULTS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
END = {True: State.COMPLETE_COMMIT, False: State.COMPLETE_ABORT}
PREPARE = {True: State.PREPARE_COMMIT, False: State.PREPARE_ABORT}


@RESULTS
def test_every_partition_gets_one_marker_with_the_result(commit: bool):
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.end(producer, commit=commit)
    scene.pass_ms(0)
    assert scene.markers.written == [Marker(ORDERS_0, producer, commit), Marker(ORDERS_1, producer, commit)]
    assert scene.state() is END[commit]
    assert scene.transaction().partitions == frozenset()
    assert not scene.shard.completions


def test_no_marker_is_written_before_the_decision_can_no_longer_be_lost():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.decision = Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(1_000)
    assert scene.markers.written == []
    scene.markers.decision.settle()
    # By now others have written: what they wrote is not waited for.
    scene.markers.decision = Promise()
    scene.pass_ms(0)
    assert scene.state() is State.COMPLETE_COMMIT


def test_a_decision_that_cannot_be_synced_is_waited_for_again():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    failing = scene.markers.decision = Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    scene.markers.decision = None
    failing.settle(StorageError("the disk is gone"))
    scene.pass_ms(0)
    assert scene.markers.written == []
    scene.pass_ms(50)
    assert scene.state() is State.COMPLETE_COMMIT


def test_the_transaction_is_complete_only_when_every_marker_is_synced():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    first, second = scene.markers.syncs[ORDERS_0], scene.markers.syncs[ORDERS_1] = Promise(), Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    first.settle()
    scene.pass_ms(10_000)
    assert scene.state() is State.PREPARE_COMMIT
    assert refusal(lambda: scene.add(producer, ORDERS_0)) is ErrorCode.concurrent_transactions
    assert scene.describe()["topics"] == [{"topic": "orders", "partitions": [1]}]
    second.settle()
    scene.pass_ms(0)
    assert scene.state() is State.COMPLETE_COMMIT
    assert len(scene.markers.written) == 2


def test_a_marker_whose_sync_fails_is_written_again():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    failing = scene.markers.syncs[ORDERS_1] = Promise()
    scene.end(producer, commit=False)
    scene.pass_ms(0)
    del scene.markers.syncs[ORDERS_1]
    failing.settle(StorageError("the disk is gone"))
    scene.pass_ms(50)
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_0, ORDERS_1, ORDERS_1]
    assert scene.state() is State.COMPLETE_ABORT


@pytest.mark.parametrize(
    "failure",
    [
        StorageError("no space left"),
        KafkaError(ErrorCode.coordinator_load_in_progress),
        KafkaError(ErrorCode.transaction_coordinator_fenced),
    ],
    ids=["disk", "loading", "fenced"],
)
def test_a_partition_that_cannot_take_its_marker_is_asked_again_and_the_others_are_not(failure: Exception):
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.refusals[ORDERS_0] = [failure] * 3
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_1]
    scene.pass_ms(49)
    assert len(scene.markers.refusals[ORDERS_0]) == 2
    scene.pass_ms(1 + 100)
    assert scene.state() is State.PREPARE_COMMIT
    scene.pass_ms(200)
    assert scene.state() is State.COMPLETE_COMMIT
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_1, ORDERS_0]


@pytest.mark.parametrize(
    "code", [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch], ids=lambda code: code.name
)
def test_a_partition_in_which_nothing_is_left_to_end_is_passed_over(code: ErrorCode):
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.refusals[ORDERS_0] = [KafkaError(code)] * 10
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    assert scene.state() is State.COMPLETE_COMMIT
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_1]


def test_a_partition_with_records_of_a_later_epoch_keeps_its_transaction_from_being_complete():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.refusals[ORDERS_0] = [KafkaError(ErrorCode.invalid_producer_epoch)] * 1_000
    still_open = {(ORDERS_0, producer.producer_id)}
    scene.markers.is_open = lambda partition, producer_id: (partition, producer_id) in still_open
    scene.end(producer, commit=True)
    scene.pass_ms(600_000)
    assert scene.state() is State.PREPARE_COMMIT
    assert refusal(lambda: scene.add(producer, ORDERS_1)) is ErrorCode.concurrent_transactions
    still_open.clear()  # an administrator has ended it with a marker of that epoch
    scene.pass_ms(5_000)
    assert scene.state() is State.COMPLETE_COMMIT


def test_a_complete_record_that_cannot_be_written_is_tried_again_without_new_markers():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.end(producer, commit=True)
    scene.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    scene.pass_ms(2_000)
    assert scene.state() is State.PREPARE_COMMIT
    scene.refuse_writes = None
    scene.pass_ms(500)
    assert scene.state() is State.COMPLETE_COMMIT
    assert len(scene.markers.written) == 2


@RESULTS
@pytest.mark.parametrize("marked", [0, 1, 2])
def test_a_coordinator_that_stops_after_the_decision_goes_the_same_way_after_a_restart(commit: bool, marked: int):
    scene = Scene()
    partitions = [TopicPartition("orders", index) for index in range(3)]
    producer = scene.init()
    scene.add(producer, *partitions)
    for partition in partitions[marked:]:
        scene.markers.refusals[partition] = [StorageError("the broker stops here")]
    scene.end(producer, commit=commit)
    scene.pass_ms(0)
    assert len(scene.markers.written) == marked
    assert scene.state() is PREPARE[commit]
    scene.markers.refusals.clear()
    scene.restart()
    assert refusal(lambda: scene.add(producer, ORDERS_0)) is ErrorCode.concurrent_transactions
    scene.pass_ms(0)
    assert scene.state() is END[commit]
    assert {marker.partition for marker in scene.markers.written} == set(partitions)
    assert {marker.is_committed for marker in scene.markers.written} == {commit}
    assert scene.replay_is_the_same()


def test_a_fencing_abort_keeps_its_epoch_over_a_restart():
    scene = Scene()
    old = scene.in_state(State.ONGOING)
    assert refusal(lambda: scene.init()) is ErrorCode.concurrent_transactions
    scene.restart()
    scene.pass_ms(0)
    assert {marker.producer.producer_epoch for marker in scene.markers.written} == {old.producer_epoch + 1}
    assert refusal(lambda: scene.end(old, commit=True)) is ErrorCode.producer_fenced


def test_a_shard_that_has_moved_away_writes_nothing_more():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    waiting = scene.markers.decision = Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    scene.timers.stop()
    scene.shard.unloaded()
    moved = scene.shard
    scene.markers.decision = None
    scene.restart()
    scene.pass_ms(0)
    assert scene.state() is State.COMPLETE_COMMIT
    written = len(scene.markers.written)
    waiting.settle()
    scene.pass_ms(10_000)
    assert moved is not scene.shard
    assert len(scene.markers.written) == written


def test_a_transaction_of_many_partitions_is_ended_in_several_goes_past_those_that_refuse():
    scene = Scene()
    partitions = [TopicPartition("wide", index) for index in range(3 * MARKERS_AT_ONCE)]
    producer = scene.init()
    scene.add(producer, *partitions)
    for partition in partitions[: MARKERS_AT_ONCE + 1]:
        scene.markers.refusals[partition] = [StorageError("no space left")]
    scene.end(producer, commit=True)
    written = [scene.submit(lambda shard: advance(shard, ID)) or len(scene.markers.written) for _ in range(3)]
    assert written == [0, MARKERS_AT_ONCE - 1, 2 * MARKERS_AT_ONCE - 1]
    scene.pass_ms(50)
    assert scene.state() is State.COMPLETE_COMMIT
    assert {marker.partition for marker in scene.markers.written} == set(partitions)
    assert len(scene.markers.written) == len(partitions)


def test_markers_that_take_long_are_written_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    scene = Scene()
    producer = scene.init()
    partitions = [TopicPartition("wide", index) for index in range(7)]
    scene.add(producer, *partitions)
    write = scene.markers.write

    def write_slowly(*arguments: Any, **named: Any) -> Any:
        scene.clock.advance_ms(2)  # as the first append to a partition
        return write(*arguments, **named)

    monkeypatch.setattr(scene.markers, "write", write_slowly)
    scene.end(producer, commit=True)
    written = [scene.submit(lambda shard: advance(shard, ID)) or len(scene.markers.written) for _ in range(3)]
    assert written == [3, 6, 7]
    assert scene.state() is State.COMPLETE_COMMIT


def test_a_marker_that_is_lost_while_others_are_still_to_be_written_is_written_again():
    scene = Scene()
    partitions = [TopicPartition("wide", index) for index in range(3 * MARKERS_AT_ONCE)]
    producer = scene.init()
    scene.add(producer, *partitions)
    lost = scene.markers.syncs[partitions[0]] = Promise()
    scene.end(producer, commit=True)
    scene.submit(lambda shard: advance(shard, ID))
    del scene.markers.syncs[partitions[0]]
    lost.settle(StorageError("no space left"))
    scene.pass_ms(200)
    assert scene.state() is State.COMPLETE_COMMIT
    assert [marker.partition for marker in scene.markers.written].count(partitions[0]) == 2


def test_the_next_transaction_follows_at_once():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    for _ in range(3):
        assert scene.end(producer, commit=True) == DONE
        scene.pass_ms(0)
        assert scene.add(producer, ORDERS_1) == DONE
    assert scene.transaction(ID).partitions == {ORDERS_1}
    assert len(scene.markers.written) == 4


def test_a_topic_that_is_not_known_after_a_move_is_waited_for_a_while():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.decision = Promise()
    scene.end(producer, commit=True)
    scene.markers.decision = None
    unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
    scene.markers.refusals = {ORDERS_0: [unknown] * 3, ORDERS_1: [unknown] * 1_000}
    scene.restart()
    scene.pass_ms(1_000)
    # The first was on its way to us; the second stays unknown, so it is deleted.
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_0]
    assert scene.state() is State.PREPARE_COMMIT
    scene.pass_ms(5_000)
    assert scene.state() is State.COMPLETE_COMMIT
    assert [marker.partition for marker in scene.markers.written] == [ORDERS_0]


def test_partitions_that_fail_together_are_one_failure():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    first, second = scene.markers.syncs[ORDERS_0], scene.markers.syncs[ORDERS_1] = Promise(), Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    scene.markers.syncs.clear()
    for failing in (first, second):
        failing.settle(KafkaError(ErrorCode.not_leader_or_follower))
    scene.pass_ms(49)
    assert scene.state() is State.PREPARE_COMMIT
    scene.pass_ms(1)
    assert scene.state() is State.COMPLETE_COMMIT
