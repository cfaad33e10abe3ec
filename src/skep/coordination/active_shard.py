"""One shard in service: runs operations on it, writes their records, and sends responses when these are committed.

State changes as soon as its records are in the log, before they are committed. That is safe because every response,
also one that only reads, waits until everything written to the shard before it is committed: nobody has seen what may
still be lost. When a commit fails and this broker still leads, the records are in its log and will be committed: the
state stays, and the client is told to retry. A broker that loses the partition unloads the shard, and with it what was
not committed.

A broker that was succeeded and does not know it cannot get anything acknowledged, so nobody sees what it writes. What
it only reads may be stale; an outcome says how fresh the state has to be (``Freshness``).
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from skep.base.clock import Clock
from skep.base.errors import ErrorCode, KafkaError, StorageError
from skep.base.loop.slicer import Slicer, Work
from skep.base.loop.supervisor import Supervisor
from skep.coordination.partitions import WritablePartition
from skep.coordination.shard import Freshness, Outcome, Shard, ShardContext, Waiter
from skep.coordination.timers import Timers
from skep.records.batch import read_header
from skep.records.builder import BatchBuilder

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)

RETRY_MS = 500
"""How long after a failure a timer's operation is run again, or a log is loaded again; for a log the delay doubles each
time, up to ``LONGEST_RETRY_MS``."""
LONGEST_RETRY_MS = 60_000
REPLIES_AT_ONCE = 100
"""Each reply wakes a task that encodes and sends a response. A hundred of them take about 5 ms."""


class ActiveShard(Generic[S]):
    """A shard that this broker serves, in one leader epoch of its partition.

    The shard is not ``is_loaded`` while its log is replayed, nor after ``unload``. ``loading`` is the task that
    replays. ``_timer_handle`` is None while ``_runs_timers``: due operations are then run in slices.
    """

    __slots__ = (
        "_clock",
        "_on_broken",
        "_runs_timers",
        "_slicer",
        "_supervisor",
        "_timer_handle",
        "index",
        "is_loaded",
        "leader_epoch",
        "loading",
        "partition",
        "shard",
        "timers",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        partition: WritablePartition,
        make_shard: Callable[[ShardContext], S],
        clock: Clock,
        supervisor: Supervisor,
        slicer: Slicer,
        on_broken: "Callable[[ActiveShard[S]], None]",
    ) -> None:
        """``on_broken`` is called when a replay failed, so that the log and the state differ."""
        self.topic = topic
        self.index = index
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.is_loaded = False
        self.loading: asyncio.Task[None] | None = None
        self._clock = clock
        self._supervisor = supervisor
        self._slicer = slicer
        self._on_broken = on_broken
        self._runs_timers = False
        self._timer_handle: asyncio.TimerHandle | None = None
        self.timers = Timers(clock, self._arm)
        self.shard = make_shard(ShardContext(index, clock, self.timers))

    def become_active(self, outcome: Outcome) -> None:
        """Carries out what ``Shard.loaded`` decided, and starts the timers."""
        self.is_loaded = True
        self.loading = None
        try:
            response = self.carry_out(outcome)
        except KafkaError as error:
            logger.warning("%s-%d: %s", self.topic, self.index, error)
        else:
            if isinstance(response, Awaitable):
                self._supervisor.spawn(f"loaded {self.topic}-{self.index}", _settled(response))
        self._arm()

    def unload(self) -> None:
        """Stops the timers and the loading, and sends the shard's last replies to all waiters."""
        self.is_loaded = False
        self.timers.stop()
        if self._timer_handle is not None:
            self._timer_handle.cancel()
        if self.loading is not None:
            self.loading.cancel()
        _reply_to_all(self.shard.unloaded().replies)

    # Operations.

    def run(self, operation: Callable[[S], Outcome]) -> Any:
        """Returns the response of the operation, or an awaitable of it. Raises what the operation refuses with."""
        try:
            outcome = operation(self.shard)
        except KafkaError:
            # A refusal may come from stale state: the current coordinator may know the member, or the producer.
            self.check_leads()
            raise
        return self.carry_out(outcome)

    def carry_out(self, outcome: Outcome) -> Any:
        if outcome.freshness is Freshness.LEASED:
            self.check_leads()
        elif outcome.freshness is Freshness.PROVEN and not outcome.records and self.partition.is_replicated:
            outcome.records = [self.shard.no_change]
        if outcome.records or outcome.prepared is not None:
            self._write(outcome)
        if outcome.then is not None:
            outcome.then()
        try:
            committed = self.partition.committed()
        except KafkaError as error:
            refusal = for_clients(error)
            _reply_to_all([(waiter, refusal) for waiter, _ in outcome.replies])
            raise refusal from error
        if committed is None:
            _reply_to_all(outcome.replies)
            return outcome.response
        if outcome.replies:
            committed.add_done_callback(functools.partial(_reply_when_committed, outcome.replies))
        return _after(committed, outcome.response)

    def check_leads(self) -> None:
        """Raises NOT_COORDINATOR when another broker may lead the partition without our knowing."""
        try:
            self.partition.check_leads()
        except KafkaError as error:
            raise for_clients(error) from error

    def _write(self, outcome: Outcome) -> None:
        now_ms, producer, partition = self._clock.now_ms(), outcome.producer, self.partition
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
            # Kafka has no code for this: clients do not know which records a response takes.
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"the state records are {len(batch)} bytes; max.message.bytes of {self.topic} is {limit}",
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
                self.shard.replay(offset, key, value, producer)
        except Exception:
            # A bug: the log is ahead of the state. Only a replay from the start brings them together again.
            self._on_broken(self)
            raise

    # Timers.

    def _arm(self) -> None:
        """Schedules ``run_timers`` for the moment at which the first timer is due."""
        if not self.is_loaded or self._runs_timers:
            return
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
        moment = self.timers.next_moment()
        if moment is not None:
            delay = max(0.0, moment - self._clock.monotonic())
            self._timer_handle = asyncio.get_running_loop().call_later(delay, self.run_timers)

    def run_timers(self) -> None:
        self._timer_handle = None
        self._runs_timers = True
        self._slicer.run(self._due_operations())

    def _due_operations(self) -> Work[None]:
        """Runs the due operations in slices: the sessions of ten thousand members may expire together."""
        for operation in self.timers.take_due():
            if not self.is_loaded:
                return
            self._run_timer(operation)
            yield
        self._runs_timers = False
        self._arm()

    def _run_timer(self, operation: Callable[[S], Outcome]) -> None:
        try:
            response = self.run(operation)
            if isinstance(response, Awaitable):
                self._supervisor.spawn(f"timer of {self.topic}-{self.index}", _settled(response))
        except KafkaError as error:
            logger.warning("%s-%d: a timer's operation failed, retrying: %s", self.topic, self.index, error)
            self.timers.schedule(("again", id(operation)), RETRY_MS, operation)
        except Exception:
            # A bug. Without a retry a session might never expire, or a group wait for ever.
            logger.exception("%s-%d: a timer's operation failed", self.topic, self.index)
            self.timers.schedule(("again", id(operation)), LONGEST_RETRY_MS, operation)


