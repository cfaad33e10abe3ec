"""The transaction coordinator as handlers see it: each request finds its shard and is carried out there."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from skep.base.broker_config import BrokerConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.groups.shard import GroupShard
from skep.coordination.runtime import CoordinatorRuntime
from skep.coordination.shard import ProducerStamp
from skep.coordination.transactions import adding, describing, ending, initializing
from skep.coordination.transactions.describing import ListFilter
from skep.coordination.transactions.initializing import NEEDS_PRODUCER_ID, Initialization
from skep.coordination.transactions.shard import TransactionShard

A = TypeVar("A")

_NOT_NOW = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)


class TransactionCoordinator:
    """Stateless but for the shards. An answer that is given to a method comes back as it is, or an awaitable of it."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        groups: CoordinatorRuntime[GroupShard],
        settings: Callable[[], BrokerConfig],
    ) -> None:
        self._runtime = runtime
        self._groups = groups
        self._settings = settings

    async def init_producer_id(
        self, asked: Initialization, new_producer_id: Callable[[], Awaitable[int]]
    ) -> dict[str, Any]:
        """The body of the answer. KafkaError: INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS."""
        self._check_id(asked.transactional_id)
        longest_ms = self._settings().transaction_max_timeout_ms
        if not 0 < asked.timeout_ms <= longest_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout, f"{asked.timeout_ms} ms is not within 1 to {longest_ms}"
            )
        response = await self._initialize(asked, None)
        if response is NEEDS_PRODUCER_ID:
            # The id comes from the metadata store, which takes a while; if another request was quicker it is wasted.
            response = await self._initialize(asked, await new_producer_id())
        assert isinstance(response, dict)
        return response

    async def _initialize(self, asked: Initialization, new_producer_id: int | None) -> Any:
        response = self._runtime.submit(
            asked.transactional_id, lambda shard: initializing.initialize(shard, asked, new_producer_id)
        )
        return await response if isinstance(response, Awaitable) else response

    def add_partitions(
        self, transactional_id: str, producer: ProducerStamp, partitions: frozenset[TopicPartition], answer: A
    ) -> A | Awaitable[A]:
        self._check_id(transactional_id)
        response: A | Awaitable[A] = self._runtime.submit(
            transactional_id, lambda shard: adding.add(shard, transactional_id, producer, partitions, answer)
        )
        return response

    def add_offsets(self, transactional_id: str, producer: ProducerStamp, group_id: str, answer: A) -> A | Awaitable[A]:
        """Adds the partition in which the offsets of the group lie."""
        return self.add_partitions(transactional_id, producer, frozenset({self._offsets_of(group_id)}), answer)

    def end(self, transactional_id: str, producer: ProducerStamp, *, commit: bool, answer: A) -> A | Awaitable[A]:
        self._check_id(transactional_id)
        response: A | Awaitable[A] = self._runtime.submit(
            transactional_id,
            lambda shard: ending.end(shard, transactional_id, producer, commit=commit, answer=answer),
        )
        return response

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int) -> None:
        """Refuses records for a partition that is no part of the producer's transaction (KIP-890).

        Nothing is awaited, so what was true here still is at the append that follows.
        """
        if not self._settings().transaction_partition_verification_enable:
            return
        try:
            shard = self._runtime.shard_of(transactional_id)
            adding.verify(
                shard, transactional_id, ProducerStamp(producer_id, producer_epoch), TopicPartition(topic, partition)
            )
        except KafkaError as error:
            raise _for_producers(error) from None

    def verify_offsets(self, transactional_id: str, producer: ProducerStamp, group_id: str) -> None:
        """``verify`` for offsets that are to be committed in the transaction."""
        self.verify(transactional_id, *producer, *self._offsets_of(group_id))

    def _offsets_of(self, group_id: str) -> TopicPartition:
        return TopicPartition(self._groups.topic, self._groups.partition_for(group_id))

    def list(self, wanted: ListFilter) -> list[dict[str, Any]]:
        """COORDINATOR_LOAD_IN_PROGRESS while some of them are not known yet."""
        if self._runtime.is_loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "not all transactional ids are loaded")
        return [found for _, shard in self._runtime.loaded_shards() for found in describing.listed(shard, wanted)]

    async def describe(self, transactional_id: str) -> dict[str, Any]:
        self._check_id(transactional_id)
        response = self._runtime.submit(transactional_id, lambda shard: describing.describe(shard, transactional_id))
        found = await response if isinstance(response, Awaitable) else response
        assert isinstance(found, dict)
        return found

    def _check_id(self, transactional_id: str) -> None:
        limit = self._settings().max_group_id_bytes
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        if len(transactional_id) > limit or (not transactional_id.isascii() and len(transactional_id.encode()) > limit):
            raise KafkaError(ErrorCode.invalid_request, f"the transactional id is longer than {limit} bytes")


def _for_producers(error: KafkaError) -> KafkaError:
    """In words that a producer understands from the answer to Produce, as Kafka puts them.

    NOT_ENOUGH_REPLICAS makes every client send again after a pause, without looking for another leader first.
    """
    if error.code in _NOT_NOW:
        return KafkaError(ErrorCode.not_enough_replicas, f"the transaction cannot be verified now: {error}")
    if error.code is ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch, str(error))
    return error
