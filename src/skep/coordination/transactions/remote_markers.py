"""Markers for partitions that other brokers lead: collected per broker, sent as WriteTxnMarkers, each with its own
result.

One request is in flight to a broker at a time; markers that arrive meanwhile are sent with the next one. So under load
a request carries the markers of many transactions, and a marker for an idle broker is sent at once. This module never
sends a marker twice: the caller learns of the failure, looks up the leader again and writes the marker again
(``completion.py``).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.client.errors import ClientError
from skep.coordination.partition_leaders import PeerRequests
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions.transaction import V2
from skep.metadata.model import BrokerRecord
from skep.wire.apis import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS
from skep.wire.codec import Body

logger = logging.getLogger(__name__)

MARKERS_PER_REQUEST = 500
"""A partition takes about 30 us for its marker; other requests of the receiving broker wait for the sum of these."""


class Marker(NamedTuple):
    """The content of a marker, without the partition."""

    producer: ProducerStamp
    coordinator_epoch: int
    is_committed: bool
    raises_epoch: bool = False


class _PendingMarker(NamedTuple):
    marker: Marker
    partition: TopicPartition
    done: "asyncio.Future[None]"


class RemoteMarkers:
    """Owns the markers that are not sent yet, and one sending task per broker."""

    def __init__(self, peers: PeerRequests, supervisor: Supervisor) -> None:
        self._peers = peers
        self._supervisor = supervisor
        self._waiting: dict[BrokerId, list[_PendingMarker]] = {}
        self._brokers: dict[BrokerId, BrokerRecord] = {}

    def write(self, broker: BrokerRecord, partition: TopicPartition, marker: Marker) -> "asyncio.Future[None]":
        """Returns a future that is done when the marker is committed on that broker.

        The future fails with KafkaError when the partition refuses the marker or the broker does not respond. It fails
        with INVALID_PRODUCER_EPOCH only while a transaction of that producer is open there; see ``_check_open``.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        self._brokers[broker.id] = broker
        waiting = self._waiting.get(broker.id)
        if waiting is None:
            waiting = self._waiting[broker.id] = []
            self._supervisor.spawn(f"markers to broker {broker.id}", self._send_all(broker.id))
        waiting.append(_PendingMarker(marker, partition, done))
        return done

    async def _send_all(self, broker_id: BrokerId) -> None:
        try:
            while waiting := self._waiting[broker_id]:
                batch, self._waiting[broker_id] = waiting[:MARKERS_PER_REQUEST], waiting[MARKERS_PER_REQUEST:]
                try:
                    await self._send(self._brokers[broker_id], batch)
                finally:
                    # Also when this is cancelled or fails unexpectedly: no caller may wait for ever.
                    _fail(batch, f"broker {broker_id} sent no result for the marker")
        finally:
            _fail(self._waiting.pop(broker_id), f"sending markers to broker {broker_id} has ended")

    async def _send(self, broker: BrokerRecord, batch: Sequence[_PendingMarker]) -> None:
        by_marker: dict[Marker, list[_PendingMarker]] = {}
        for one in batch:
            by_marker.setdefault(one.marker, []).append(one)
        body = {"markers": [_body_of(marker, pending) for marker, pending in by_marker.items()]}
        try:
            response = await self._peers.ask(broker, WRITE_TXN_MARKERS, body)
        except (ClientError, KafkaError) as error:
            _fail(batch, str(error))
            return
        doubtful = []
        for (marker, pending), result in zip(by_marker.items(), response.markers, strict=False):
            if result.producer_id == marker.producer.producer_id:
                doubtful += _settle(pending, result, broker)
        if doubtful:
            await self._check_open(broker, doubtful)

    async def _check_open(self, broker: BrokerRecord, doubtful: Sequence[_PendingMarker]) -> None:
        """Settles markers that were refused because the partition has seen a later epoch of the producer.

        If that epoch came with a marker, the transaction has ended. If it came with records, the transaction is open,
        and to report it complete would lose what was promised to its producer.

        The broker may follow by now and respond from an older copy, so the later epoch has to be in the response.
        """
        try:
            response = await self._peers.ask(broker, DESCRIBE_PRODUCERS, _partitions_of(doubtful))
        except (ClientError, KafkaError) as error:
            _fail(doubtful, str(error))
            return
        ended = {
            (TopicPartition(topic.name, partition.partition_index), producer.producer_id): producer.producer_epoch
            for topic in response.topics
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
            for producer in partition.active_producers
            if producer.current_txn_start_offset < 0
        }
        for one in doubtful:
            producer_id, epoch = one.marker.producer
            # A missing entry counts as open: the partition refused the marker because of a producer that it knows.
            if ended.get((one.partition, producer_id), epoch) <= epoch:
                _refuse(one, ErrorCode.invalid_producer_epoch, f"{one.partition} has a later epoch of the producer")
            elif not one.done.done():
                logger.info("%s: a later epoch has ended the transaction there", one.partition)
                one.done.set_result(None)


def _settle(pending: Sequence[_PendingMarker], result: Any, broker: BrokerRecord) -> list[_PendingMarker]:
    """Settles the markers by their error codes. Returns those that were refused with INVALID_PRODUCER_EPOCH."""
    codes = {
        TopicPartition(topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in result.topics
        for partition in topic.partitions
    }
    doubtful = []
    for one in pending:
        code = codes.get(one.partition)
        if code is ErrorCode.none:
            if not one.done.done():
                one.done.set_result(None)
        elif code is ErrorCode.invalid_producer_epoch:
            doubtful.append(one)
        elif code is not None:
            _refuse(one, code, f"broker {broker.id} refuses the marker for {one.partition}: {code.name}")
    return doubtful


def _body_of(marker: Marker, pending: Sequence[_PendingMarker]) -> Body:
    topics: dict[str, list[int]] = {}
    for one in pending:
        topics.setdefault(one.partition.topic, []).append(one.partition.partition)
    return {
        "producer_id": marker.producer.producer_id,
        "producer_epoch": marker.producer.producer_epoch,
        "transaction_result": marker.is_committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": V2 if marker.raises_epoch else 0,
    }


def _partitions_of(pending: Sequence[_PendingMarker]) -> Body:
    topics: dict[str, set[int]] = {}
    for one in pending:
        topics.setdefault(one.partition.topic, set()).add(one.partition.partition)
    return {"topics": [{"name": name, "partition_indexes": sorted(indexes)} for name, indexes in topics.items()]}


def _fail(pending: Sequence[_PendingMarker], why: str) -> None:
    """Fails those that are not settled yet."""
    for one in pending:
        _refuse(one, ErrorCode.network_exception, why)


def _refuse(one: _PendingMarker, code: ErrorCode, why: str) -> None:
    if not one.done.done():
        one.done.set_exception(KafkaError(code, why))


def _mark_retrieved(done: "asyncio.Future[None]") -> None:
    """Retrieves the exception, so that asyncio does not log it: the shard that waited may have moved away."""
    if not done.cancelled():
        done.exception()
