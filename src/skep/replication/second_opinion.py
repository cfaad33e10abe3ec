"""Who leads, by the word of the other brokers: asked by a leader that hears neither its followers nor the store.

Then either the store is away for everybody, or this broker alone is cut off and another was elected in its place. The
others tell which: their images came from the store, and a newer leader epoch in one of them is a fact. Without asking,
a client that talks with this broker alone would be told for as long as the cut lasts that it is the leader.
"""

import asyncio
import contextlib
import logging
from typing import Any

from skep.base.errors import KafkaError
from skep.base.ids import BrokerId, LeaderEpoch
from skep.client.errors import ClientError
from skep.client.peers import Peers
from skep.metadata.catalog import Catalog
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.wire.apis import METADATA

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0


class SecondOpinion:
    """Owns the connections over which it asks."""

    def __init__(self, node_id: BrokerId, catalog: Catalog) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._peers = Peers(client_id=f"broker-{node_id}-asking", timeout_s=TIMEOUT_S)

    async def ask(self, topic: str) -> None:
        """What any other broker knows of later elections in the topic is in the image when this returns."""
        others = [broker for broker in self._catalog.image.brokers.values() if broker.id != self._node_id]
        await asyncio.gather(*(self._ask(broker, topic) for broker in others))

    async def close(self) -> None:
        await self._peers.close()

    async def _ask(self, broker: BrokerRecord, topic: str) -> None:
        named = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
        with contextlib.suppress(ClientError, KafkaError):
            for row in (await self._peers.ask(broker, METADATA, named)).topics:
                self._listen(broker, topic, row)

    def _listen(self, broker: BrokerRecord, topic: str, row: Any) -> None:
        known = self._catalog.image.topics.get(topic)
        if known is None or known.topic_id != row.topic_id:
            return
        for one in row.partitions:
            if one.partition_index >= len(known.partitions):
                continue
            before = known.partitions[one.partition_index]
            told = before._replace(
                leader=BrokerId(one.leader_id),
                leader_epoch=LeaderEpoch(one.leader_epoch),
                isr=tuple(BrokerId(member) for member in one.isr_nodes),
            )
            if is_later(told, before):
                logger.warning(
                    "%s-%d: broker %d says that broker %d leads, which the store has not told us; following it",
                    topic,
                    one.partition_index,
                    broker.id,
                    told.leader,
                )
                self._catalog.heard_of(topic, one.partition_index, told)


def is_later(told: PartitionRecord, before: PartitionRecord) -> bool:
    """Whether it is a later election, of one who can have been elected."""
    return told.leader_epoch > before.leader_epoch and told.leader in before.replicas
