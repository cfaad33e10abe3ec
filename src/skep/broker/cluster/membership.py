"""Being a member of the cluster: registered while the session with the metadata store lasts, and again after it.

A broker whose session ended (it was frozen, or cut off from the store for too long) was taken for dead: others lead
what it led. It registers anew, with a new epoch, and goes on as a follower of whatever it has.

A broker that may have lost data says so before anybody counts on it, see ``begin_anew``.
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
"""Instead of the epoch of a registration: no election counts such a report."""


class Membership:
    """Owns the registration. ``node`` is the broker's record as it was registered last."""

    def __init__(self, store: MetadataStore, catalog: Catalog, broker_id: BrokerId, patience_s: float) -> None:
        """``patience_s`` is how long the session of a process that is dead already may linger in the store."""
        self.node = BrokerRecord(broker_id, "", 0)
        self._store = store
        self._catalog = catalog
        self._patience_s = patience_s
        self._is_leaving = False

    async def join(self, node: BrokerRecord) -> BrokerRecord:
        """StartupError when the id is in use."""
        self.node = await self._register(node)
        return self.node

    async def _register(self, node: BrokerRecord) -> BrokerRecord:
        return await self._catalog.register_broker(node, patience_s=self._patience_s)

    async def stay(self, session_ended: Callable[[], None], joined: Callable[[BrokerRecord], None]) -> None:
        """Registers again whenever the session ended. Until cancelled; StartupError when another has our id."""
        while True:
            await self._store.wait_session_end()
            logger.warning(
                "the session with the metadata store ended; others lead now what broker %d led", self.node.id
            )
            session_ended()
            registered = await self._until_done("register again", self._register_again)
            # Others may have been elected, and the watch of the new session may not have told it yet. The leadership
            # lease is renewed for ``self.node``: not before the image shows who leads now.
            await self._until_done("read who leads now", self._catalog.reload)
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

    async def begin_anew(self, has_lost: Callable[[TopicRecord, int], bool], *, has_new_disk: bool = False) -> None:
        """What a broker that starts changes in the store, before it registers.

        Where it may have lost what it once acknowledged it leaves the ISR. Before the registration, or it could be
        elected while it is still in there. With a new disk it notes that, where nobody leads: a partition whose other
        replicas have nothing either then waits for all of them. Where it leads by the record it does so from a new
        epoch on: a write of its earlier process may still be on its way to the store.
        """
        # Not for a broker that runs: whoever starts a second one of its id by mistake must not depose the first.
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
                await self._catalog.change_topic(name, functools.partial(self._begun_anew, lost, has_new_disk))
            except KafkaError:
                continue  # the topic is gone
            if lost:
                logger.warning("broker %d may have lost records of %s and has left its ISRs", self.node.id, name)

    def _begun_anew(self, lost: set[int], has_new_disk: bool, topic: TopicRecord) -> TopicRecord:
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

    async def be_chosen(self, is_willing: bool) -> None:
        """Whether this broker wants to lead and to be in ISRs. One whose disk is full does not: others can go on."""
        # By the store's word, not by ours: whether our last change was made is not always known.
        registered = self._catalog.image.brokers.get(self.node.id)
        if self._is_leaving or registered is None or registered.stopping != is_willing:
            return
        if not is_willing and not self.others():
            return
        node = replace(self.node, stopping=not is_willing)
        try:
            await self._catalog.update_registration(node)
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("broker %d cannot say whether it may be chosen: %s", node.id, error)
            return
        self.node = node
        logger.warning("broker %d %s", node.id, "can lead again" if is_willing else "gives its leaderships to others")

    def loop_hangs(self) -> None:
        """The event loop has not turned for a session timeout: others shall lead. Called in another thread."""
        if self.others():
            logger.error("broker %d gives its session up, so that others lead", self.node.id)
            self._store.end_session()

    def others(self) -> list[BrokerId]:
        """The other brokers that are there."""
        return [broker for broker in self._catalog.image.brokers if broker != self.node.id]

    async def hand_over(self, timeout_s: float) -> None:
        """A controlled shutdown: returns when others lead what they can lead, or when the time is up."""
        self._is_leaving = True
        try:
            self.node = replace(self.node, stopping=True)
            await self._catalog.update_registration(self.node)
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("leaderships are not handed over: %s", error)
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
            logger.warning("%d leaderships were not taken over within %.0f s", left, timeout_s)


def _leads(partition: PartitionRecord, broker_id: BrokerId) -> bool:
    """By the record, and with others that could have been told something else."""
    return partition.leader == broker_id and len(partition.replicas) > 1


def _without(partition: PartitionRecord, broker_id: BrokerId) -> PartitionRecord | None:
    """The partition when a replica of it may be incomplete; None when that concerns nobody else.

    From a new epoch on: a leader of the old one may take the replica for what it was. The last one to leave an ISR
    leaves it empty, and the partition without a leader until the controller has compared all logs
    (``controller/elections.py``). What an earlier process said of its log is taken back.
    """
    if broker_id not in partition.replicas or len(partition.replicas) == 1:
        return None
    if partition.is_undecided:
        return partition.without_report(broker_id)
    rest = tuple(broker for broker in partition.isr if broker != broker_id)
    leader = NO_LEADER if partition.leader == broker_id else partition.leader
    return partition.elected(leader, rest)
