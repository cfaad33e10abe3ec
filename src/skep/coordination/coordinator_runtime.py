"""Runs the shards of one coordinator topic: operations in, records written, answers out when they are committed.

A shard is *loading* while its log is replayed, then *active*. Requests for one that is loading are refused with
COORDINATOR_LOAD_IN_PROGRESS, for one that another broker leads with NOT_COORDINATOR; clients ask again.

State changes as soon as its records are in the log and before they are committed. That is safe because every answer,
also one that only reads, waits until all that was written to its shard before is committed: what may still be lost has
been told to nobody. When a commit fails and this broker still leads, the records are in its log and will be committed:
the state stands, and whoever asked is told to ask again. A broker that loses the partition unloads the shard, and with
it what was not committed. So does one that stays the leader in a new epoch: nobody but the log knows what lies between.

A broker that was succeeded and does not know it gets nothing acknowledged, so what it writes is told to nobody. What it
only reads may be old; an outcome says how sure the broker has to be (``Freshness``).
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch
from skep.base.loop.slicer import Slicer, Work, run_at_once
from skep.base.loop.supervisor import Supervisor
from skep.coordination.log_replay import replay_log
from skep.coordination.partitioner import partition_for
from skep.coordination.partitions import Partitions, WritablePartition
from skep.coordination.shard import LATER, Decoder, Freshness, Outcome, ProducerStamp, Shard, ShardContext, Waiter
from skep.coordination.timers import Timers
from skep.metadata.model import TopicRecord
from skep.records.batch import read_header
from skep.records.builder import BatchBuilder

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
T = TypeVar("T")

RETRY_MS = 500
"""After a timer's operation could not be carried out, or a log could not be read; for a log twice as long each time."""
LONGEST_RETRY_MS = 60_000
REPLIES_AT_ONCE = 100
"""Each wakes a task that encodes and sends a response: some 5 ms."""


class _Active(Generic[S]):
    """One shard that this broker is to serve, in one epoch of its partition. ``loading`` is the task that replays.

    ``handle`` is None while ``runs_timers``: operations of timers are carried out, in slices.
    """

    __slots__ = (
        "handle",
        "index",
        "is_loaded",
        "leader_epoch",
        "loading",
        "partition",
        "runs_timers",
        "shard",
        "timers",
    )

    def __init__(self, index: int, partition: WritablePartition, shard: S, timers: Timers) -> None:
        self.index = index
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.timers = timers
        self.is_loaded = False
        self.runs_timers = False
        self.handle: asyncio.TimerHandle | None = None
        self.loading: asyncio.Task[None] | None = None


