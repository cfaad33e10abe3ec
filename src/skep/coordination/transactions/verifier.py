"""Verifies that a partition belongs to a producer's transaction, whichever broker coordinates it. In transactions v2
(KIP-890) the partition is added to the transaction here, because the producer sends no AddPartitionsToTxn.

If the coordinator is this broker, the verification reads its shard, and nothing can happen between it and the append
that follows. Otherwise it is a request (AddPartitionsToTxn with ``verify_only``). A guard stands in the partition
during that request (``verification_guards.py``), and the batches of one transactional id continue in the order of
arrival. A partition that is added always has a guard, because the batch waits until the coordinator's record is
committed: a coordinator that lost the record would never end the transaction in the partition.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.client.errors import ClientError
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.partition_leaders import PartitionLeaders, PeerRequests
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import add_partitions
from skep.coordination.transactions.transaction import V2
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.verification_guards import VerificationGuard, VerificationGuards
from skep.metadata.model import BrokerRecord
from skep.wire.apis import ADD_PARTITIONS_TO_TXN
from skep.wire.codec import Body

FOR_BROKERS = 4
"""The version for brokers: it has several transactions, and ``verify_only``."""
TRIES_TO_ADD = 5
BETWEEN_TRIES_S = 0.02
"""A producer begins its next transaction of v2 as soon as the last one is decided, and its markers take a moment. So
the broker tries again for a while before it lets the producer retry, as Kafka does
(``add.partitions.to.txn.retry.backoff.ms``)."""

_TRANSIENT = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.operation_not_attempted,
    }
)


_Codes = dict[TopicPartition, tuple[ErrorCode, str]]
"""The code of each partition, and why."""

_NOT_IN_RESPONSE = (ErrorCode.coordinator_not_available, "the coordinator's response does not name the partition")


class VerificationRequired(Exception):
    """The batch cannot be verified at once: the coordinator is another broker, or an earlier batch waits for it.

    The batch has to wait with ``Verifier.in_turn``.
    """

    def __init__(self, guard: VerificationGuard) -> None:
        super().__init__(f"{guard.partition} has to be verified by another broker")
        self.guard = guard


class _Turn:
    """The order of the batches that wait for one transactional id."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Verifier:
    """Owns the guards of the partitions that this broker leads, and the order of waiting batches.

    Without ``leaders`` and ``peers`` this broker is the only one.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        config: CurrentConfig,
        leaders: PartitionLeaders | None = None,
        peers: PeerRequests | None = None,
    ) -> None:
        self.guards = VerificationGuards()
        self._runtime = runtime
        self._config = config
        self._leaders = leaders
        self._peers = peers
        self._turns: dict[str, _Turn] = {}

    @property
    def is_enabled(self) -> bool:
        return self._config.value.coordinator.transaction_partition_verification_enable

    def verify(
        self,
        transactional_id: str,
        producer: ProducerStamp,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        *,
        adds: bool = False,
    ) -> None:
        """Raises KafkaError, with a code for producers, when the partition does not belong to the transaction. If it
        ``adds`` the partition, this always raises VerificationRequired.

        ``leader_epoch`` is the epoch in which this broker leads the partition. Raises VerificationRequired when the
        result is not known at once. If this returns, the result still holds for an append that follows without an
        await.
        """
        if adds:
            raise VerificationRequired(self.guards.begin(partition, producer, leader_epoch, adds=True))
        if not self.is_enabled:
            return
        try:
            if self.guards.is_waiting(partition, producer.producer_id) or self._coordinator(transactional_id):
                raise VerificationRequired(self.guards.begin(partition, producer, leader_epoch))
            shard = self._runtime.shard_of(transactional_id)
            add_partitions.verify(shard, transactional_id, producer, partition)
        except KafkaError as error:
            raise _for_producers(error) from None

    @contextlib.asynccontextmanager
    async def in_turn(self, transactional_id: str, guards: Sequence[VerificationGuard]) -> AsyncIterator[None]:
        """A context in which the batches of the guards are appended, each if its guard's ``check`` permits it.

        Must be entered in a task that was created in the same step of the event loop in which the guards were begun:
        this keeps the requests of one producer in the order of arrival. The guards are released in any case.
        """
        turn = self._turns.setdefault(transactional_id, _Turn())
        turn.count += 1
        asking = asyncio.ensure_future(self._ask(transactional_id, guards))
        try:
            async with turn.lock:
                await asking
                yield
        finally:
            asking.cancel()
            turn.count -= 1
            if not turn.count:
                del self._turns[transactional_id]
            for guard in guards:
                self.guards.release(guard)

    async def _ask(self, transactional_id: str, guards: Sequence[VerificationGuard]) -> None:
        by_producer: dict[tuple[ProducerStamp, bool], list[VerificationGuard]] = {}
        for guard in guards:
            by_producer.setdefault((guard.producer, guard.adds), []).append(guard)
        for (producer, adds), its_guards in by_producer.items():
            partitions = [guard.partition for guard in its_guards]
            try:
                if adds:
                    codes = await self._added(transactional_id, producer, partitions)
                else:
                    codes = await self._codes(transactional_id, producer, partitions)
            except (KafkaError, ClientError) as error:
                code = error.code if isinstance(error, KafkaError) else ErrorCode.coordinator_not_available
                codes = {guard.partition: (code, str(error)) for guard in its_guards}
            for guard in its_guards:
                code, why = codes.get(
                    guard.partition,
                    _NOT_IN_RESPONSE,
                )
                guard.refusal = None if code is ErrorCode.none else _for_producers(KafkaError(code, why))

    async def _added(
        self, transactional_id: str, producer: ProducerStamp, partitions: Sequence[TopicPartition]
    ) -> _Codes:
        """Adds the partitions to the transaction. Tries again while the last transaction is being completed."""
        for _ in range(TRIES_TO_ADD - 1):
            try:
                codes = await self._codes(transactional_id, producer, partitions, adds=True)
            except KafkaError as error:
                if error.code is not ErrorCode.concurrent_transactions:
                    raise
            else:
                if all(code is not ErrorCode.concurrent_transactions for code, _ in codes.values()):
                    return codes
            await asyncio.sleep(BETWEEN_TRIES_S)
        return await self._codes(transactional_id, producer, partitions, adds=True)

    async def _codes(
        self,
        transactional_id: str,
        producer: ProducerStamp,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool = False,
    ) -> _Codes:
        broker = self._coordinator(transactional_id)
        if broker is None:
            if adds:
                return await self._added_here(transactional_id, producer, partitions)
            # The coordinator has moved to this broker meanwhile, or always was here and the batches only wait for their
            # turn.
            return {partition: self._code_here(transactional_id, producer, partition) for partition in partitions}
        assert self._peers is not None
        request = _request(transactional_id, producer, partitions, verify_only=not adds)
        response = await self._peers.ask(broker, ADD_PARTITIONS_TO_TXN, request, version=FOR_BROKERS)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"broker {broker.id} refuses to verify transactions")
        why = f"refused by broker {broker.id}, the coordinator of {transactional_id!r}"
        return {
            TopicPartition(topic.name, result.partition_index): (ErrorCode(result.partition_error_code), why)
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }

    async def _added_here(
        self, transactional_id: str, producer: ProducerStamp, partitions: Sequence[TopicPartition]
    ) -> _Codes:
        added = self._runtime.submit(
            transactional_id,
            lambda shard: add_partitions.add(shard, transactional_id, producer, frozenset(partitions), None, V2),
        )
        if isinstance(added, Awaitable):
            await added
        return dict.fromkeys(partitions, (ErrorCode.none, ""))

    def _code_here(
        self, transactional_id: str, producer: ProducerStamp, partition: TopicPartition
    ) -> tuple[ErrorCode, str]:
        try:
            add_partitions.verify(self._runtime.shard_of(transactional_id), transactional_id, producer, partition)
        except KafkaError as error:
            return error.code, str(error)
        return ErrorCode.none, ""

    def _coordinator(self, transactional_id: str) -> BrokerRecord | None:
        """Returns the broker that coordinates the transactional id, or None if it is this one. Raises KafkaError if
        there is none."""
        if self._leaders is None or self._runtime.has(transactional_id):
            return None
        index = self._runtime.partition_for(transactional_id)
        return self._leaders.elsewhere(TopicPartition(self._runtime.topic, index))


def _request(
    transactional_id: str, producer: ProducerStamp, partitions: Sequence[TopicPartition], *, verify_only: bool
) -> Body:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return {
        "transactions": [
            {
                "transactional_id": transactional_id,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "verify_only": verify_only,
                "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
            }
        ]
    }


def _for_producers(error: KafkaError) -> KafkaError:
    """Maps the error to a code that producers expect in a Produce response, as Kafka does.

    NOT_ENOUGH_REPLICAS makes every client retry after a pause, without looking for another leader first.
    """
    if error.code in _TRANSIENT:
        return KafkaError(ErrorCode.not_enough_replicas, f"the transaction cannot be verified now: {error}")
    if error.code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch, str(error))
    return error
