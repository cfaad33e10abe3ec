"""The transaction coordinator as handlers see it: each request finds its shard and is carried out there."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.shard import Outcome, ProducerStamp
from skep.coordination.transactions import add_partitions as adding
from skep.coordination.transactions import decision as ending
from skep.coordination.transactions import init_producer as initializing
from skep.coordination.transactions import transaction_listing as describing
from skep.coordination.transactions.init_producer import NEEDS_PRODUCER_ID, Initialization
from skep.coordination.transactions.transaction_listing import ListFilter
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.coordination.transactions.verifier import Verifier

A = TypeVar("A")


class TransactionCoordinator:
    """Stateless but for the shards, and the guards that ``verifier`` has.

    An answer that is given to a method comes back as it is, or an awaitable of it.
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        groups: CoordinatorRuntime[GroupShard],
        settings: Callable[[], BrokerConfig],
        verifier: Verifier | None = None,
    ) -> None:
        self._runtime = runtime
        self._groups = groups
        self._settings = settings
        self.verifier = verifier or Verifier(runtime, settings)

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
        return self.add_partitions(transactional_id, producer, frozenset({self.offsets_of(group_id)}), answer)

    def end(self, transactional_id: str, producer: ProducerStamp, *, commit: bool, answer: A) -> A | Awaitable[A]:
        self._check_id(transactional_id)
        response: A | Awaitable[A] = self._runtime.submit(
            transactional_id,
            lambda shard: ending.end(shard, transactional_id, producer, commit=commit, answer=answer),
        )
        return response

    def verify(
        self, transactional_id: str, producer: ProducerStamp, partitions: frozenset[TopicPartition]
    ) -> "dict[TopicPartition, ErrorCode] | Awaitable[dict[TopicPartition, ErrorCode]]":
        """For another broker: whether these partitions are a part of the transaction; told when that is committed."""
        self._check_id(transactional_id)

        def look(shard: TransactionShard) -> Outcome:
            return Outcome({one: _code(shard, transactional_id, producer, one) for one in partitions})

        answer: dict[TopicPartition, ErrorCode] = self._runtime.submit(transactional_id, look)
        return answer

    def offsets_of(self, group_id: str) -> TopicPartition:
        """The partition in which the offsets of the group lie."""
        return TopicPartition(self._groups.topic, self._groups.partition_for(group_id))

    async def list(self, wanted: ListFilter) -> list[dict[str, Any]]:
        """COORDINATOR_LOAD_IN_PROGRESS while some of them are not known yet."""
        if self._runtime.is_loading:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "not all transactional ids are loaded")
        found = []
        for index in self._runtime.indexes():
            found += await self._runtime.read(index, lambda shard: describing.listed(shard, wanted))
        return found

    def describe(self, transactional_id: str) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        self._check_id(transactional_id)
        response: dict[str, Any] | Awaitable[dict[str, Any]] = self._runtime.submit(
            transactional_id, lambda shard: describing.describe(shard, transactional_id)
        )
        return response

    def _check_id(self, transactional_id: str) -> None:
        limit = self._settings().max_group_id_bytes
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "the transactional id is empty")
        if len(transactional_id) > limit or (not transactional_id.isascii() and len(transactional_id.encode()) > limit):
            raise KafkaError(ErrorCode.invalid_request, f"the transactional id is longer than {limit} bytes")


def _code(
    shard: TransactionShard, transactional_id: str, producer: ProducerStamp, partition: TopicPartition
) -> ErrorCode:
    try:
        adding.verify(shard, transactional_id, producer, partition)
    except KafkaError as error:
        return error.code
    return ErrorCode.none
