"""Transactions v2 over two brokers: a partition is added to the transaction by the first request that writes to it."""

import asyncio
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import verifier
from skep.coordination.transactions.transaction_state import State
from skep.wire import apis
from tests.unit.coordination.transactions.test_two_brokers import GROUP, ID, begin, send
from tests.unit.coordination.transactions.two_brokers import OFFSETS, ON_ONE, ON_TWO, Scene, run

ADDS = 12


async def end(scene: Scene, producer: ProducerStamp, *, commit: bool = True) -> ProducerStamp:
    """The producer of the next transaction."""
    answer = await scene.one.ask(apis.END_TXN, 5, **stamp(producer), committed=commit)
    assert answer.error_code == 0
    return ProducerStamp(answer.producer_id, answer.producer_epoch)


def stamp(producer: ProducerStamp) -> dict[str, Any]:
    return {
        "transactional_id": ID,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


def partitions_of(scene: Scene) -> set[Any]:
    return set(scene.one.runtime.shard_of(ID).transactions[ID].partitions)


async def commit_offset(scene: Scene, producer: ProducerStamp, offset: int) -> ErrorCode:
    wanted = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    answer = await scene.two.ask(
        apis.TXN_OFFSET_COMMIT,
        5,
        **stamp(producer),
        group_id=GROUP,
        topics=[{"name": "orders", "partitions": [wanted]}],
    )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("partition", [ON_ONE, ON_TWO])
def test_the_first_batch_adds_its_partition_and_the_next_ones_ask_nobody(partition: Any):
    async def scenario(scene: Scene) -> None:
        node = scene.one if partition is ON_ONE else scene.two
        producer = await begin(scene)
        assert await send(node, producer, partition, 0, ADDS) is ErrorCode.none
        assert partitions_of(scene) == {partition}
        asked = len(node.wire.asked)
        assert await send(node, producer, partition, 1, ADDS) is ErrorCode.none
        assert len(node.wire.asked) == asked
        following = await end(scene, producer)
        assert following == ProducerStamp(producer.producer_id, producer.producer_epoch + 1)
        assert await send(node, following, partition, 0, ADDS) is ErrorCode.none
        assert node.batches(partition) == ["0", "1", "!", "0"]

    run(scenario)


def test_batches_that_are_sent_together_stay_in_order_while_the_first_is_added():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        scene.two.wire.holds = True
        sent = [send(scene.two, producer, ON_TWO, sequence, ADDS) for sequence in range(3)]
        while not scene.two.wire.held:
            await asyncio.sleep(0)
        assert scene.two.batches(ON_TWO) == []
        scene.two.wire.let_go()
        assert await asyncio.gather(*sent) == [ErrorCode.none] * 3
        assert scene.two.batches(ON_TWO) == ["0", "1", "2"]

    run(scenario)


def test_a_batch_of_a_transaction_that_has_ended_is_fenced_where_it_was_written_and_where_it_was_not():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        assert await send(scene.one, producer, ON_ONE, 0, ADDS) is ErrorCode.none
        await end(scene, producer)
        while scene.one.batches(ON_ONE) != ["0", "!"]:
            await asyncio.sleep(0)
        assert await send(scene.one, producer, ON_ONE, 1, ADDS) is ErrorCode.invalid_producer_epoch
        assert await send(scene.two, producer, ON_TWO, 0, ADDS) is ErrorCode.invalid_producer_epoch
        assert scene.two.batches(ON_TWO) == []

    run(scenario)


def test_a_batch_waits_while_the_last_transaction_is_completed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verifier, "BETWEEN_TRIES_S", 0.001)
    monkeypatch.setattr(verifier, "TRIES_TO_ADD", 1_000)

    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        assert await send(scene.two, producer, ON_TWO, 0, ADDS) is ErrorCode.none
        scene.one.wire.holds = True  # The marker is written, and its coordinator does not hear of it.
        following = await end(scene, producer)
        sent = send(scene.two, following, ON_TWO, 0, ADDS)
        while not scene.one.wire.held:
            await asyncio.sleep(0)
        assert scene.one.runtime.shard_of(ID).transactions[ID].state is State.PREPARE_COMMIT
        assert not sent.done()
        scene.one.wire.let_go()
        assert await sent is ErrorCode.none
        assert scene.two.batches(ON_TWO) == ["0", "!", "0"]

    run(scenario)


def test_a_producer_retries_when_the_last_transaction_takes_long_to_complete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verifier, "BETWEEN_TRIES_S", 0)

    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        assert await send(scene.two, producer, ON_TWO, 0, ADDS) is ErrorCode.none
        scene.one.wire.holds = True
        following = await end(scene, producer)
        assert await send(scene.two, following, ON_TWO, 0, ADDS) is ErrorCode.not_enough_replicas
        # What was sent behind the refused batch does not overtake it.
        assert await send(scene.two, following, ON_TWO, 1, ADDS) is ErrorCode.not_enough_replicas
        scene.one.wire.let_go()
        while scene.one.runtime.shard_of(ID).transactions[ID].state is not State.COMPLETE_COMMIT:
            await asyncio.sleep(0)
        assert await send(scene.two, following, ON_TWO, 0, ADDS) is ErrorCode.none
        assert await send(scene.two, following, ON_TWO, 1, ADDS) is ErrorCode.none

    run(scenario)


def test_offsets_add_the_partition_of_their_group():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        assert await commit_offset(scene, producer, 5) is ErrorCode.none
        assert partitions_of(scene) == {OFFSETS}
        asked = len(scene.two.wire.asked)
        assert await commit_offset(scene, producer, 6) is ErrorCode.none
        assert len(scene.two.wire.asked) == asked
        following = await end(scene, producer)
        shard = scene.two.groups.shard_of(GROUP)
        while not shard.offsets.of_group(GROUP):
            await asyncio.sleep(0)
        assert shard.offsets.of_group(GROUP)["orders", 0].offset == 6
        assert await commit_offset(scene, producer, 7) is ErrorCode.invalid_producer_epoch
        assert await commit_offset(scene, following, 8) is ErrorCode.none

    run(scenario)


def test_an_abort_of_a_transaction_without_partitions_gives_the_next_epoch():
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        following = await end(scene, producer, commit=False)
        assert following == ProducerStamp(producer.producer_id, producer.producer_epoch + 1)
        assert await send(scene.two, following, ON_TWO, 0, ADDS) is ErrorCode.none

    run(scenario)
