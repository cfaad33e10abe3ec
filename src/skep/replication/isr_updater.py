"""Changes the ISRs of partitions that this broker leads: written to the store with compare-and-set.

The leader writes the topic's record itself, and only while the record names it as the leader in its current epoch. A
leader that was deposed without noticing finds a newer epoch there and writes nothing.

A change is *proposed* to the partition right before it is written (``in_sync_replicas.py``), and stays proposed until
the store reports the outcome. While the store is unavailable, acks=all writes wait and reads go on. The next attempt
writes the record even if nothing has changed: after that write the lost one can no longer take effect.

Brokers that leave an ISR are kept as the last ISR (``PartitionRecord.last_isr``): if all lose power, an election waits
for them. Each write of the leader proves that it leads, so a write with at least ``min.insync.replicas`` members clears
the last ISR: from then on these members have what is acknowledged. A leader that was just elected, or has lost members,
makes that write at once, without another change of the ISR, and its high watermark stands still until then
(``InSyncReplicas.is_unconfirmed``). With fewer members nothing is acknowledged with acks=all, and what the last ISR has
still counts.

A leader whose followers and store are both silent may be the one that is cut off, with another leader elected: it asks
the other brokers about every partition in doubt (``leader_inquiry.py``). As long as none of them knows better, it
serves reads and acks=1, because the store may be unavailable to everyone. It refuses acks=all, which it could not
acknowledge anyway, with NOT_LEADER_OR_FOLLOWER, so that clients look for another leader too.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import KafkaError, StoreUnavailable, VersionConflict
from skep.base.ids import BrokerId, LeaderEpoch
from skep.metadata.catalog import Catalog
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.partition.partition import Partition

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.5


class Change(NamedTuple):
    """A wanted change of one partition's ISR. Without additions and removals it only verifies that this broker still
    leads."""

    leader_epoch: LeaderEpoch
    added: frozenset[BrokerId]
    removed: frozenset[BrokerId]
    is_silent: bool


class IsrUpdater:
    """Owns the partitions that may need a change. Writes one topic at a time, with all of its partitions.

    ``_unsettled`` are the partitions whose last write has an unknown outcome.
    """

    def __init__(
        self,
        node_id: BrokerId,
        catalog: Catalog,
        config: CurrentConfig,
        clock: Clock,
        ask_others: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        """``ask_others`` adds later elections that other brokers know of, in these topics, to the image."""
        self._node_id = node_id
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._ask_others = ask_others
        self._pending: set[Partition] = set()
        self._unsettled: set[Partition] = set()
        self._news = asyncio.Event()

    def check_soon(self, partition: Partition) -> None:
        """Checks this partition soon: a follower has caught up, or the leader has to write its ISR."""
        self._pending.add(partition)
        self._news.set()

    async def run_pending_checks(self) -> None:
        """Waits until a partition needs a check, and checks it. Must be called in a loop."""
        await self._news.wait()
        self._news.clear()
        suspects, self._pending = self._pending, set()
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
            # A bug: these partitions still need their check.
            self._again(suspects)
            raise

    def _again(self, suspects: Iterable[Partition]) -> None:
        self._pending.update(suspects)
        asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._news.set)

    async def check_lag(self, partitions: Iterable[Partition]) -> None:
        """Finds members of the ISR that are behind or silent. Must be called every half of
        ``replica.lag.time.max.ms``."""
        now, max_lag_s = self._clock.monotonic(), self._config.value.cluster.replica_lag_time_max_ms / 1000
        for partition in partitions:
            in_sync = partition.in_sync
            if in_sync is None:
                continue
            if in_sync.silent(now, max_lag_s) or partition.is_unconfirmed:
                self.check_soon(partition)

    async def check_leases(self, partitions: Iterable[Partition]) -> None:
        """Asks the other brokers about partitions that they may lead by now. Must be called as often as a lease may
        expire.

        Pending acknowledgements of these partitions fail, so that clients look for the leader: it may be another
        broker.
        """
        over = [one for one in partitions if one.is_leader and one.is_lease_expired]
        for partition in over:
            partition.fail_pending_acks()
        if over:
            await self._ask_others({one.topic_partition.topic for one in over})

    async def _change(self, topic: str, partitions: list[Partition]) -> bool:
        """Writes the changes of one topic. Returns whether it is in doubt which broker leads its partitions."""
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
            logger.warning("cannot change the ISR of %s, retrying: %s", topic, error)
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
            partition.set_in_doubt(is_store_away and change.is_silent)
        return is_store_away and any(change.is_silent for change in changes.values())

    def _wanted(self, partition: Partition) -> Change | None:
        """Returns the change to write: without additions and removals when the outcome of the last write is unknown."""
        in_sync = partition.in_sync
        if in_sync is None or not partition.is_leader:
            return None
        now, max_lag_s = self._clock.monotonic(), self._config.value.cluster.replica_lag_time_max_ms / 1000
        removed = in_sync.lagging(partition.log.log_end_offset, now, max_lag_s)
        alive = self._catalog.image.brokers
        added = frozenset(
            broker
            for broker, follower in in_sync.followers.items()
            if in_sync.can_join(broker, partition.high_watermark)
            and (registered := alive.get(broker)) is not None
            and not registered.stopping
            # (KIP-903) A broker that has restarted since its last fetch may have lost what it had then.
            and follower.broker_epoch == registered.epoch
        )
        is_silent = bool(in_sync.silent(now, max_lag_s))
        is_asked = is_silent or in_sync.is_in_doubt or partition in self._unsettled
        if added or removed or is_asked or partition.is_unconfirmed:
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
        """Returns the record to write. Proposes it in the same step: from here on its members count."""
        in_sync = partition.in_sync
        is_current = partition.is_leader and partition.leader_epoch == change.leader_epoch
        if in_sync is None or not is_current or not self._is_ours(record, partition):
            return record
        # Decided again: more may have been committed while we waited for our turn and for the store.
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
        """The store has responded. A changed record has already reached the partition, through the image."""
        for partition, change in changes.items():
            index = partition.topic_partition.partition
            if partition.topic_id != topic.topic_id or index >= len(topic.partitions):
                continue
            record = topic.partitions[index]
            if partition.is_leader and self._is_ours(record, partition):
                partition.isr_settled(self._node_id, record)
            if change.added or change.removed:
                logger.info(
                    "%s: the ISR is now %s%s%s",
                    partition.topic_partition,
                    list(record.isr),
                    f", {sorted(change.added)} caught up" if change.added else "",
                    f", {sorted(change.removed)} fell behind" if change.removed else "",
                )
