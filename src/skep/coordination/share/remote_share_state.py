"""Requests to a share coordinator on another broker.

Writes are collected per broker. One round of requests is in flight at a time, and the writes that arrive meanwhile are
sent with the next one, so a busy coordinator gets few requests with many share partitions, and an idle one gets each
write at once. Nothing is sent twice here; ``routed_persister.py`` finds the coordinator again and tries again.
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.client.errors import ClientError
from skep.coordination.partition_leaders import PeerRequests
from skep.coordination.share.share_state import SharePartitionKey, ShareState
from skep.coordination.share.state_messages import batches_received, fields_of, generation_received, request_for
from skep.metadata.model import BrokerRecord
from skep.wire.apis import (
    DELETE_SHARE_GROUP_STATE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    WRITE_SHARE_GROUP_STATE,
    Api,
)
from skep.wire.codec import Body

WRITES_PER_ROUND = 500
"""A write takes the coordinator about 50 us; its other requests wait for the sum of these."""


class _PendingWrite(NamedTuple):
    key: SharePartitionKey
    state: ShareState
    done: "asyncio.Future[None]"


class RemoteShareState:
    """Owns the writes that are not sent yet, and one sending task per broker.

    Every request raises KafkaError: NETWORK_EXCEPTION without a response, else what the coordinator refuses with.
    """

    def __init__(self, peers: PeerRequests, supervisor: Supervisor) -> None:
        self._peers = peers
        self._supervisor = supervisor
        self._waiting: dict[BrokerId, list[_PendingWrite]] = {}
        self._brokers: dict[BrokerId, BrokerRecord] = {}

    async def initialize(self, broker: BrokerRecord, key: SharePartitionKey, epoch: int, start_offset: int) -> None:
        fields = {"state_epoch": epoch, "start_offset": start_offset}
        await self._ask_one(broker, INITIALIZE_SHARE_GROUP_STATE, key, fields)

    async def read(self, broker: BrokerRecord, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        found = await self._ask_one(broker, READ_SHARE_GROUP_STATE, key, {"leader_epoch": leader_epoch})
        return ShareState(
            found.state_epoch,
            leader_epoch,
            found.start_offset,
            batches=tuple(batches_received(found)),
            generation=generation_received(found),
        )

    async def summary(self, broker: BrokerRecord, key: SharePartitionKey) -> ShareState:
        # The leader epoch of the request has no effect: the caller is not a leader.
        found = await self._ask_one(broker, READ_SHARE_GROUP_STATE_SUMMARY, key, {"leader_epoch": -1})
        return ShareState(found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count)

    async def delete(self, broker: BrokerRecord, key: SharePartitionKey) -> None:
        await self._ask_one(broker, DELETE_SHARE_GROUP_STATE, key, {})

    async def write(self, broker: BrokerRecord, key: SharePartitionKey, state: ShareState) -> None:
        """Cancelling this loses the response and nothing else."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._brokers[broker.id] = broker
        waiting = self._waiting.get(broker.id)
        if waiting is None:
            waiting = self._waiting[broker.id] = []
            sending = self._supervisor.spawn(f"share state to broker {broker.id}", self._send_all(broker.id, waiting))
            # A task that is cancelled before its first step runs none of its code.
            sending.add_done_callback(functools.partial(self._ended, broker.id, waiting))
        waiting.append(_PendingWrite(key, state, done))
        await done

    async def _send_all(self, broker_id: BrokerId, waiting: list[_PendingWrite]) -> None:
        try:
            while waiting:
                this_round, waiting[:] = _next_round(waiting)
                by_group: dict[str, list[_PendingWrite]] = {}
                for one in this_round:
                    by_group.setdefault(one.key.group_id, []).append(one)
                try:
                    broker = self._brokers[broker_id]
                    await asyncio.gather(*(self._send(broker, group_id, its) for group_id, its in by_group.items()))
                finally:
                    # Also when this is cancelled or fails unexpectedly: no caller may wait for ever.
                    _refuse(this_round, ErrorCode.network_exception, f"broker {broker_id} sent no result for the state")
        finally:
            self._ended(broker_id, waiting)

    def _ended(self, broker_id: BrokerId, waiting: list[_PendingWrite], _: object = None) -> None:
        if self._waiting.get(broker_id) is waiting:
            del self._waiting[broker_id]
        _refuse(waiting, ErrorCode.network_exception, f"sending share state to broker {broker_id} has ended")
        waiting.clear()

    async def _send(self, broker: BrokerRecord, group_id: str, writes: Sequence[_PendingWrite]) -> None:
        body = request_for(group_id, [(one.key, _write_fields(one.state)) for one in writes])
        try:
            results = await self._ask(broker, WRITE_SHARE_GROUP_STATE, group_id, body)
        except KafkaError as error:
            _refuse(writes, error.code, str(error))
            return
        for one in writes:
            result = results.get(one.key)
            if result is None:
                continue
            if result.error_code is not ErrorCode.none:
                _refuse([one], result.error_code, _reason(broker, WRITE_SHARE_GROUP_STATE, one.key, result))
            elif not one.done.done():
                one.done.set_result(None)

    async def _ask_one(self, broker: BrokerRecord, api: Api, key: SharePartitionKey, fields: Body) -> Any:
        results = await self._ask(broker, api, key.group_id, request_for(key.group_id, [(key, fields)]))
        result = results.get(key)
        if result is None:
            raise KafkaError(
                ErrorCode.network_exception, f"{api.name}: broker {broker.id} sent no result for {key.coordinator_key}"
            )
        if result.error_code is not ErrorCode.none:
            raise KafkaError(result.error_code, _reason(broker, api, key, result))
        return result

    async def _ask(self, broker: BrokerRecord, api: Api, group_id: str, body: Body) -> dict[SharePartitionKey, Any]:
        try:
            # The version is fixed, because these APIs are not advertised.
            response = await self._peers.ask(broker, api, body, version=api.newest)
        except ClientError as error:
            raise KafkaError(ErrorCode.network_exception, str(error)) from None
        return {
            SharePartitionKey(group_id, topic.topic_id, result.partition): result
            for topic in response.results
            for result in topic.partitions
        }


def _next_round(waiting: Sequence[_PendingWrite]) -> tuple[list[_PendingWrite], list[_PendingWrite]]:
    """Returns the writes to send now and the rest. A response names share partitions, so each is in a round once."""
    this_round: dict[SharePartitionKey, _PendingWrite] = {}
    rest = []
    for one in waiting:
        if len(this_round) < WRITES_PER_ROUND and one.key not in this_round:
            this_round[one.key] = one
        else:
            rest.append(one)
    return list(this_round.values()), rest


def _write_fields(state: ShareState) -> Body:
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
        **fields_of(state),
    }


def _refuse(writes: Sequence[_PendingWrite], code: ErrorCode, why: str) -> None:
    """Fails those that have no result yet."""
    for one in writes:
        if not one.done.done():
            one.done.set_exception(KafkaError(code, why))


def _reason(broker: BrokerRecord, api: Api, key: SharePartitionKey, result: Any) -> str:
    why = result.error_message or result.error_code.name
    return f"{api.name} of {key.coordinator_key} is refused by broker {broker.id}: {why}"
