"""Asking whether a partition is a part of a producer's transaction, wherever the coordinator of that transaction is.

Here it is a look at a shard, and nothing can happen between the look and the append that follows. Elsewhere it is a
request (AddPartitionsToTxn with ``verify_only``), during which a guard stands in the partition (``guards.py``), and
those who ask for one transactional id go on in the order in which they came.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import LeaderEpoch, TopicPartition
from skep.client.errors import ClientError
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.partition_leaders import AsksBrokers, Leaders
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import add_partitions as adding
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.verification_guards import Guard, Guards
from skep.metadata.model import BrokerRecord
from skep.wire.apis import ADD_PARTITIONS_TO_TXN
from skep.wire.codec import Body

FOR_BROKERS = 4
"""The version that asks for several transactions, and can ask without adding."""

_NOT_NOW = frozenset(
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


class AskElsewhere(Exception):
    """The coordinator is on another broker, or somebody has asked it before: wait with ``Verifier.in_turn``."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(f"{guard.partition} has to be verified by another broker")
        self.guard = guard


class _Turn:
    """The order of those who wait for one transactional id."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Verifier:
    """Owns the guards of the partitions that are led here, and the order of those who wait.

    Without ``leaders`` and ``peers`` this broker is the only one.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        settings: Callable[[], BrokerConfig],
        leaders: Leaders | None = None,
        peers: AsksBrokers | None = None,
    ) -> None:
        self.guards = Guards()
        self._runtime = runtime
        self._settings = settings
        self._leaders = leaders
        self._peers = peers
        self._turns: dict[str, _Turn] = {}

    @property
    def is_enabled(self) -> bool:
        return self._settings().transaction_partition_verification_enable

    def verify(
        self, transactional_id: str, producer: ProducerStamp, partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> None:
        """KafkaError, in a producer's words, when the partition, led here in that epoch, is no part of the transaction.

        AskElsewhere when that cannot be said at once. Otherwise what was true here still is at the append that follows,
        as long as nothing is awaited before it.
        """
        if not self.is_enabled:
            return
        try:
            if self.guards.is_waiting(partition, producer.producer_id) or self._coordinator(transactional_id):
                raise AskElsewhere(self.guards.begin(partition, producer, leader_epoch))
            shard = self._runtime.shard_of(transactional_id)
            adding.verify(shard, transactional_id, producer, partition)
        except KafkaError as error:
            raise _for_producers(error) from None

    @contextlib.asynccontextmanager
    async def in_turn(self, transactional_id: str, guards: Sequence[Guard]) -> AsyncIterator[None]:
        """The context in which the guards' batches are appended, each if its guard's ``check`` lets it.

        To be entered in a task that was made in the same step in which the guards were begun: so requests of one
        producer come to their turn in the order in which they arrived. Whatever happens, the guards are released.
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

    async def _ask(self, transactional_id: str, guards: Sequence[Guard]) -> None:
        by_producer: dict[ProducerStamp, list[Guard]] = {}
        for guard in guards:
            by_producer.setdefault(guard.producer, []).append(guard)
        for producer, its_guards in by_producer.items():
            try:
                codes = await self._codes(transactional_id, producer, [guard.partition for guard in its_guards])
            except (KafkaError, ClientError) as error:
                code = error.code if isinstance(error, KafkaError) else ErrorCode.coordinator_not_available
                codes = {guard.partition: (code, str(error)) for guard in its_guards}
            for guard in its_guards:
                code, why = codes.get(guard.partition, (ErrorCode.coordinator_not_available, "there was no answer"))
                guard.refusal = None if code is ErrorCode.none else _for_producers(KafkaError(code, why))

    async def _codes(
        self, transactional_id: str, producer: ProducerStamp, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[ErrorCode, str]]:
        broker = self._coordinator(transactional_id)
        if broker is None:
            # It has come here meanwhile, or it always was here and the batches wait only for their turn.
            return {partition: self._code_here(transactional_id, producer, partition) for partition in partitions}
        assert self._peers is not None
        answer = await self._peers.ask(
            broker, ADD_PARTITIONS_TO_TXN, _question(transactional_id, producer, partitions), version=FOR_BROKERS
        )
        if answer.error_code is not ErrorCode.none:
            raise KafkaError(answer.error_code, f"broker {broker.id} does not verify transactions")
        why = f"so says broker {broker.id}, the coordinator of {transactional_id!r}"
        return {
            TopicPartition(topic.name, result.partition_index): (ErrorCode(result.partition_error_code), why)
            for transaction in answer.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }

    def _code_here(
        self, transactional_id: str, producer: ProducerStamp, partition: TopicPartition
    ) -> tuple[ErrorCode, str]:
        try:
            adding.verify(self._runtime.shard_of(transactional_id), transactional_id, producer, partition)
        except KafkaError as error:
            return error.code, str(error)
        return ErrorCode.none, ""

    def _coordinator(self, transactional_id: str) -> BrokerRecord | None:
        """None: it is here. KafkaError when there is none."""
        if self._leaders is None or self._runtime.has(transactional_id):
            return None
        index = self._runtime.partition_for(transactional_id)
        return self._leaders.elsewhere(TopicPartition(self._runtime.topic, index))


def _question(transactional_id: str, producer: ProducerStamp, partitions: Sequence[TopicPartition]) -> Body:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return {
        "transactions": [
            {
                "transactional_id": transactional_id,
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "verify_only": True,
                "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
            }
        ]
    }


def _for_producers(error: KafkaError) -> KafkaError:
    """In words that a producer understands from the answer to Produce, as Kafka puts them.

    NOT_ENOUGH_REPLICAS makes every client send again after a pause, without looking for another leader first.
    """
    if error.code in _NOT_NOW:
        return KafkaError(ErrorCode.not_enough_replicas, f"the transaction cannot be verified now: {error}")
    if error.code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch, str(error))
    return error
