"""Runs the shards of one coordinator topic: finds the shard of a request, loads shards and unloads them.

A shard is *loading* while its log is replayed, then *active* (``active_shard.py``). Requests for a loading shard are
refused with COORDINATOR_LOAD_IN_PROGRESS, requests for a shard that another broker leads with NOT_COORDINATOR; clients
retry. Not all clients do so with the first request that they send to a coordinator: ``until_ready`` lets that one wait.

A shard is also loaded again when this broker stays the leader in a new epoch: only the log says what another
leader wrote in between.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch
from skep.base.loop.slicer import Slicer, Work, run_at_once
from skep.base.loop.supervisor import Supervisor
from skep.coordination.active_shard import LONGEST_RETRY_MS, RETRY_MS, ActiveShard
from skep.coordination.log_replay import replay_log
from skep.coordination.partitioner import partition_for
from skep.coordination.partitions import Partitions, WritablePartition
from skep.coordination.shard import LATER, Decoder, Outcome, ProducerStamp, Shard, ShardContext, Waiter
from skep.metadata.model import TopicRecord

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

READY_WAIT_S = 5.0
"""How long the first request of a client waits for its shard. Far below the request timeouts of clients."""


class CoordinatorRuntime(Generic[S]):
    """Owns the shards of ``topic``.

    Between calls there is a shard for each partition that this broker leads and that has files or has been used.
    ``_unopened`` are the partitions that should be led here and could not be opened yet.
    """

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[ShardContext], S],
        decode: Decoder,
        partitions: Partitions,
        clock: Clock,
        executor: Executor,
        supervisor: Supervisor,
        slicer: Slicer,
    ) -> None:
        self.topic = topic
        self._make_shard = make_shard
        self._decode = decode
        self._partitions = partitions
        self._clock = clock
        self._executor = executor
        self._supervisor = supervisor
        self._slicer = slicer
        self._record: TopicRecord | None = None
        self._led: dict[int, LeaderEpoch] = {}
        self._shards: dict[int, ActiveShard[S]] = {}
        self._by_key: dict[str, ActiveShard[S]] = {}
        self._unopened: set[int] = set()
        self._changed = asyncio.Event()

    # Shards.

    def follow(self, record: TopicRecord | None, node_id: BrokerId) -> bool:
        """Takes over the current record of the topic, None if it does not exist. Loads shards that have moved here and
        unloads those that have moved away.

        A shard whose partition was elected again is reloaded. The partition may apply the same change later than this,
        because roles are taken in slices and not while a log is truncated: ``role_taken`` then loads its shard.

        Returns whether a partition has moved here, or may have been elsewhere for a while.
        """
        if record is self._record:
            return False
        if self._record is not None and (record is None or record.topic_id != self._record.topic_id):
            for index in list(self._shards):
                self._unload(index)
        self._record = record
        self._wake_waiting()
        partitions = record.partitions if record is not None else ()
        self._unopened.clear()
        led_before = self._led
        self._led = {
            index: partition.leader_epoch for index, partition in enumerate(partitions) if partition.leader == node_id
        }
        for index, active in list(self._shards.items()):
            if self._led.get(index) != active.leader_epoch:
                self._unload(index)
        for index in self._partitions.indexes_with_files(self.topic):
            if index in self._led and index not in self._shards:
                with contextlib.suppress(KafkaError):
                    # A partition that cannot be opened is tried again by the next request for it, and when it takes a
                    # role.
                    self._load(index)
        return not self._led.items() <= led_before.items()

    def role_taken(self, index: int) -> bool:
        """The partition leads or follows from now on. Returns whether a shard that waited for this is loaded, or
        loading."""
        if index not in self._unopened:
            return False
        with contextlib.suppress(KafkaError):
            self._load(index)
        self._wake_waiting()
        return index in self._shards

    def partition_for(self, key: str) -> int:
        """Returns the partition that ``key`` belongs to. Raises NOT_COORDINATOR while the topic does not exist here.

        NOT_COORDINATOR, as in Kafka: on COORDINATOR_NOT_AVAILABLE, Java's consumer gives up an OffsetFetch.
        """
        if self._record is None:
            raise KafkaError(ErrorCode.not_coordinator, f"topic {self.topic} does not exist yet")
        return partition_for(key, len(self._record.partitions))

    def has(self, key: str) -> bool:
        """Returns whether the shard of ``key`` is loaded here and was used for this key. A cheap check: False may mean
        not yet."""
        active = self._by_key.get(key)
        return active is not None and active.is_loaded

    def loaded_shards(self) -> Iterator[tuple[int, S]]:
        """The shards that are loaded, for operations on all of them."""
        for index, active in list(self._shards.items()):
            if active.is_loaded:
                yield index, active.shard

    def indexes(self) -> list[int]:
        """The partitions whose shards are here, loaded or loading."""
        return list(self._shards)

    def shards(self) -> list[S]:
        """All shards, those that are loading included."""
        return [active.shard for active in self._shards.values()]

    @property
    def is_loading(self) -> bool:
        """Whether a shard is not loaded yet, or its partition is not led yet or cannot be opened."""
        return bool(self._unopened) or any(not active.is_loaded for active in self._shards.values())

    def stop(self) -> None:
        """Unloads all shards; their waiters get NOT_COORDINATOR."""
        self.follow(None, BrokerId(-1))

    def shard_of(self, key: str) -> S:
        """Returns the shard of ``key``, for reads whose result no client sees. Raises KafkaError as ``submit`` does."""
        active = self._by_key.get(key)
        return active.shard if active is not None and active.is_loaded else self._shard(self.partition_for(key)).shard

    async def until_ready(self, key: str) -> None:
        """Waits until the shard of ``key`` is loaded or known to be elsewhere, at most ``READY_WAIT_S``.

        To be called for the first request of a client. FindCoordinator named this broker by the image of another one,
        and that may be newer: the topic has just been created, or the partition is about to lead here.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_WAIT_S):
                while self._may_become_ready(key):
                    await self._changed.wait()

    def _may_become_ready(self, key: str) -> bool:
        if self._record is None:
            return True
        try:
            self.shard_of(key)
        except KafkaError as error:
            return error.code is ErrorCode.coordinator_load_in_progress
        return False

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Operations.

    def submit(self, key: str, operation: Callable[[S], Outcome]) -> Any:
        """Runs ``operation`` on the shard of ``key``. Returns its response, or an awaitable of it.

        Raises KafkaError when the operation refuses, or when the shard cannot be used.
        """
        active = self._by_key.get(key)
        if active is None or not active.is_loaded:
            active = self._shard(self.partition_for(key))
            if len(self._by_key) > 100_000:
                self._by_key.clear()
            self._by_key[key] = active
        return active.run(operation)

    def commits_at_once(self, key: str) -> bool:
        """Whether ``submit`` would return a response, not an awaitable. A cheap check: False may mean not yet."""
        active = self._by_key.get(key)
        return active is not None and active.is_loaded and active.partition.commits_at_once

    async def read(self, index: int, work: Callable[[S], Work[T]]) -> T:
        """Reads the shard of one partition in slices. Returns the result of ``work`` once all that it can have read is
        committed.

        The shard may change between two slices.
        """
        active = self._shard(index)
        result = await self._slicer.finish(work(active.shard))
        if self._shards.get(index) is not active:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.topic}-{index} has moved to another broker")
        committed = active.carry_out(Outcome())
        if committed is not None:
            await committed
        return result

    async def read_led(self, work: Callable[[S], Work[T]]) -> dict[int, T | None]:
        """Returns the result of ``read`` for each partition that this broker leads; None for those without any record.

        Those that are not loaded are left out, and those of which another broker may be the leader by now.
        """
        found: dict[int, T | None] = {}
        for index in list(self._led):
            active = self._shards.get(index)
            if active is not None and active.is_loaded:
                with contextlib.suppress(KafkaError):
                    result = await self.read(index, work)
                    active.check_leads()
                    found[index] = result
        has_records = {*self._shards, *self._unopened, *self._partitions.indexes_with_files(self.topic)}
        found.update(dict.fromkeys(index for index in self._led if index not in has_records))
        return found

    def submit_to(self, index: int, operation: Callable[[S], Outcome]) -> Any:
        """``submit`` for the shard of one partition."""
        return self._shard(index).run(operation)

    async def prepare(self, key: str, work: Callable[[S], Work[T]]) -> T:
        """Runs ``work`` in slices on the shard of ``key``, to prepare an operation that is submitted afterwards.

        The shard may change between two slices, or be replaced: the operation has to check.
        """
        active = self._shard(self.partition_for(key))
        try:
            return await self._slicer.finish(work(active.shard))
        except KafkaError:
            active.check_leads()  # as in ActiveShard.run
            raise

    async def submit_and_wait(self, key: str, operation: Callable[[S, Waiter], Outcome]) -> Any:
        """``submit`` for an operation that may keep the waiter it is given and reply to it later.

        Cancelling this loses the response and nothing else.
        """
        waiter = asyncio.get_running_loop().create_future()
        response = self.submit(key, lambda shard: operation(shard, waiter))
        if isinstance(response, Awaitable):
            response = await response
        return await waiter if response is LATER else response

    def end_transaction(
        self,
        index: int,
        producer: ProducerStamp,
        coordinator_epoch: int,
        *,
        is_committed: bool,
        raises_epoch: bool = False,
    ) -> "asyncio.Future[None] | None":
        """Writes the marker that ends a transaction in this partition, and applies or drops the transaction's
        records."""
        active = self._shard(index)
        _, committed = active.partition.append_marker(
            producer.producer_id, producer.producer_epoch, coordinator_epoch, is_committed, raises_epoch=raises_epoch
        )
        active.shard.replay_end_of_transaction(producer, is_committed=is_committed)
        return committed

    def _shard(self, index: int) -> ActiveShard[S]:
        active = self._shards.get(index)
        if active is None:
            if index not in self._led:
                raise KafkaError(ErrorCode.not_coordinator, f"{self.topic}-{index} is led by another broker")
            active = self._load(index)
        if not active.is_loaded:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"{self.topic}-{index} is being loaded")
        return active

    # Loading and unloading.

    def _load(self, index: int, attempt: int = 0) -> ActiveShard[S]:
        partition = self._led_partition(index)
        if (opened := self._shards.get(index)) is not None:
            return opened  # loaded by ``role_taken`` when the partition was opened
        self._unopened.discard(index)
        active = self._shards[index] = ActiveShard(
            self.topic,
            index,
            partition,
            self._make_shard,
            self._clock,
            self._supervisor,
            self._slicer,
            on_broken=lambda broken: self._unload(broken.index),
        )
        if partition.log.log_end_offset == partition.log.log_start_offset:
            active.become_active(run_at_once(active.shard.loaded()))
        else:
            active.loading = self._supervisor.spawn(f"load {self.topic}-{index}", self._replay(active, attempt))
        return active

    def _led_partition(self, index: int) -> WritablePartition:
        """Returns the partition if it leads in the epoch in which the shard is to be served, otherwise adds it to
        ``_unopened``.

        A shard that is loaded in an earlier epoch may miss what another leader has written since.
        """
        try:
            partition = self._partitions.partition(self.topic, index)
            if partition.leader_epoch == self._led[index]:
                return partition
            failure: Exception = KafkaError(ErrorCode.not_leader_or_follower)
        except (KafkaError, StorageError) as error:
            failure = error
        self._unopened.add(index)
        if isinstance(failure, KafkaError) and failure.code is ErrorCode.not_leader_or_follower:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"{self.topic}-{index} is not led here yet")
        # A KafkaError passes by itself: an earlier topic of this name is being deleted. A StorageError needs somebody.
        level = logging.ERROR if isinstance(failure, StorageError) else logging.WARNING
        logger.log(level, "%s-%d cannot be opened: %s", self.topic, index, failure)
        raise KafkaError(ErrorCode.coordinator_not_available, str(failure)) from failure

    async def _replay(self, active: ActiveShard[S], attempt: int) -> None:
        name, began = f"{self.topic}-{active.index}", self._clock.monotonic()
        try:
            replayed = await replay_log(active.partition, active.shard, self._decode, self._executor, self._slicer)
            outcome = await self._slicer.finish(active.shard.loaded())
        except Exception as error:
            is_ours = not isinstance(error, StorageError | KafkaError)
            logger.error("%s cannot be loaded, trying again: %s", name, error, exc_info=error if is_ours else None)
            await asyncio.sleep(min(RETRY_MS << min(attempt, 10), LONGEST_RETRY_MS) / 1000)
            if self._shards.get(active.index) is active:
                active.loading = None
                self._unload(active.index)
                with contextlib.suppress(KafkaError):
                    self._load(active.index, attempt + 1)
            return
        if replayed.damaged:
            logger.error("%s: %d of %d records cannot be read", name, replayed.damaged, replayed.records)
        took_ms = (self._clock.monotonic() - began) * 1000
        logger.info("%s: loaded %d records in %d ms", name, replayed.records, took_ms)
        active.become_active(outcome)
        self._wake_waiting()

    def _unload(self, index: int) -> None:
        active = self._shards.pop(index)
        self._by_key.clear()
        active.unload()
