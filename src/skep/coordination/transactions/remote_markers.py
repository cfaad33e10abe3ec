"""Markers for partitions that other brokers lead: gathered per broker, sent as WriteTxnMarkers, answered one by one.

One request is under way to a broker at a time; what comes meanwhile goes with the next. So under load a request carries
the markers of many transactions, and an idle broker's marker goes out at once. Nothing is sent twice from here: a
marker that fails is told to whoever asked, who looks up the leader again and asks again (``finishing.py``).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.client.errors import ClientError
from skep.coordination.partition_leaders import AsksBrokers
from skep.coordination.shard import ProducerStamp
from skep.metadata.model import BrokerRecord
from skep.wire.apis import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS
from skep.wire.codec import Body

logger = logging.getLogger(__name__)

MARKERS_PER_REQUEST = 500
"""A partition takes some 30 us for its marker; that is how long others wait on the broker that is asked."""


class Ended(NamedTuple):
    """What a marker says, apart from the partition."""

    producer: ProducerStamp
    coordinator_epoch: int
    is_committed: bool


class _Sending(NamedTuple):
    ended: Ended
    partition: TopicPartition
    done: "asyncio.Future[None]"


class RemoteMarkers:
    """Owns what is still to be sent, and a task for each broker that something is being sent to."""

    def __init__(self, peers: AsksBrokers, supervisor: Supervisor) -> None:
        self._peers = peers
        self._supervisor = supervisor
        self._waiting: dict[BrokerId, list[_Sending]] = {}
        self._brokers: dict[BrokerId, BrokerRecord] = {}

    def write(self, broker: BrokerRecord, partition: TopicPartition, ended: Ended) -> "asyncio.Future[None]":
        """Done when the marker is committed there. KafkaError is the partition's refusal, or that nobody answers.

        INVALID_PRODUCER_EPOCH is told only while a transaction of that producer is open there; see ``_still_open``.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look_at)
        self._brokers[broker.id] = broker
        waiting = self._waiting.get(broker.id)
        if waiting is None:
            waiting = self._waiting[broker.id] = []
            self._supervisor.spawn(f"markers to broker {broker.id}", self._send_all(broker.id))
        waiting.append(_Sending(ended, partition, done))
        return done

    async def _send_all(self, broker_id: BrokerId) -> None:
        try:
            while waiting := self._waiting[broker_id]:
                batch, self._waiting[broker_id] = waiting[:MARKERS_PER_REQUEST], waiting[MARKERS_PER_REQUEST:]
                try:
                    await self._send(self._brokers[broker_id], batch)
                finally:
                    # Also when this is a bug, or cancelled: nobody may wait for ever.
                    _fail(batch, f"broker {broker_id} gave no answer")
        finally:
            _fail(self._waiting.pop(broker_id), f"nothing is sent to broker {broker_id} any more")

    async def _send(self, broker: BrokerRecord, batch: Sequence[_Sending]) -> None:
        by_marker: dict[Ended, list[_Sending]] = {}
        for one in batch:
            by_marker.setdefault(one.ended, []).append(one)
        body = {"markers": [_marker(ended, sendings) for ended, sendings in by_marker.items()]}
        try:
            answer = await self._peers.ask(broker, WRITE_TXN_MARKERS, body)
        except (ClientError, KafkaError) as error:
            _fail(batch, str(error))
            return
        doubtful = []
        for (ended, sendings), marker in zip(by_marker.items(), answer.markers, strict=False):
            if marker.producer_id == ended.producer.producer_id:
                doubtful += _settle(sendings, marker, broker)
        if doubtful:
            await self._still_open(broker, doubtful)

    async def _still_open(self, broker: BrokerRecord, doubtful: Sequence[_Sending]) -> None:
        """These partitions have heard of a later epoch. Where that came with a marker, the transaction has ended.

        Where it came with records it is open, and to call it complete would lose what was promised to its producer.
        """
        try:
            answer = await self._peers.ask(broker, DESCRIBE_PRODUCERS, _partitions_of(doubtful))
        except (ClientError, KafkaError) as error:
            _fail(doubtful, str(error))
            return
        is_open = {
            (TopicPartition(topic.name, partition.partition_index), producer.producer_id): (
                producer.current_txn_start_offset >= 0
            )
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
            for producer in partition.active_producers
        }
        for one in doubtful:
            # Unknown is no answer: the partition has refused the marker because of a producer that it knows.
            if is_open.get((one.partition, one.ended.producer.producer_id), True):
                _refuse(one, ErrorCode.invalid_producer_epoch, f"{one.partition} has a later epoch of the producer")
            elif not one.done.done():
                logger.info("%s: a later epoch has ended the transaction there", one.partition)
                one.done.set_result(None)


def _settle(sendings: Sequence[_Sending], marker: Any, broker: BrokerRecord) -> list[_Sending]:
    """Tells what became of the markers, except those that have to be looked into."""
    codes = {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in marker.topics
        for partition in topic.partitions
    }
    doubtful = []
    for one in sendings:
        code = codes.get(one.partition)
        if code is ErrorCode.none:
            if not one.done.done():
                one.done.set_result(None)
        elif code is ErrorCode.invalid_producer_epoch:
            doubtful.append(one)
        elif code is not None:
            _refuse(one, code, f"broker {broker.id} refuses the marker for {one.partition}: {code.name}")
    return doubtful


def _marker(ended: Ended, sendings: Sequence[_Sending]) -> Body:
    topics: dict[str, list[int]] = {}
    for one in sendings:
        topics.setdefault(one.partition.topic, []).append(one.partition.partition)
    return {
        "producer_id": ended.producer.producer_id,
        "producer_epoch": ended.producer.producer_epoch,
        "transaction_result": ended.is_committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": ended.coordinator_epoch,
    }


def _partitions_of(sendings: Sequence[_Sending]) -> Body:
    topics: dict[str, set[int]] = {}
    for one in sendings:
        topics.setdefault(one.partition.topic, set()).add(one.partition.partition)
    return {"topics": [{"name": name, "partition_indexes": sorted(indexes)} for name, indexes in topics.items()]}


def _fail(sendings: Sequence[_Sending], why: str) -> None:
    """Those that are not settled yet."""
    for one in sendings:
        _refuse(one, ErrorCode.network_exception, why)


def _refuse(one: _Sending, code: ErrorCode, why: str) -> None:
    if not one.done.done():
        one.done.set_exception(KafkaError(code, why))


def _look_at(done: "asyncio.Future[None]") -> None:
    """That nobody awaits it is no mistake: the shard may have moved away."""
    if not done.cancelled():
        done.exception()