class CoordinatorRuntime(Generic[S]):
    """Owns the shards of ``topic``.

    Between calls there is a shard for each partition that this broker leads and that has been asked for or has files.
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
        self._shards: dict[int, _Active[S]] = {}
        self._by_key: dict[str, _Active[S]] = {}
        self._unopened: set[int] = set()

    # Which shards there are.

    def follow(self, record: TopicRecord | None, node_id: BrokerId) -> bool:
        """The topic is this now, None: there is none. Loads the shards that have come here, unloads those that left.

        One that was elected again is loaded anew. A partition may follow the same change later, since roles are taken
        in slices and not while a log is cut: ``role_taken`` then loads its shard.
        Whether a partition has come here, or may have been elsewhere for a while.
        """
        if record is self._record:
            return False
        if self._record is not None and (record is None or record.topic_id != self._record.topic_id):
            for index in list(self._shards):
                self._unload(index)
        self._record = record
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
                    # What cannot be opened is tried again by the next request for it, and when it takes a role.
                    self._load(index)
        return not self._led.items() <= led_before.items()

    def role_taken(self, index: int) -> bool:
        """The partition leads or follows from now on. Returns whether a shard that waited for this is here now."""
        if index not in self._unopened:
            return False
        with contextlib.suppress(KafkaError):
            self._load(index)
        return index in self._shards

    def partition_for(self, key: str) -> int:
        """The partition whose shard has ``key``; COORDINATOR_NOT_AVAILABLE while the topic does not exist."""
        if self._record is None:
            raise KafkaError(ErrorCode.coordinator_not_available, f"there is no topic {self.topic} yet")
        return partition_for(key, len(self._record.partitions))

    def has(self, key: str) -> bool:
        """Whether the shard of ``key`` is here and has been asked for it; a cheap look, False may mean not yet."""
        active = self._by_key.get(key)
        return active is not None and active.is_loaded

    def loaded_shards(self) -> Iterator[tuple[int, S]]:
        """Those that can be asked, for what concerns all of them."""
        for index, active in list(self._shards.items()):
            if active.is_loaded:
                yield index, active.shard

    def indexes(self) -> list[int]:
        """The partitions whose shards are here, for what concerns all of them."""
        return list(self._shards)

    def shards(self) -> list[S]:
        """All, those included that are still being loaded."""
        return [active.shard for active in self._shards.values()]

    @property
    def is_loading(self) -> bool:
        """Whether a part of what is on the disk is not there yet, is not led yet, or cannot be opened."""
        return bool(self._unopened) or any(not active.is_loaded for active in self._shards.values())

    def stop(self) -> None:
        """Forgets everything; those who wait are told to look elsewhere."""
        self.follow(None, BrokerId(-1))

    def shard_of(self, key: str) -> S:
        """The shard that has ``key``, for a look that is told to nobody; KafkaError as ``submit``."""
        active = self._by_key.get(key)
        return active.shard if active is not None and active.is_loaded else self._shard(self.partition_for(key)).shard

    # Operations.

    def submit(self, key: str, operation: Callable[[S], Outcome]) -> Any:
        """Runs ``operation`` on the shard that has ``key``. Gives its response, or an awaitable of it.

        KafkaError is what the operation refuses, or why there is no shard to run it on.
        """
        active = self._by_key.get(key)
        if active is None or not active.is_loaded:
            active = self._shard(self.partition_for(key))
            if len(self._by_key) > 100_000:
                self._by_key.clear()
            self._by_key[key] = active
        return self._run(active, operation)

    async def read(self, index: int, work: Callable[[S], Work[T]]) -> T:
        """Reads the shard of one partition in slices: what ``work`` gives, once all that it can have seen is committed.

        The shard may change between two slices.
        """
        active = self._shard(index)
        result = await self._slicer.finish(work(active.shard))
        if self._shards.get(index) is not active:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.topic}-{index} has moved")
        committed = self._carry_out(active, Outcome())
        if committed is not None:
            await committed
        return result

    def submit_to(self, index: int, operation: Callable[[S], Outcome]) -> Any:
        """``submit`` for the shard of one partition."""
        return self._run(self._shard(index), operation)

    async def prepare(self, key: str, work: Callable[[S], Work[T]]) -> T:
        """Runs ``work`` in slices on the shard that has ``key``, for an operation that is submitted then.

        The shard may change between two slices, or be another one at last: the operation has to look.
        """
        active = self._shard(self.partition_for(key))
        try:
            return await self._slicer.finish(work(active.shard))
        except KafkaError:
            _check_leads(active.partition)  # as in _run
            raise

    async def submit_and_wait(self, key: str, operation: Callable[[S, Waiter], Outcome]) -> Any:
        """``submit`` for an operation that may park the waiter it is given, and answer it later.

        When this is cancelled the answer is lost, and nothing else.
        """
        waiter = asyncio.get_running_loop().create_future()
        response = self.submit(key, lambda shard: operation(shard, waiter))
        if isinstance(response, Awaitable):
            response = await response
        return await waiter if response is LATER else response

    def end_transaction(
        self, index: int, producer: ProducerStamp, coordinator_epoch: int, *, is_committed: bool
    ) -> "asyncio.Future[None] | None":
        """Writes the marker that ends a transaction in this partition, and makes its records count, or not."""
        active = self._shard(index)
        _, committed = active.partition.append_marker(
            producer.producer_id, producer.producer_epoch, coordinator_epoch, is_committed
        )
        active.shard.replay_end_of_transaction(producer, is_committed=is_committed)
        return committed

    def _shard(self, index: int) -> _Active[S]:
        active = self._shards.get(index)
        if active is None:
            if index not in self._led:
                raise KafkaError(ErrorCode.not_coordinator, f"{self.topic}-{index} is led by another broker")
            active = self._load(index)
        if not active.is_loaded:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"{self.topic}-{index} is being loaded")
        return active

    def _run(self, active: _Active[S], operation: Callable[[S], Outcome]) -> Any:
        try:
            outcome = operation(active.shard)
        except KafkaError:
            # What an old state refuses, as a fenced producer or an unknown member, the coordinator of now may not.
            _check_leads(active.partition)
            raise
        return self._carry_out(active, outcome)

    def _carry_out(self, active: _Active[S], outcome: Outcome) -> Any:
        if outcome.freshness is Freshness.LEASED:
            _check_leads(active.partition)
        elif outcome.freshness is Freshness.PROVEN and not outcome.records and active.partition.is_replicated:
            outcome.records = [active.shard.no_change]
        if outcome.records or outcome.prepared is not None:
            self._write(active, outcome)
        if outcome.then is not None:
            outcome.then()
        try:
            committed = active.partition.committed()
        except KafkaError as error:
            refusal = for_clients(error)
            _answer_all([(waiter, refusal) for waiter, _ in outcome.replies])
            raise refusal from error
        if committed is None:
            _answer_all(outcome.replies)
            return outcome.response
        if outcome.replies:
            committed.add_done_callback(functools.partial(_answer_when_done, outcome.replies))
        return _after(committed, outcome.response)

    def _write(self, active: _Active[S], outcome: Outcome) -> None:
        now_ms, producer, partition = self._clock.now_ms(), outcome.producer, active.partition
        prepared = outcome.prepared
        builder = BatchBuilder() if prepared is None else prepared.builder
        builder.add(
            [(key.encode(), None if value is None else value.encode(), now_ms, ()) for key, value in outcome.records]
        )
        if producer is None:
            batch = builder.batch()
        else:
            batch = builder.batch(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, is_transactional=True
            )
        limit = partition.log.config.max_message_bytes
        if len(batch) > limit:
            # No code of its own: which records an answer takes is nothing that a client knows of.
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"what there is to remember has {len(batch)} bytes, max.message.bytes of {self.topic} is {limit}",
            )
        try:
            appended, _ = partition.append(batch, read_header(batch))
        except (KafkaError, StorageError) as error:
            raise for_clients(error) from error
        try:
            if prepared is not None:
                prepared.install()
            first_offset = appended.last_offset + 1 - len(outcome.records)
            for offset, (key, value) in enumerate(outcome.records, first_offset):
                active.shard.replay(offset, key, value, producer)
        except Exception:
            # A bug: the log is ahead of the state now. Only a replay from the start makes them one again.
            self._unload(active.index)
            raise

    # Timers.

    def _arm(self, index: int) -> None:
        """Sees to it that the shard's timers are looked at when the first of them is due."""
        active = self._shards.get(index)
        if active is None or not active.is_loaded or active.runs_timers:
            return
        if active.handle is not None:
            active.handle.cancel()
            active.handle = None
        moment = active.timers.next_moment()
        if moment is not None:
            delay = max(0.0, moment - self._clock.monotonic())
            active.handle = asyncio.get_running_loop().call_later(delay, self._run_timers, active)

    def _run_timers(self, active: _Active[S]) -> None:
        active.handle = None
        active.runs_timers = True
        self._slicer.run(self._due_operations(active))

    def _due_operations(self, active: _Active[S]) -> Work[None]:
        """Carries out what is due. The sessions of ten thousand members may end together."""
        for operation in active.timers.take_due():
            if self._shards.get(active.index) is not active:
                return
            self._run_timer(active, operation)
            yield
        active.runs_timers = False
        self._arm(active.index)

    def _run_timer(self, active: _Active[S], operation: Callable[[S], Outcome]) -> None:
        try:
            response = self._run(active, operation)
            if isinstance(response, Awaitable):
                self._supervisor.spawn(f"timer of {self.topic}-{active.index}", _settled(response))
        except KafkaError as error:
            logger.warning("%s-%d: a timer has to wait: %s", self.topic, active.index, error)
            active.timers.schedule(("again", id(operation)), RETRY_MS, operation)
        except Exception:
            # A bug; without another try a session might never end, or a group wait for ever.
            logger.exception("%s-%d: a timer failed", self.topic, active.index)
            active.timers.schedule(("again", id(operation)), LONGEST_RETRY_MS, operation)

    # Loading and unloading.

    def _load(self, index: int, attempt: int = 0) -> _Active[S]:
        partition = self._led_partition(index)
        if (opened := self._shards.get(index)) is not None:
            return opened  # by ``role_taken``, when the partition was opened
        self._unopened.discard(index)
        timers = Timers(self._clock, functools.partial(self._arm, index))
        shard = self._make_shard(ShardContext(index, self._clock, timers))
        active = self._shards[index] = _Active(index, partition, shard, timers)
        if partition.log.log_end_offset == partition.log.log_start_offset:
            self._become_active(active, run_at_once(active.shard.loaded()))
        else:
            active.loading = self._supervisor.spawn(f"load {self.topic}-{index}", self._replay(active, attempt))
        return active

    def _led_partition(self, index: int) -> WritablePartition:
        """The partition, if it leads in the epoch in which its shard is to be served. Otherwise ``_unopened`` has it.

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
        logger.error("%s-%d cannot be opened: %s", self.topic, index, failure)
        raise KafkaError(ErrorCode.coordinator_not_available, str(failure)) from failure

    async def _replay(self, active: _Active[S], attempt: int) -> None:
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
        self._become_active(active, outcome)

    def _become_active(self, active: _Active[S], outcome: Outcome) -> None:
        active.is_loaded = True
        active.loading = None
        try:
            response = self._carry_out(active, outcome)
        except KafkaError as error:
            logger.warning("%s-%d: %s", self.topic, active.index, error)
        else:
            if isinstance(response, Awaitable):
                self._supervisor.spawn(f"loaded {self.topic}-{active.index}", _settled(response))
        self._arm(active.index)

    def _unload(self, index: int) -> None:
        active = self._shards.pop(index)
        active.is_loaded = False
        self._by_key.clear()
        active.timers.clear()
        if active.handle is not None:
            active.handle.cancel()
        if active.loading is not None:
            active.loading.cancel()
        _answer_all(active.shard.unloaded().replies)


def _answer_all(replies: Sequence[tuple[Waiter, Any]]) -> None:
    """Wakes those who wait, a few in each turn: all of them would make the turn long."""
    if len(replies) > REPLIES_AT_ONCE:
        asyncio.get_running_loop().call_soon(_answer_all, replies[REPLIES_AT_ONCE:])
    for waiter, reply in replies[:REPLIES_AT_ONCE]:
        # Whoever waited may have hung up, which cancels its future.
        if not waiter.done():
            if isinstance(reply, KafkaError):
                waiter.set_exception(reply)
            else:
                waiter.set_result(reply)


def _answer_when_done(replies: Sequence[tuple[Waiter, Any]], committed: "asyncio.Future[None]") -> None:
    failure = StorageError("the sync was given up") if committed.cancelled() else committed.exception()
    if failure is None:
        _answer_all(replies)
    else:
        refusal = for_clients(failure)
        _answer_all([(waiter, refusal) for waiter, _ in replies])


async def _after(committed: "asyncio.Future[None]", response: Any) -> Any:
    try:
        # Shielded: others wait for the same offset, and one that is cancelled would take them with it.
        await asyncio.shield(committed)
    except (KafkaError, StorageError) as error:
        raise for_clients(error) from error
    return response


def _check_leads(partition: WritablePartition) -> None:
    try:
        partition.check_leads()
    except KafkaError as error:
        raise for_clients(error) from error


def for_clients(failure: BaseException) -> KafkaError:
    """What a coordinator answers when its partition cannot take, or commit, what it has to write; as Kafka does.

    NOT_COORDINATOR makes a client look for the one that leads now, COORDINATOR_NOT_AVAILABLE wait and ask again.
    """
    code = ErrorCode.coordinator_not_available
    if isinstance(failure, KafkaError) and failure.code is ErrorCode.not_leader_or_follower:
        code = ErrorCode.not_coordinator
    return KafkaError(code, str(failure))


async def _settled(response: Awaitable[Any]) -> None:
    with contextlib.suppress(KafkaError):
        await response
