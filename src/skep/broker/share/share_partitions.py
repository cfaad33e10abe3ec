"""The share partitions of this broker: found by group and partition, ended with their leadership, and their timer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from uuid import UUID

from skep.base.clock import Clock
from skep.base.config.current_config import CurrentConfig
from skep.base.config.share_config import ShareConfig
from skep.base.config.share_group_config import ShareGroupConfig, share_group_config
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.share.dead_letter_writer import DeadLetterWriter
from skep.broker.share.share_partition import ShareContext, SharePartition
from skep.coordination.share.share_state import SharePartitionKey, SharePersister, ShareState
from skep.coordination.timers import Timers
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import TimeLookups
from skep.replication.replica_manager import ReplicaManager

_TURN_S = 0.002

TopicIdPartition = tuple[UUID, int]


class SharePartitions:
    """Owns the share partitions, and one heap with the time at which each of them has to look for expired locks.

    Between calls each of them has a partition that is open and led in the share partition's epoch.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: SharePersister,
        image: Callable[[], ClusterImage],
        config: CurrentConfig,
        clock: Clock,
        supervisor: Supervisor,
        time_lookups: TimeLookups,
        executor: Executor,
        slicer: Slicer,
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._config = config
        self._clock = clock
        self._supervisor = supervisor
        self._of_partition: dict[Partition, dict[str, SharePartition]] = {}
        self._of_group: dict[str, set[SharePartition]] = {}
        self._unused_groups: set[str] = set()
        """Groups without a member here whose share partitions are still being written."""
        self._checks: dict[str, bool] = {}
        """Groups whose share partitions are being checked, and whether to check them again."""
        self.begun: set[Partition] | None = None
        """None, or the partitions that groups have begun to read since a caller has set it."""
        self._options: dict[str, tuple[object, ShareConfig, ShareGroupConfig]] = {}
        self._timers = Timers(clock, self._arm)
        self._timer: asyncio.TimerHandle | None = None
        self.dead_letters: DeadLetterWriter | None = None
        """Set once, before the first share partition is loaded."""
        self._context = ShareContext(
            persister,
            clock,
            supervisor,
            time_lookups,
            self.options,
            self._check_at,
            self._ended,
            self._settled,
            lambda: self.dead_letters,
            executor,
            slicer,
        )

    def options(self, group_id: str) -> ShareGroupConfig:
        """Returns the options in force for a group."""
        overrides, broker = self._image().group_config(group_id), self._config.value.share
        known = self._options.get(group_id)
        if known is None or known[0] is not overrides or known[1] is not broker:
            known = (overrides, broker, share_group_config(overrides, broker))
            if group_id in self._of_group:  # otherwise clients could fill the memory with names
                self._options[group_id] = known
        return known[2]

    # Lookup.

    def find(self, group_id: str, topic_id: UUID, index: int) -> SharePartition:
        """Returns the share partition, and begins to load it if it is not known.

        Raises UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, and StorageError when the files of
        the partition cannot be opened.
        """
        partition = self._led(topic_id, index)
        share = self._of_partition.get(partition, {}).get(group_id)
        if share is None:
            share = SharePartition(SharePartitionKey(group_id, topic_id, index), partition, self._context)
            self._of_partition.setdefault(partition, {})[group_id] = share
            self._of_group.setdefault(group_id, set()).add(share)
            if self.begun is not None:
                self.begun.add(partition)
            share.load()
        self._unused_groups.discard(group_id)
        return share

    def known(self, group_id: str, topic_id: UUID, index: int) -> SharePartition:
        """As ``find``, but raises UNKNOWN_TOPIC_OR_PARTITION if nothing of it was fetched, as Kafka does."""
        share = self._of_partition.get(self._led(topic_id, index), {}).get(group_id)
        if share is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"group {group_id!r} has fetched nothing of the partition here"
            )
        return share

    def active(self, key: SharePartitionKey) -> SharePartition | None:
        """Returns the share partition if it is in use here. Raises as ``find`` does."""
        return self._of_partition.get(self._led(key.topic_id, key.partition), {}).get(key.group_id)

    async def stored(self, key: SharePartitionKey, leader_epoch: LeaderEpoch) -> ShareState:
        """Returns the state as it is kept for the next leader. Raises KafkaError."""
        return await self._context.persister.read(key, leader_epoch)

    def delay(
        self,
        group_id: str,
        topic_id: UUID,
        index: int,
        offset: int,
        delay_ms: int | None,
        *,
        member: str | None = None,
        text: str = "",
    ) -> None:
        """As ``SharePartition.delay``, for the private command that sets it. Raises what ``known`` raises too."""
        self.known(group_id, topic_id, index).delay(offset, delay_ms, member=member, text=text)

    def of_group(self, group_id: str) -> tuple[SharePartition, ...]:
        """Returns the share partitions of a group that are in use here."""
        return tuple(self._of_group.get(group_id, ()))

    def _led(self, topic_id: UUID, index: int) -> Partition:
        partition = self._replicas.partition(self._replicas.name_of(topic_id), index)
        for share in tuple(self._of_partition.get(partition, {}).values()):
            if share.leader_epoch != partition.leader_epoch:
                share.end(_not_leader(partition))
        return partition

    # The end.

    def role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        """The partition leads, follows, or is removed if ``record`` is None. Share partitions of earlier epochs end."""
        for share in tuple(self._of_partition.get(partition, {}).values()):
            if record is None or not partition.is_leader or partition.leader_epoch != share.leader_epoch:
                share.end(_not_leader(partition))

    def release(self, group_id: str, member_id: str) -> None:
        """A member has no session any more: releases what it holds, also of partitions that it has forgotten."""
        for share in tuple(self._of_group.get(group_id, ())):
            share.release(member_id)

    def session_begun(self, group_id: str) -> None:
        """A session of the group has begun. If it has share partitions already, these may be of an earlier group of the
        same name: a session does not end with the membership."""
        if group_id in self._checks:
            self._checks[group_id] = True
        elif group_id in self._of_group:
            self._checks[group_id] = True
            self._supervisor.spawn(f"check the share partitions of group {group_id}", self._check(group_id))

    async def _check(self, group_id: str) -> None:
        try:
            while self._checks[group_id]:
                self._checks[group_id] = False
                for share in tuple(self._of_group.get(group_id, ())):
                    if share.window is not None:
                        await share.check_state_epoch()
        finally:
            del self._checks[group_id]

    def group_unused(self, group_id: str) -> None:
        """No member of the group has a session here. Its share partitions are dropped, and read again when needed.

        Not before their last write has ended: what is read now would not have it.
        """
        if group_id in self._of_group:
            self._unused_groups.add(group_id)
        for share in tuple(self._of_group.get(group_id, ())):
            if share.is_idle:
                self._drop(share)

    def _settled(self, share: SharePartition) -> None:
        if share.key.group_id in self._unused_groups and share.is_idle:
            self._drop(share)

    def _drop(self, share: SharePartition) -> None:
        share.end(KafkaError(ErrorCode.share_session_not_found, "the group has no session here any more"))

    def _ended(self, share: SharePartition) -> None:
        self._timers.cancel(share)
        group_id = share.key.group_id
        of_partition, of_group = self._of_partition[share.partition], self._of_group[group_id]
        del of_partition[group_id]
        of_group.discard(share)
        if not of_partition:
            del self._of_partition[share.partition]
        if not of_group:
            del self._of_group[group_id]
            self._options.pop(group_id, None)
            self._unused_groups.discard(group_id)

    # The timer.

    def _check_at(self, share: SharePartition, at_ms: int) -> None:
        # Locks mostly expire in the order of their beginning, so the earliest check finds when the next one is due.
        if share.check_ms is None or at_ms < share.check_ms:
            share.check_ms = at_ms
            self._timers.schedule(share, max(0, at_ms - round(self._clock.monotonic() * 1000)), partial(_expire, share))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (moment := self._timers.next_moment()) is not None:
            delay_s = max(0.0, moment - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.expire_due)

    def expire_due(self) -> None:
        """Lets share partitions release what is held for too long; if they are many, a few milliseconds at a time."""
        until = self._clock.monotonic() + _TURN_S
        for expire in self._timers.take_due():
            expire(None)
            if self._clock.monotonic() > until:
                break
        self._arm()

    def stop(self) -> None:
        self._timers.stop()
        if self._timer is not None:
            self._timer.cancel()


def _expire(share: SharePartition, _: object) -> None:
    share.check_ms = None
    share.expire()


def _not_leader(partition: Partition) -> KafkaError:
    return KafkaError(
        ErrorCode.not_leader_or_follower, f"{partition.topic_partition}: this broker does not lead it in the same epoch"
    )