def _reply_to_all(replies: Sequence[tuple[Waiter, Any]]) -> None:
    """Wakes the waiters, a few in each turn of the event loop."""
    if len(replies) > REPLIES_AT_ONCE:
        asyncio.get_running_loop().call_soon(_reply_to_all, replies[REPLIES_AT_ONCE:])
    for waiter, reply in replies[:REPLIES_AT_ONCE]:
        # A client that disconnects cancels its future.
        if not waiter.done():
            if isinstance(reply, KafkaError):
                waiter.set_exception(reply)
            else:
                waiter.set_result(reply)


def _reply_when_committed(replies: Sequence[tuple[Waiter, Any]], committed: "asyncio.Future[None]") -> None:
    failure = StorageError("the sync was given up") if committed.cancelled() else committed.exception()
    if failure is None:
        _reply_to_all(replies)
    else:
        refusal = for_clients(failure)
        _reply_to_all([(waiter, refusal) for waiter, _ in replies])


async def _after(committed: "asyncio.Future[None]", response: Any) -> Any:
    try:
        # Shielded: others wait for the same future, and cancelling it here would cancel it for them.
        await asyncio.shield(committed)
    except (KafkaError, StorageError) as error:
        raise for_clients(error) from error
    return response


def for_clients(failure: BaseException) -> KafkaError:
    """Maps a failed append or commit of the coordinator's partition to a coordinator's error, as Kafka does.

    NOT_COORDINATOR makes a client look for the current coordinator, COORDINATOR_NOT_AVAILABLE makes it wait and retry.
    """
    code = ErrorCode.coordinator_not_available
    if isinstance(failure, KafkaError) and failure.code is ErrorCode.not_leader_or_follower:
        code = ErrorCode.not_coordinator
    return KafkaError(code, str(failure))


async def _settled(response: Awaitable[Any]) -> None:
    with contextlib.suppress(KafkaError):
        await response
