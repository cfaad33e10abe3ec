"""The broker's registration in the cluster, which lasts as long as its session with the metadata store.

A broker whose session ended (the process was frozen, or cut off from the store for too long) was considered dead: other
brokers lead its partitions. It registers again, with a new epoch, and continues as a follower.

A broker that may have lost data leaves its ISRs before it registers, see ``prepare_restart``.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from skep.base.errors import KafkaError, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId, Offset
from skep.controller.decisions import left_to_hand_over
from skep.metadata.catalog import Catalog
from skep.metadata.metadata_store import MetadataStore
from skep.metadata.model import (
    NEW_DISK,
    NO_LEADER,
    BrokerRecord,
    LogReport,
    PartitionRecord,
    TopicRecord,
    UnreadableRecord,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_PAUSE_S = 0.5
NOT_REGISTERED = -1
"""Stands for the epoch of a registration. Elections ignore such a report."""


class Membership:
    """Owns the registration. ``node`` is the broker's record as it was last registered."""

    def __init__(self, store: MetadataStore, catalog: Catalog, broker_id: BrokerId, patience_s: float) -> None:
        """``patience_s`` is how long the session of a dead process may remain in the store."""
        self.node = BrokerRecord(broker_id, "", 0)
        self._store = store
        self._catalog = catalog
        self._patience_s = patience_s
        self._is_leaving = False

    async def join(self, node: BrokerRecord) -> BrokerRecord:
        """Registers the broker. Raises StartupError when the id is in use."""
        self.node = await self._register(node)
        return self.node

    async def _register(self, node: BrokerRecord) -> BrokerRecord:
        return await self._catalog.register_broker(node, patience_s=self._patience_s)

    async def stay(self, session_ended: Callable[[], None], joined: Callable[[BrokerRecord], None]) -> None:
        """Registers again whenever the session ends, until cancelled. Raises StartupError when the id is taken."""
        while True:
            await self._store.wait_session_end()
            logger.warning(
                "the session with the metadata store ended; other brokers now lead the partitions of broker %d",
                self.node.id,
            )
            session_ended()
            registered = await self._until_done("register again", self._register_again)
            # Others may have been elected, and the watch of the new session may not have reported it yet. The
            # leadership lease is renewed for ``self.node``, so that is set when the image has the current leaders.
            await self._until_done("read the current leaders", self._catalog.reload)
            self.node = registered
            logger.info("broker %d is registered again, with epoch %d", self.node.id, self.node.epoch)
            joined(self.node)

    async def _register_again(self) -> BrokerRecord:
        return await self._register(replace(self.node, stopping=False))

    async def _until_done(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except (StoreUnavailable, VersionConflict, UnreadableRecord) as error:
                logger.warning("broker %d cannot %s yet: %s", self.node.id, what, error)
                await asyncio.sleep(RETRY_PAUSE_S)

    async def prepare_restart(
        self, has_lost: Callable[[TopicRecord, int], bool], *, has_new_disk: bool = False
    ) -> None:
        """Changes the partitions of this broker in the store, before it registers.

        It leaves the ISR of a partition of which it may have lost acknowledged records. This must be done before the
        registration, or it could be elected while it is still in the ISR. With a new disk, a partition without a leader
        gets a report of that: if the other replicas have no records either, the partition waits for all of them. A
        partition that the broker leads gets a new epoch: a write of the broker's earlier process may still be on its
        way to the store.
        """
        # Waits for the id to be free: a second process that is started with it by mistake must not depose the first.
        await self._catalog.wait_until_free(self.node, patience_s=self._patience_s)
        for name, topic in list(self._catalog.image.topics.items()):
            lost = {
                index
                for index, partition in enumerate(topic.partitions)
                if _without(partition, self.node.id) is not None and has_lost(topic, index)
            }
            if not lost and not any(_leads(partition, self.node.id) for partition in topic.partitions):
                continue
            try:
                await self._catalog.change_topic(name, functools.partial(self._after_restart, lost, has_new_disk))
            except KafkaError:
                continue  # the topic is gone
            if lost:
                logger.warning("broker %d may have lost records of %s and left the ISRs", self.node.id, name)

    def _after_restart(self, lost: set[int], has_new_disk: bool, topic: TopicRecord) -> TopicRecord:
        partitions = list(topic.partitions)
        for index, partition in enumerate(partitions):
            if index in lost:
                partition = _without(partition, self.node.id) or partition
                if has_new_disk and partition.leader == NO_LEADER:
                    partition = partition.with_report(LogReport(self.node.id, NOT_REGISTERED, NEW_DISK, Offset(0)))
                partitions[index] = partition
            elif _leads(partition, self.node.id):
                partitions[index] = partition.elected(partition.leader, partition.isr)
        return replace(topic, partitions=tuple(partitions))

    async def set_eligible(self, is_eligible: bool) -> None:
        """Sets whether this broker may lead and be in ISRs. It may not while its disk is full: others can go on."""
        # The store decides, not ``self.node``: it is not always known whether the last change was made.
        registered = self._catalog.image.brokers.get(self.node.id)
        if self._is_leaving or registered is None or registered.stopping != is_eligible:
            return
        if not is_eligible and not self.others():
            return
        node = replace(self.node, stopping=not is_eligible)
        try:
            await self._catalog.update_registration(node)
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("broker %d cannot update its registration: %s", node.id, error)
            return
        self.node = node
        logger.warning(
            "broker %d %s", node.id, "can lead again" if is_eligible else "hands its leaderships over to other brokers"
        )

    def loop_hung(self) -> None:
        """Ends the session because the event loop hangs, so that others lead. Called in another thread."""
        if self.others():
            logger.error("broker %d ends its session, so that other brokers lead its partitions", self.node.id)
            self._store.end_session()

    def others(self) -> list[BrokerId]:
        """Returns the other registered brokers."""
        return [broker for broker in self._catalog.image.brokers if broker != self.node.id]

    async def hand_over(self, timeout_s: float) -> None:
        """Controlled shutdown: returns when others lead all partitions that they can lead, or at the timeout."""
        self._is_leaving = True
        try:
            self.node = replace(self.node, stopping=True)
            await self._catalog.update_registration(self.node)
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("leaderships cannot be handed over: %s", error)
            return
        changed = asyncio.Event()
        self._catalog.on_change(lambda old, new: changed.set())
        try:
            async with asyncio.timeout(timeout_s):
                while left_to_hand_over(self._catalog.image, self.node.id):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            left = left_to_hand_over(self._catalog.image, self.node.id)
            logger.warning("%d leaderships were not handed over within %.0f s", left, timeout_s)


def _leads(partition: PartitionRecord, broker_id: BrokerId) -> bool:
    """Whether the broker leads the partition by the record, and there are other replicas."""
    return partition.leader == broker_id and len(partition.replicas) > 1


def _without(partition: PartitionRecord, broker_id: BrokerId) -> PartitionRecord | None:
    """Returns the partition without an incomplete replica in its ISR; None if there is no other replica.

    The epoch is new, because a leader of the old epoch would still count on the replica. The last replica to leave an
    ISR leaves it empty, and the partition without a leader until the controller has compared all logs
    (``controller/elections.py``). The report of an earlier process about its log is removed.
    """
    if broker_id not in partition.replicas or len(partition.replicas) == 1:
        return None
    if partition.is_undecided:
        return partition.without_report(broker_id)
    rest = tuple(broker for broker in partition.isr if broker != broker_id)
    leader = NO_LEADER if partition.leader == broker_id else partition.leader
    return partition.elected(leader, rest)
