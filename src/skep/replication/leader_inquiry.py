"""Asks the other brokers who leads, when a leader hears neither its followers nor the store.

Then either the store is unavailable to everyone, or this broker alone is cut off and another was elected. The other
brokers know which: their images come from the store, and a newer leader epoch in one of them is a fact. Without asking,
a client that only talks to this broker would believe for the whole time of the cut that this broker leads.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from skep.base.errors import KafkaError
from skep.base.ids import BrokerId, LeaderEpoch
from skep.client.errors import ClientError
from skep.client.peer.peers import Peers
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.metadata.catalog import Catalog
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord
from skep.wire.apis import METADATA

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0


class LeaderInquiry:
    """Owns the connections to the other brokers."""

    def __init__(self, node_id: BrokerId, catalog: Catalog, security: ClientSecurity = PLAINTEXT) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._peers = Peers(f"broker-{node_id}-asking", TIMEOUT_S, security)

    async def ask(self, topics: Iterable[str]) -> None:
        """Asks all other brokers. When this returns, later elections in these topics that any of them knows of are in
        the image."""
        names = [{"topic_id": None, "name": name} for name in topics]
        others = [broker for broker in self._catalog.image.brokers.values() if broker.id != self._node_id]
        await asyncio.gather(*(self._ask(broker, names) for broker in others))

    async def close(self) -> None:
        await self._peers.close()

    async def _ask(self, broker: BrokerRecord, names: list[dict[str, Any]]) -> None:
        asked = {"topics": names, "allow_auto_topic_creation": False}
        with contextlib.suppress(ClientError, KafkaError):
            for row in (await self._peers.ask(broker, METADATA, asked)).topics:
                told = {
                    one.partition_index: (BrokerId(one.leader_id), LeaderEpoch(one.leader_epoch), one.isr_nodes)
                    for one in row.partitions
                }
                await self._catalog.apply_elections(
                    row.name, partial(self._after, topic_id=row.topic_id, told=told, broker=broker)
                )

    def _after(self, topic: TopicRecord, *, topic_id: Any, told: "_Told", broker: BrokerRecord) -> TopicRecord:
        """Returns the topic with the later elections that this broker knows of; the same object when there are none."""
        if topic.topic_id != topic_id:
            return topic
        partitions = list(topic.partitions)
        for index, before in enumerate(topic.partitions):
            if index in told and (after := later(before, *told[index], own_id=self._node_id)) is not before:
                partitions[index] = after
                logger.warning(
                    "%s-%d: broker %d reports broker %d as the leader, the store has not told us; following it",
                    topic.name,
                    index,
                    broker.id,
                    after.leader,
                )
        changed = tuple(partitions)
        return topic if changed == topic.partitions else replace(topic, partitions=changed)


_Told = Mapping[int, tuple[BrokerId, LeaderEpoch, Iterable[int]]]


def later(
    before: PartitionRecord, leader: BrokerId, epoch: LeaderEpoch, isr: Iterable[int], *, own_id: BrokerId
) -> PartitionRecord:
    """Returns the partition after a later election that another broker reports; the same object when it is not later.

    Another broker's report is enough to follow a leader, or to have none. Only the store can make this broker the
    leader.
    """
    can_be = leader == NO_LEADER or (leader in before.replicas and leader != own_id)
    if epoch <= before.leader_epoch or not can_be:
        return before
    return before._replace(leader=leader, leader_epoch=epoch, isr=tuple(BrokerId(member) for member in isr))
