"""A leader changes its ISR: who fell behind goes, who has caught up comes. Written to the store with compare-and-set.

The leader writes itself, to the record of the topic, and only while that names it as the leader in this very epoch; one
that was deposed and has not noticed finds a newer epoch there and writes nothing.

A change is *proposed* to the partition right before it is written (``in_sync.py``) and stays so until the store says
what came of it. When the store does not answer, that may take a while: writes with acks=all then wait, and reads go on.
The next attempt then writes whatever it finds, changed or not: after that the lost one can no longer take effect.

Those who leave an ISR are remembered as the last ISR (``PartitionRecord.last_isr``): should all lose power, they are
waited for. With each write a leader shows that it leads, so with a write of ``min.insync.replicas`` members or more the
others are forgotten: from now on these members have what is acknowledged. One that finds itself elected, or members
gone, writes that without any other change of the ISR, at the next check of the lag. With fewer members nothing is
acknowledged with acks=all, and what the others have counts on.

A leader whose followers are silent while the store is silent too may be the one that is cut off, with another elected
in its place: it asks the other brokers about all that is in doubt (``second_opinion.py``). As long as nobody knows
better it goes on serving reads and acks=1, for the store may be away for everybody; acks=all, which it could not
acknowledge anyway, it refuses with NOT_LEADER_OR_FOLLOWER, so that clients look around too.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import KafkaError, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId, LeaderEpoch
from skep.metadata.catalog import Catalog
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.partition.partition import Partition

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5


class Change(NamedTuple):
    """What a leader wants of one partition's ISR; nothing, when it only wants to know whether it still leads."""

    leader_epoch: LeaderEpoch
    added: frozenset[BrokerId]
    removed: frozenset[BrokerId]
    is_silent: bool


