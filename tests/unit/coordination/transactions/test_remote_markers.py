"""Markers for partitions of other brokers: what a response to them, and to the question behind it, means."""

import asyncio
from types import SimpleNamespace as Made
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.remote_markers import Marker, RemoteMarkers
from skep.metadata.model import BrokerRecord
from skep.wire.apis import WRITE_TXN_MARKERS

PLACE = TopicPartition("orders", 0)
MARKER = Marker(ProducerStamp(9, 5), 0, True)
NO_TRANSACTION = -1


class OtherBroker:
    """Refuses the marker because of a later epoch, and describes the producer as it is told to."""

    def __init__(self, epoch: int, start_offset: int) -> None:
        self.producer = Made(producer_id=9, producer_epoch=epoch, current_txn_start_offset=start_offset)

    async def ask(self, broker: BrokerRecord, api: Any, body: Any) -> Any:
        row: dict[str, Any] = {"partition_index": PLACE.partition}
        if api is WRITE_TXN_MARKERS:
            topic = Made(name=PLACE.topic, partitions=[Made(**row, error_code=ErrorCode.invalid_producer_epoch)])
            return Made(markers=[Made(producer_id=9, topics=[topic])])
        described = Made(**row, error_code=ErrorCode.none, active_producers=[self.producer])
        return Made(topics=[Made(name=PLACE.topic, partitions=[described])])


@pytest.mark.parametrize(
    ("epoch", "start_offset", "has_ended"),
    [
        (6, NO_TRANSACTION, True),
        (6, 17, False),
        # The broker follows by now, and its copy does not have the later epoch yet or any more.
        (5, NO_TRANSACTION, False),
        (4, NO_TRANSACTION, False),
    ],
)
def test_a_transaction_has_ended_when_a_later_epoch_is_there_and_nothing_is_open(
    epoch: int, start_offset: int, has_ended: bool
) -> None:
    async def scenario() -> None:
        supervisor = Supervisor()
        markers = RemoteMarkers(OtherBroker(epoch, start_offset), supervisor)
        done = markers.write(BrokerRecord(BrokerId(2), "other", 9092), PLACE, MARKER)
        await asyncio.wait([done])
        if has_ended:
            assert done.result() is None
        else:
            with pytest.raises(KafkaError) as refused:
                done.result()
            assert refused.value.code is ErrorCode.invalid_producer_epoch
        await supervisor.close()

    asyncio.run(scenario())
