"""Who leads, by the word of the other brokers: asked by a leader that hears neither its followers nor the store.

Then either the store is away for everybody, or this broker alone is cut off and another was elected in its place. The
others tell which: their images came from the store, and a newer leader epoch in one of them is a fact. Without asking,
a client that talks with this broker alone would be told for as long as the cut lasts that it is the leader.
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
from skep.metadata.catalog import Catalog
from skep.metadata.model import NO_LEADER, BrokerRecord, PartitionRecord, TopicRecord
from skep.wire.apis import METADATA

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0


class SecondOpinion:
    """Owns the connections over which it asks."""

    def __init__(self, node_id: BrokerId, catalog: Catalog) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._peers = Peers(client_id=f"broker-{node_id}-asking", timeout_s=TIMEOUT_S)

    async def ask(self, topics: Iterable[str]) -> None:
        """What any other broker knows of later elections in these topics is in the image when this returns."""
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
                await self._catalog.heard_of(
                    row.name, partial(self._after, topic_id=row.topic_id, told=told, broker=broker)
                )

    def _after(self, topic: TopicRecord, *, topic_id: Any, told: "_Told", broker: BrokerRecord) -> TopicRecord:
        """The topic with the later elections of which this broker tells; the very same when there are none."""
        if topic.topic_id != topic_id:
            return topic
        partitions = list(topic.partitions)
        for index, before in enumerate(topic.partitions):
            if index in told and (after := later(before, *told[index], own_id=self._node_id)) is not before:
                partitions[index] = after
                logger.warning(
                    "%s-%d: broker %d says that broker %d leads, which the store has not told us; following it",
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
    """The partition after a later election of which another broker tells; the very same when it is none.

    We may follow by hearsay, or find that nobody leads; to lead is for the store to say.
    """
    can_be = leader == NO_LEADER or (leader in before.replicas and leader != own_id)
    if epoch <= before.leader_epoch or not can_be:
        return before
    return before._replace(leader=leader, leader_epoch=epoch, isr=tuple(BrokerId(member) for member in isr))
