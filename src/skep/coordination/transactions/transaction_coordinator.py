"""The front of the transaction coordinator: finds the shard of each request's transactional id and runs the request
there."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.shard import Outcome, ProducerStamp
from skep.coordination.transactions import add_partitions, decision, init_producer, transaction_listing
from skep.coordination.transactions.init_producer import InitProducerRequest
from skep.coordination.transactions.transaction_listing import ListFilter
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.transaction_table import NEEDS_PRODUCER_ID
from skep.coordination.transactions.verifier import Verifier

A = TypeVar("A")


class TransactionCoordinator:
    """Holds no state of its own apart from the shards and the verification guards of ``verifier``.

    A method that takes a response returns it unchanged, or an awaitable of it.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        groups: CoordinatorRuntime[GroupShard],
        config: CurrentConfig,
        verifier: Verifier | None = None,
    ) -> None:
        self._runtime = runtime
        self._groups = groups
        self._config = config
        self.verifier = verifier or Verifier(runtime, config)

    async def init_producer_id(
        self, asked: InitProducerRequest, new_producer_id: Callable[[], Awaitable[int]]
    ) -> dict[str, Any]:
        """Returns the body of the response. Raises INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED or
        CONCURRENT_TRANSACTIONS."""
        self._check_id(asked.transactional_id)
        longest_ms = self._config.value.coordinator.transaction_max_timeout_ms
        if not 0 < asked.timeout_ms <= longest_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction timeout {asked.timeout_ms} ms is outside 1 to {longest_ms} (transaction.max.timeout.ms)",
            )
        await self._runtime.until_ready(asked.transactional_id)
        response: dict[str, Any] = await self._submit_with_producer_id(
            asked.transactional_id,
            lambda shard, new_id: init_producer.initialize(shard, asked, new_id),
            new_producer_id,
        )
        return response

    async def _submit_with_producer_id(
        self,
        transactional_id: str,
        operation: Callable[[TransactionShard, int | None], Outcome],
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> Any:
        """Submits the operation without a new producer id, and again with one if it needs one."""
        response = self._runtime.submit(transactional_id, lambda shard: operation(shard, None))
        response = await response if isinstance(response, Awaitable) else response
        if response is not NEEDS_PRODUCER_ID:
            return response
        # The id comes from the metadata store, which takes a while. If another request is faster, the id is not used.
        new_id = await new_producer_id()
        response = self._runtime.submit(transactional_id, lambda shard: operation(shard, new_id))
        return await response if isinstance(response, Awaitable) else response

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerStamp,
        partitions: frozenset[TopicPartition],
        response: A,
        version: int = 0,
    ) -> A | Awaitable[A]:
        self._check_id(transactional_id)
        result: A | Awaitable[A] = self._runtime.submit(
            transactional_id,
            lambda shard: add_partitions.add(shard, transactional_id, producer, partitions, response, version),
        )
        return result

    def add_offsets(
        self, transactional_id: str, producer: ProducerStamp, group_id: str, response: A
    ) -> A | Awaitable[A]:
        """Adds the partition of ``__consumer_offsets`` that holds the offsets of the group."""
        return self.add_partitions(transactional_id, producer, frozenset({self.offsets_of(group_id)}), response)

    def end(self, transactional_id: str, producer: ProducerStamp, *, commit: bool, response: A) -> A | Awaitable[A]:
        self._check_id(transactional_id)
        result: A | Awaitable[A] = self._runtime.submit(
            transactional_id,
            lambda shard: decision.end(shard, transactional_id, producer, commit=commit, response=response),
        )
        return result

    async def end_v2(
        self,
        transactional_id: str,
        producer: ProducerStamp,
        *,
        commit: bool,
        new_producer_id: Callable[[], Awaitable[int]],
    ) -> ProducerStamp:
        """Ends a transaction of v2 (KIP-890). Returns the producer of the next one."""
        self._check_id(transactional_id)
        successor: ProducerStamp = await self._submit_with_producer_id(
            transactional_id,
            lambda shard, new_id: decision.end_v2(
                shard, transactional_id, producer, commit=commit, new_producer_id=new_id
            ),
            new_producer_id,
        )
        return successor

    def verify(
        self, transactional_id: str, producer: ProducerStamp, partitions: frozenset[TopicPartition]
    ) -> "dict[TopicPartition, ErrorCode] | Awaitable[dict[TopicPartition, ErrorCode]]":
        """Verifies for another broker that these partitions belong to the transaction. Responds when what it read is
        committed."""
        self._check_id(transactional_id)

        def look(shard: TransactionShard) -> Outcome:
            return Outcome({one: _code(shard, transactional_id, producer, one) for one in partitions})

        codes: dict[TopicPartition, ErrorCode] = self._runtime.submit(transactional_id, look)
        return codes

    def offsets_of(self, group_id: str) -> TopicPartition:
        """Returns the partition of ``__consumer_offsets`` that holds the offsets of the group."""
        return TopicPartition(self._groups.topic, self._groups.partition_for(group_id))

    async def list(self, wanted: ListFilter) -> list[dict[str, Any]]:
        """Raises COORDINATOR_LOAD_IN_PROGRESS while a shard of this broker is not loaded."""
        if self._runtime.is_loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "not all shards of __transaction_state are loaded")
        found = []
        for index in self._runtime.indexes():
            found += await self._runtime.read(index, lambda shard: transaction_listing.listed(shard, wanted))
        return found

    def describe(self, transactional_id: str) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        self._check_id(transactional_id)
        response: dict[str, Any] | Awaitable[dict[str, Any]] = self._runtime.submit(
            transactional_id, lambda shard: transaction_listing.describe(shard, transactional_id)
        )
        return response

    def _check_id(self, transactional_id: str) -> None:
        limit = self._config.value.coordinator.max_group_id_bytes
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        if len(transactional_id) > limit or (not transactional_id.isascii() and len(transactional_id.encode()) > limit):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"the transactional id is longer than {limit} bytes (skep.max.group.id.bytes)",
            )


def _code(
    shard: TransactionShard, transactional_id: str, producer: ProducerStamp, partition: TopicPartition
) -> ErrorCode:
    try:
        add_partitions.verify(shard, transactional_id, producer, partition)
    except KafkaError as error:
        return error.code
    return ErrorCode.none
