"""Transactions v2 over two brokers: a partition is added to the transaction by the first request that writes to it."""

import asyncio
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import verifier
from skep.coordination.transactions.transaction_state import State
from skep.replication.partition.partition import Partition
from skep.wire import apis
from tests.unit.coordination.transactions.test_two_brokers import GROUP, ID, begin, send, state, until
from tests.unit.coordination.transactions.two_brokers import OFFSETS, ON_ONE, ON_TWO, Scene, run

ADDS = 12


async def end(scene: Scene, producer: ProducerStamp, *, commit: bool = True) -> ProducerStamp:
    """The producer of the next transaction."""
    response = await scene.one.ask(apis.END_TXN, 5, **stamp(producer), committed=commit)
    assert response.error_code == 0
    return ProducerStamp(response.producer_id, response.producer_epoch)


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
    response = await scene.two.ask(
        apis.TXN_OFFSET_COMMIT,
        5,
        **stamp(producer),
        group_id=GROUP,
        topics=[{"name": "orders", "partitions": [wanted]}],
    )
    return ErrorCode(response.topics[0].partitions[0].error_code)


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


def test_a_copy_of_a_marker_that_comes_late_does_not_end_the_next_transaction(monkeypatch: pytest.MonkeyPatch):
    async def scenario(scene: Scene) -> None:
        requests: list[Any] = []
        ask = scene.one.wire.ask

        async def recorded(broker: Any, api: Any, body: Any, *, version: int | None = None) -> Any:
            if api is apis.WRITE_TXN_MARKERS:
                requests.append(body)
            return await ask(broker, api, body, version=version)

        monkeypatch.setattr(scene.one.wire, "ask", recorded)
        producer = await begin(scene)
        assert await send(scene.two, producer, ON_TWO, 0, ADDS) is ErrorCode.none
        assert await commit_offset(scene, producer, 5) is ErrorCode.none
        following = await end(scene, producer)
        await until(lambda: state(scene) is State.COMPLETE_COMMIT)
        assert await send(scene.two, following, ON_TWO, 0, ADDS) is ErrorCode.none
        assert await commit_offset(scene, following, 50) is ErrorCode.none
        assert requests
        for body in requests:
            response = await scene.two.ask(apis.WRITE_TXN_MARKERS, 2, **body)
            codes = {
                one.error_code for marker in response.markers for topic in marker.topics for one in topic.partitions
            }
            assert codes == {ErrorCode.invalid_producer_epoch}
        await end(scene, following, commit=False)
        await until(lambda: state(scene) is State.COMPLETE_ABORT)
        assert scene.two.groups.shard_of(GROUP).offsets.of_group(GROUP)["orders", 0].offset == 5
        assert scene.two.batches(ON_TWO) == ["0", "!", "0", "!"]

    run(scenario)


def test_a_batch_that_waits_while_an_older_client_ends_the_transaction_is_not_appended():
    """EndTxn 4 does not raise the epoch: the batch would begin a transaction that nothing ends."""

    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        scene.two.wire.holds = True
        sent = send(scene.two, producer, ON_TWO, 0, ADDS)
        await until(lambda: bool(scene.two.wire.held))
        response = await scene.one.ask(apis.END_TXN, 4, **stamp(producer), committed=False)
        assert response.error_code == 0
        await until(lambda: state(scene) is State.COMPLETE_ABORT)
        scene.two.wire.let_go()
        assert await sent is ErrorCode.not_enough_replicas
        assert scene.two.batches(ON_TWO) == ["!"]

    run(scenario)


def test_the_first_batch_of_a_producer_has_to_begin_at_0(monkeypatch: pytest.MonkeyPatch):
    async def scenario(scene: Scene) -> None:
        producer = await begin(scene)
        append, failures = Partition.append, [KafkaError(ErrorCode.not_enough_replicas, "too few in-sync replicas")]

        def fails_once(self: Partition, *args: Any, **options: Any) -> Any:
            if failures and self.topic_partition == ON_TWO:
                raise failures.pop()
            return append(self, *args, **options)

        monkeypatch.setattr(Partition, "append", fails_once)
        first, second = (send(scene.two, producer, ON_TWO, sequence, ADDS) for sequence in range(2))
        assert await first is ErrorCode.not_enough_replicas
        assert await second is ErrorCode.out_of_order_sequence_number
        assert await send(scene.two, producer, ON_TWO, 0, ADDS) is ErrorCode.none
        assert await send(scene.two, producer, ON_TWO, 1, ADDS) is ErrorCode.none

    run(scenario)
