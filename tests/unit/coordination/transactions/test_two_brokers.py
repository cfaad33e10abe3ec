"""A transaction over two brokers: verified by its coordinator, ended in every partition, in the order it was sent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import completion
from skep.coordination.transactions.transaction_state import State
from skep.records.batch import read_header
from skep.wire import apis
from tests.raw_requests import seconds
from tests.unit.coordination.transactions.two_brokers import OFFSETS, ON_ONE, ON_TWO, ONE, Node, Scene, batch, run

ID, GROUP = "till-1", "kitchen"
KNOWS_ABORTABLE, DOES_NOT = 11, 10


async def begin(scene: Scene) -> ProducerStamp:
    response = await scene.one.ask(
        apis.INIT_PRODUCER_ID,
        4,
        transactional_id=ID,
        transaction_timeout=seconds(60),
        producer_id=-1,
        producer_epoch=-1,
    )
    assert response.error_code == 0
    return ProducerStamp(response.producer_id, response.producer_epoch)


async def add(scene: Scene, producer: ProducerStamp, *partitions: Any) -> None:
    response = await scene.one.ask(
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [index]} for topic, index in partitions],
    )
    codes = [r.partition_error_code for t in response.results_by_topic_v3_and_below for r in t.results_by_partition]
    assert codes == [0] * len(partitions)


def send(
    node: Node, producer: ProducerStamp, partition: Any, sequence: int, version: int = KNOWS_ABORTABLE
) -> "asyncio.Future[ErrorCode]":
    """Sent now; the code of the response comes."""
    data = {"index": partition.partition, "records": batch(producer, sequence)}
    response = node.handle(
        apis.PRODUCE,
        version,
        transactional_id=ID,
        acks=-1,
        timeout=seconds(30),
        topic_data=[{"name": partition.topic, "partition_data": [data]}],
    )

    async def code() -> ErrorCode:
        ((result,),) = [topic.partition_responses for topic in (await response).responses]
        return ErrorCode(result.error_code)

    return asyncio.ensure_future(code())


async def commit_offset(scene: Scene, producer: ProducerStamp, offset: int) -> ErrorCode:
    wanted = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    response = await scene.two.ask(
        apis.TXN_OFFSET_COMMIT,
        3,
        transactional_id=ID,
        group_id=GROUP,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=-1,
        member_id="",
        topics=[{"name": "orders", "partitions": [wanted]}],
    )
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def committed_offset(scene: Scene) -> int:
    response = await scene.two.ask(
        apis.OFFSET_FETCH, 7, group_id=GROUP, topics=[{"name": "orders", "partition_indexes": [0]}]
    )
    found: int = response.topics[0].partitions[0].committed_offset
    return found


async def end(scene: Scene, producer: ProducerStamp, *, commit: bool) -> None:
    response = await scene.one.ask(
        apis.END_TXN,
        3,
        transactional_id=ID,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )
    assert response.error_code == 0


def state(scene: Scene) -> State:
    return scene.one.runtime.shard_of(ID).transactions[ID].state


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_ends_in_the_partitions_of_both_brokers_and_in_the_groups_offsets(
    commit: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(completion, "MARKERS_S", 60.0)  # a busy machine must not split the markers into two passes

    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_ONE, ON_TWO, OFFSETS)
        assert await send(scene.one, producer, ON_ONE, 0) is ErrorCode.none
        assert await send(scene.two, producer, ON_TWO, 0) is ErrorCode.none
        assert await commit_offset(scene, producer, 7) is ErrorCode.none
        assert await committed_offset(scene) == -1
        assert scene.one.wire.asked == []  # the coordinator is there
        await end(scene, producer, commit=commit)
        await until(lambda: state(scene) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT))
        assert scene.one.batches(ON_ONE) == ["0", "!"]
        assert scene.two.batches(ON_TWO) == ["0", "!"]
        assert await committed_offset(scene) == (7 if commit else -1)
        assert scene.one.wire.asked == ["WriteTxnMarkers"]  # one request for both partitions of broker 2

    run(scenario)


def test_only_the_first_batch_of_a_transaction_is_verified_elsewhere():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        for sequence in range(3):
            assert await send(scene.two, producer, ON_TWO, sequence) is ErrorCode.none
        assert scene.two.wire.asked == ["AddPartitionsToTxn"]

    run(scenario)


@pytest.mark.parametrize(
    ("version", "code"),
    [(KNOWS_ABORTABLE, ErrorCode.transaction_abortable), (DOES_NOT, ErrorCode.invalid_txn_state)],
)
def test_a_partition_that_the_coordinator_does_not_know_of_refuses_the_batch(version: int, code: ErrorCode):
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_ONE)
        assert await send(scene.two, producer, ON_TWO, 0, version) is code
        assert scene.two.batches(ON_TWO) == []
        assert await commit_offset(scene, producer, 7) is ErrorCode.invalid_txn_state

    run(scenario)


def test_batches_that_come_while_the_first_is_verified_are_appended_in_their_order():
    async def scenario(scene: Scene) -> None:
        wire, producer = scene.two.wire, await begin(scene)
        await add(scene, producer, ON_TWO)
        wire.holds = True
        sent = [send(scene.two, producer, ON_TWO, sequence) for sequence in range(3)]
        await until(lambda: len(wire.held) == 3)
        first, second, third = wire.held
        third.set()
        await asyncio.sleep(0.01)
        assert scene.two.batches(ON_TWO) == []
        first.set()
        assert await sent[0] is ErrorCode.none
        # The transaction has begun here, and this one need not be verified; but the second still waits.
        sent.append(send(scene.two, producer, ON_TWO, 3))
        await asyncio.sleep(0.01)
        assert scene.two.batches(ON_TWO) == ["0"]
        second.set()
        wire.let_go()
        assert await asyncio.gather(*sent) == [ErrorCode.none] * 4
        assert scene.two.batches(ON_TWO) == ["0", "1", "2", "3"]
        assert not scene.two.transactions.verifier.guards.is_waiting(ON_TWO, producer.producer_id)

    run(scenario)


def test_a_client_that_hangs_up_leaves_the_turn_to_the_next():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        scene.two.wire.holds = True
        data = {"index": 1, "records": batch(producer, 0)}
        body = {"transactional_id": ID, "acks": -1, "timeout": seconds(30)}
        topics = [{"name": "orders", "partition_data": [data]}]
        gone = scene.two.handle(apis.PRODUCE, 11, **body, topic_data=topics)
        await until(lambda: len(scene.two.wire.held) == 1)
        again = send(scene.two, producer, ON_TWO, 0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        scene.two.wire.let_go()
        assert await again is ErrorCode.none
        assert scene.two.batches(ON_TWO) == ["0"]

    run(scenario)


def test_a_marker_that_comes_while_a_batch_is_verified_keeps_the_batch_out():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        scene.two.wire.holds = True
        late = send(scene.two, producer, ON_TWO, 0)
        await until(lambda: len(scene.two.wire.held) == 1)
        # The coordinator has said yes by now, and its word is on the way.
        await end(scene, producer, commit=True)
        await until(lambda: state(scene) is State.COMPLETE_COMMIT)
        scene.two.wire.let_go()
        assert await late is ErrorCode.not_enough_replicas
        assert scene.two.batches(ON_TWO) == ["!"]
        assert await send(scene.two, producer, ON_TWO, 0) is ErrorCode.transaction_abortable

    run(scenario)


def test_another_leader_epoch_while_a_batch_is_verified_keeps_it_out():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        scene.two.wire.holds = True
        late = send(scene.two, producer, ON_TWO, 0)
        await until(lambda: len(scene.two.wire.held) == 1)
        partition = scene.two.replicas.partition(*ON_TWO)
        partition.lead(ONE, scene.catalog.image.topics["orders"].partitions[1]._replace(leader_epoch=1))
        scene.two.wire.let_go()
        assert await late is ErrorCode.not_enough_replicas
        assert await send(scene.two, producer, ON_TWO, 0) is ErrorCode.none

    run(scenario)


def test_while_the_coordinator_cannot_be_reached_batches_are_sent_again_and_do_not_overtake_each_other():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        scene.two.wire.failures = 1
        assert await send(scene.two, producer, ON_TWO, 0) is ErrorCode.not_enough_replicas
        # The partition has never heard of the producer and would take any sequence.
        assert await send(scene.two, producer, ON_TWO, 1) is ErrorCode.not_enough_replicas
        assert await send(scene.two, producer, ON_TWO, 0) is ErrorCode.none
        assert await send(scene.two, producer, ON_TWO, 1) is ErrorCode.none
        assert scene.two.batches(ON_TWO) == ["0", "1"]

    run(scenario)


def test_offsets_wait_for_a_coordinator_that_cannot_be_reached():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, OFFSETS)
        scene.two.wire.failures = 1
        assert await commit_offset(scene, producer, 7) is ErrorCode.coordinator_not_available
        assert await commit_offset(scene, producer, 7) is ErrorCode.none

    run(scenario)


def test_a_broker_that_does_not_answer_is_sent_its_markers_again():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_ONE, ON_TWO)
        await send(scene.two, producer, ON_TWO, 0)
        scene.one.wire.failures = 2
        await end(scene, producer, commit=True)
        await until(lambda: state(scene) is State.COMPLETE_COMMIT)
        assert scene.one.wire.asked == ["WriteTxnMarkers"] * 3
        assert scene.one.batches(ON_ONE) == ["!"]  # not again: it was marked at the first go
        assert scene.two.batches(ON_TWO) == ["0", "!"]

    run(scenario)


def test_a_partition_without_a_leader_is_waited_for():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        await send(scene.two, producer, ON_TWO, 0)
        whole = scene.catalog.image
        scene.catalog.image = whole.without_broker(whole.topics["orders"].partitions[1].leader)
        await end(scene, producer, commit=False)
        await asyncio.sleep(0.02)
        assert state(scene) is State.PREPARE_ABORT
        assert scene.one.wire.asked == []
        scene.catalog.image = whole
        await until(lambda: state(scene) is State.COMPLETE_ABORT)
        assert scene.two.batches(ON_TWO) == ["0", "!"]

    run(scenario)


def test_a_topic_that_was_deleted_needs_no_marker():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        scene.catalog.image = scene.catalog.image.without_topic("orders")
        await end(scene, producer, commit=False)
        await until(lambda: state(scene) is State.COMPLETE_ABORT)
        assert scene.one.wire.asked == []

    run(scenario)


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "ended"])
def test_a_later_epoch_elsewhere_has_ended_the_transaction_only_if_it_came_with_a_marker(is_open: bool):
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_TWO)
        partition = scene.two.replicas.partition(*ON_TWO)
        if not is_open:
            partition.append_marker(producer.producer_id, producer.producer_epoch + 1, 0, False)
        else:
            later = batch(producer._replace(producer_epoch=producer.producer_epoch + 1), 0)
            partition.append(later, read_header(later))
        await end(scene, producer, commit=True)
        await until(lambda: scene.one.wire.asked[:2] == ["WriteTxnMarkers", "DescribeProducers"])
        if is_open:
            await asyncio.sleep(0.02)
            assert state(scene) is State.PREPARE_COMMIT
            partition.append_marker(producer.producer_id, producer.producer_epoch + 1, 0, False)
        await until(lambda: state(scene) is State.COMPLETE_COMMIT)

    run(scenario)


def test_several_transactions_are_asked_about_in_one_request_and_one_can_be_added_to():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        await add(scene, producer, ON_ONE)
        one = {"transactional_id": ID, "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        topics = [{"name": "orders", "partitions": [0, 1]}]
        stranger = {**one, "transactional_id": "stranger"}
        response = await scene.one.ask(
            apis.ADD_PARTITIONS_TO_TXN,
            4,
            transactions=[
                {**one, "verify_only": True, "topics": topics},
                {**stranger, "verify_only": True, "topics": topics},
                {**one, "verify_only": False, "topics": topics},
                {**one, "verify_only": True, "topics": topics},
                {**one, "verify_only": False, "topics": [{"name": "orders", "partitions": [0, 9]}]},
            ],
        )
        codes = [
            [ErrorCode(r.partition_error_code) for t in result.topic_results for r in t.results_by_partition]
            for result in response.results_by_transaction
        ]
        assert codes == [
            [ErrorCode.none, ErrorCode.invalid_txn_state],
            [ErrorCode.invalid_producer_id_mapping] * 2,
            [ErrorCode.none] * 2,
            [ErrorCode.none] * 2,
            [ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition],
        ]

    run(scenario)