class IsrChanges:
    """Owns the partitions that may have to change. One write at a time, for all partitions of a topic together.

    ``_unsettled`` are those of whose last write it is not known whether it took place.
    """

    def __init__(
        self,
        node_id: BrokerId,
        catalog: Catalog,
        settings: Callable[[], BrokerConfig],
        clock: Clock,
        ask_others: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        """``ask_others`` puts into the image what other brokers know of later elections in these topics."""
        self._node_id = node_id
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._ask_others = ask_others
        self._suspects: set[Partition] = set()
        self._unsettled: set[Partition] = set()
        self._news = asyncio.Event()

    def suspect(self, partition: Partition) -> None:
        """Look at this one soon: a follower has caught up."""
        self._suspects.add(partition)
        self._news.set()

    async def change_suspects(self) -> None:
        """Waits until there is something to look at, and looks at it. To be called again and again."""
        await self._news.wait()
        self._news.clear()
        suspects, self._suspects = self._suspects, set()
        by_topic: defaultdict[str, list[Partition]] = defaultdict(list)
        for partition in suspects:
            by_topic[partition.topic_partition.topic].append(partition)
        in_doubt = []
        try:
            for topic, partitions in by_topic.items():
                if await self._change(topic, partitions):
                    in_doubt.append(topic)
            if in_doubt:
                await self._ask_others(in_doubt)
        except Exception:
            # A bug; whatever it kept us from is still to be done.
            self._again(suspects)
            raise

    def _again(self, suspects: Iterable[Partition]) -> None:
        self._suspects.update(suspects)
        asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._news.set)

    async def check_lag(self, partitions: Iterable[Partition]) -> None:
        """Finds members of the ISR that are behind or silent; to be called every half of their time to lag."""
        now, max_lag_s = self._clock.monotonic(), self._settings().replica_lag_time_max_ms / 1000
        for partition in partitions:
            in_sync = partition.in_sync
            if in_sync is None:
                continue
            if in_sync.silent(now, max_lag_s) or _can_forget_last_isr(partition):
                self.suspect(partition)

    async def check_leases(self, partitions: Iterable[Partition]) -> None:
        """Asks the other brokers about what they may lead by now; to be called as often as a lease may end.

        Who waits for an acknowledgement there is told to look for the leader: it may be one of them.
        """
        over = [one for one in partitions if one.is_leader and one.is_lease_over]
        for partition in over:
            partition.give_up_waiting()
        if over:
            await self._ask_others({one.topic_partition.topic for one in over})

    async def _change(self, topic: str, partitions: list[Partition]) -> bool:
        """Writes what has to change of the topic; whether it is in doubt who leads it."""
        changes = {partition: change for partition in partitions if (change := self._wanted(partition)) is not None}
        if not changes:
            return False
        is_unsettled = any(partition in self._unsettled for partition in changes)
        self._unsettled.update(changes)
        try:
            record = await self._catalog.change_topic(
                topic, lambda record: self._changed(record, changes), always_write=is_unsettled
            )
        except (StoreUnavailable, VersionConflict) as error:
            logger.warning("the ISR of %s cannot be changed, trying again: %s", topic, error)
            self._again(changes)
            return self._doubt(changes, isinstance(error, StoreUnavailable))
        except KafkaError:
            self._unsettled.difference_update(changes)
            return False  # the topic is gone
        self._unsettled.difference_update(changes)
        self._settle(record, changes)
        return False

    def _doubt(self, changes: dict[Partition, Change], is_store_away: bool) -> bool:
        for partition, change in changes.items():
            partition.doubt(is_store_away and change.is_silent)
        return is_store_away and any(change.is_silent for change in changes.values())

    def _wanted(self, partition: Partition) -> Change | None:
        """What has to be asked of the store; an empty change for one whose last question was not answered."""
        in_sync = partition.in_sync
        if in_sync is None or not partition.is_leader:
            return None
        now, max_lag_s = self._clock.monotonic(), self._settings().replica_lag_time_max_ms / 1000
        removed = in_sync.lagging(partition.log.log_end_offset, now, max_lag_s)
        alive = self._catalog.image.brokers
        added = frozenset(
            broker
            for broker, follower in in_sync.followers.items()
            if in_sync.can_join(broker, partition.high_watermark)
            and (registered := alive.get(broker)) is not None
            and not registered.stopping
            # (KIP-903) One that has restarted since it fetched may not have any more what it said it had.
            and follower.broker_epoch == registered.epoch
        )
        is_silent = bool(in_sync.silent(now, max_lag_s))
        is_asked = is_silent or in_sync.is_in_doubt or partition in self._unsettled
        if added or removed or is_asked or _can_forget_last_isr(partition):
            return Change(partition.leader_epoch, added, removed, is_silent)
        return None

    def _changed(self, topic: TopicRecord, changes: dict[Partition, Change]) -> TopicRecord:
        partitions = list(topic.partitions)
        for partition, change in changes.items():
            index = partition.topic_partition.partition
            if partition.topic_id == topic.topic_id and index < len(partitions):
                partitions[index] = self._with_change(partition, partitions[index], change)
        return replace(topic, partitions=tuple(partitions))

    def _with_change(self, partition: Partition, record: PartitionRecord, change: Change) -> PartitionRecord:
        """The record as it is to be written, and proposed in the same step: from here on its members count."""
        in_sync = partition.in_sync
        is_current = partition.is_leader and partition.leader_epoch == change.leader_epoch
        if in_sync is None or not is_current or not self._is_ours(record, partition):
            return record
        # Decided anew: while we waited for our turn and for the store, more may have been committed.
        added = {broker for broker in change.added if in_sync.may_be_added(broker, partition.high_watermark)}
        members = (set(record.isr) | added) - change.removed
        changed = record.with_isr([broker for broker in record.replicas if broker in members])
        if len(changed.isr) >= min(partition.log.config.min_insync_replicas, len(changed.replicas)):
            changed = changed._replace(last_isr=())
        in_sync.propose(changed.isr)
        return changed

    def _is_ours(self, record: PartitionRecord, partition: Partition) -> bool:
        return record.leader == self._node_id and record.leader_epoch == partition.leader_epoch

    def _settle(self, topic: TopicRecord, changes: dict[Partition, Change]) -> None:
        """The store has answered. A record that changed has reached the partition already, through the image."""
        for partition, change in changes.items():
            index = partition.topic_partition.partition
            if partition.topic_id != topic.topic_id or index >= len(topic.partitions):
                continue
            record = topic.partitions[index]
            if partition.is_leader and self._is_ours(record, partition):
                partition.isr_settled(self._node_id, record)
            if change.added or change.removed:
                logger.info(
                    "%s: the ISR is %s now%s%s",
                    partition.topic_partition,
                    list(record.isr),
                    f", {sorted(change.added)} caught up" if change.added else "",
                    f", {sorted(change.removed)} fell behind" if change.removed else "",
                )


def _can_forget_last_isr(partition: Partition) -> bool:
    """Whether the store is to be told that the members of now are enough to lead with."""
    in_sync = partition.in_sync
    if in_sync is None or not in_sync.has_last_isr:
        return False
    return in_sync.too_few(partition.log.config.min_insync_replicas) is None
